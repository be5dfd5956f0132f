"""A prompt as the model reads it: the model's chat template and its tokenizer, straight from the checkpoint's files.

`transformers` would do the same, but it loads torch, which the coordinator does without.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2.ext
from jinja2 import TemplateError, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from sluice.errors import ConfigError

CHAT_TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """The model's chat template. It knows no date: a prompt must be the same whoever renders it, and whenever."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        self._template = environment.from_string(source)
        self._special_tokens = special_tokens

    def render(self, messages: list[dict[str, str]]) -> str:
        """The text up to where the assistant begins. Raises: jinja2.TemplateError: the template refuses them."""
        return self._template.render(messages=messages, add_generation_prompt=True, **self._special_tokens)


def load_chat_template(folder: Path) -> ChatTemplate:
    """The template in chat_template.jinja, or the one inside tokenizer_config.json.

    Raises:
        ConfigError: the model has none, or it does not compile.
    """
    config = read_json(folder / TOKENIZER_CONFIG_FILE) if (folder / TOKENIZER_CONFIG_FILE).is_file() else {}
    source = _template_source(folder, config)
    if source is None:
        raise ConfigError(
            f"model.path: {folder} has no chat template ({CHAT_TEMPLATE_FILE}, or chat_template in "
            f"{TOKENIZER_CONFIG_FILE}); set data.prompt_format = 'raw' or take a chat model"
        )
    named = {name: _token_text(config.get(name)) for name in SPECIAL_TOKENS}
    try:
        return ChatTemplate(source, {name: text for name, text in named.items() if text is not None})
    except TemplateError as error:
        raise ConfigError(f"model.path: the chat template of {folder} does not compile: {error}") from None


def load_tokenizer(folder: Path) -> Tokenizer:
    """Raises: ConfigError: the file is missing or damaged."""
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise ConfigError(f"model.path: {folder} has no {TOKENIZER_FILE}")
    # The library raises bare Exception for a file it cannot read.
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ConfigError(f"model.path: {path} is not a tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_json(path: Path) -> dict[str, Any]:
    """Raises: ConfigError: the file is missing or is not a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"model.path: {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"model.path: {path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"model.path: {path} is not a JSON object")
    return value


def token_of(config: dict[str, Any], name: str) -> str | None:
    """Text of a special token in a tokenizer_config.json, which writes it as a string or as an object."""
    return _token_text(config.get(name))


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _template_source(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / CHAT_TEMPLATE_FILE
    if path.is_file():
        return path.read_text(encoding="utf-8")
    inside = config.get("chat_template")
    if isinstance(inside, list):
        inside = next((entry.get("template") for entry in inside if entry.get("name") == "default"), None)
    return inside if isinstance(inside, str) else None


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what an assistant said, for those who mask a loss with it; here it is only text."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as an instance attribute

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Templates mean plain JSON; jinja2's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
