"""Request bodies: read within a size limit, and validated strictly, so that OpenAPI says exactly what is accepted."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.coordinator.api.problems import ApiError, InvalidError, TooLargeError
from sluice.config import RunSpec
from sluice.faults import in_plain_words, without_echoes
from sluice.views import Problem

MAX_BODY_BYTES = 1 << 20
_SCHEMA = "#/components/schemas/{model}"

RUN_SPEC_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The run spec: the tables of a run file, as JSON.",
        "content": {"application/json": {"schema": {"$ref": _SCHEMA.format(model="RunSpec")}}},
    }
}


class ControlBody(BaseModel):
    """Why, in words; it becomes the run's reason."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str = Field("", max_length=500)


class ResumeBody(ControlBody):
    """Why, and without which batch."""

    skip_batch: int | None = Field(
        None, ge=0, description="Of a run that has failed in training: go on without this batch, which it failed on."
    )


class ForkBody(BaseModel):
    """Which checkpoint, and what is to be different."""

    model_config = ConfigDict(extra="forbid", strict=True)

    step: int | None = Field(None, ge=0, description="Training step of the checkpoint; unset: the newest one.")
    changes: dict[str, Any] = Field(
        default_factory=dict, description='Tables of a run file over those of the run, e.g. {"optim": {"lr": 1e-6}}.'
    )


async def read_run_spec(request: Request) -> RunSpec:
    """Dependency of POST /v1/runs.

    Read by hand because a run file's lists become tuples, which strict validation takes from JSON text only.

    Raises:
        ApiError: not JSON (400), over MAX_BODY_BYTES (413), or not a run spec (422).
    """
    body = await _read(request)
    try:
        json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not JSON: {error}", field="body", limit="a JSON object") from None
    try:
        return RunSpec.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise _invalid(error) from None


def add_run_spec_schema(app: FastAPI) -> None:
    """Put what FastAPI cannot see into the OpenAPI document: the run spec, read by hand, and the problem documents."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                license_info=app.license_info,
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for model in (RunSpec, Problem):
                schema = model.model_json_schema(ref_template=_SCHEMA)
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # the way FastAPI documents for extending it


async def _read(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise TooLargeError(
                f"the body is over {MAX_BODY_BYTES} bytes; a run spec names its data files, it does not hold them",
                field="body",
                limit=MAX_BODY_BYTES,
            )
    return bytes(body)


def _invalid(error: ValidationError) -> InvalidError:
    """Every wrong field in the detail, the first one also in the problem's own members."""
    errors = without_echoes(error.errors(include_url=False))
    faults, first = [_fault(e) for e in errors], errors[0]
    field = ".".join(str(part) for part in first["loc"]) or None
    value = first["input"] if first["type"] not in ("missing", "extra_forbidden") else None
    shown = value if field else None
    return InvalidError("; ".join(faults), field=field, value=shown, limit=in_plain_words(first), knob=field)


def _fault(error: Any) -> str:
    field = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{field}: no such field; see docs/configuration.md for the list"
    words = in_plain_words(error)
    return f"{field}: {words}" if field else words
