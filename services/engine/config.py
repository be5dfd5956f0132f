"""The engine's deployment settings: command line flags, with defaults from the environment.

Flags come first because an SGLang server, whose place the engine takes, is started by the same ones. So it does not use
`read_settings` of `sluice.environment`, whose lines name variables alone.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sluice.environment import LogLevel
from sluice.errors import ConfigError
from sluice.faults import in_plain_words
from sluice.secrets import HIDDEN, read_secret

ENVIRONMENT_PREFIX = "ENGINE_"
SECRETS = ("api_key", "admin_api_key")


class EngineConfig(BaseModel):
    """One engine process. Flag `--max-total-tokens` overrides the variable ENGINE_MAX_TOTAL_TOKENS, and so on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Path = Field(description="Hugging Face model directory with config.json and safetensors shards.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=30000, ge=1, le=65535, description="Port to listen on.")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="Type of weights and cache.")
    threads: int = Field(default=1, ge=1, description="Threads for one step; never more than free cores.")
    max_running_requests: int = Field(default=128, ge=1, description="Samples decoded together.")
    max_total_tokens: int = Field(default=65536, ge=32, description="Tokens the cache has room for.")
    max_prefill_tokens: int = Field(default=2048, ge=1, description="Prompt tokens computed between two decode steps.")
    served_model_name: str = Field(default="", description="Name in answers and metrics; the path if empty.")
    weight_version: str = Field(default="default", description="What the weights that it starts with are called.")
    api_key: str = Field(default="", description="Key of /generate and the information routes; open if empty.")
    admin_api_key: str = Field(default="", description="Key of the control routes; see the README.")
    log_level: LogLevel = Field(default="info", description="Least level logged.")


def read_config(arguments: Sequence[str], environ: Mapping[str, str]) -> EngineConfig:
    """Flags over environment over defaults; a variable that is empty counts as not set.

    Raises:
        ConfigError: one line that names flag and variable of a setting at fault.
        SystemExit: there is no such flag, or help was asked for.
    """
    parser = argparse.ArgumentParser(prog="python -m services.engine", description=__doc__)
    for name, field in EngineConfig.model_fields.items():
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, help=field.description)
    flags = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    variables = {name: _variable(name, environ) for name in EngineConfig.model_fields}
    given = {name: value for name, value in variables.items() if value} | flags
    try:
        return EngineConfig.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        shown = HIDDEN if name in SECRETS else given.get(name, "")
        flag = f"--{name.replace('_', '-')} ({ENVIRONMENT_PREFIX}{name.upper()})"
        raise ConfigError(f"{flag}={shown}: {in_plain_words(first)}") from None


def _variable(name: str, environ: Mapping[str, str]) -> str | None:
    variable = ENVIRONMENT_PREFIX + name.upper()
    return read_secret(variable, environ) if name in SECRETS else environ.get(variable)
