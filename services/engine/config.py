"""The engine's deployment settings: command line flags, with defaults from the environment."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

ENVIRONMENT_PREFIX = "ENGINE_"


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
    api_key: str = Field(default="", description="Key of /generate and the information routes; open if empty.")
    admin_api_key: str = Field(default="", description="Key of the control routes; see the README.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level logged.")


def read_config(arguments: Sequence[str], environment: Mapping[str, str]) -> EngineConfig:
    """Flags over environment over defaults. Exits with code 2 and one line when a setting is at fault."""
    parser = argparse.ArgumentParser(prog="python -m services.engine", description=__doc__)
    for name, field in EngineConfig.model_fields.items():
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, help=field.description)
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    variables = {
        name: environment[ENVIRONMENT_PREFIX + name.upper()]
        for name in EngineConfig.model_fields
        if ENVIRONMENT_PREFIX + name.upper() in environment
    }
    try:
        return EngineConfig.model_validate(variables | given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        flag = f"--{name.replace('_', '-')} ({ENVIRONMENT_PREFIX}{name.upper()})"
        parser.exit(2, f"engine: {flag}: {first['msg']}, got {first['input']!r}\n")
