"""Faults of a request, and the RFC 9457 documents they become."""

from __future__ import annotations

import http
import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from sluice.errors import ConfigError, TransientError, WaitTimeoutError
from sluice.faults import in_plain_words
from sluice.views import Problem

PROBLEM_JSON = "application/problem+json"


class ApiError(Exception):
    """A request that cannot be served; the base of what a RunDirectory raises to answer with a problem document."""

    status = 400
    kind = "bad-request"

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        value: Any = None,
        limit: Any = None,
        knob: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail, self.field, self.value, self.limit, self.knob = detail, field, value, limit, knob


class MissingError(ApiError):
    """No such run or group."""

    status, kind = 404, "not-found"


class ConflictError(ApiError):
    """The run's state forbids it, or the idempotency key was used for another spec."""

    status, kind = 409, "conflict"


class InvalidError(ApiError):
    """The request is well formed, but a field of it cannot be."""

    status, kind = 422, "invalid"


class UnauthorizedError(ApiError):
    """The bearer token is missing or wrong."""

    status, kind = 401, "unauthorized"


class TooLargeError(ApiError):
    """The body is over the size limit."""

    status, kind = 413, "too-large"


class UnavailableError(ApiError):
    """A part that the answer needs is away; the same request may succeed later."""

    status, kind = 503, "unavailable"


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entries of these problem responses."""
    content = {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {s: {"description": http.HTTPStatus(s).phrase, "content": content} for s in statuses}


def install(app: FastAPI) -> None:
    """Let every fault of `app` leave as a problem document."""
    app.add_exception_handler(ApiError, _on_fault)
    app.add_exception_handler(ConfigError, _on_config_error)
    app.add_exception_handler(TransientError, _on_unavailable)
    app.add_exception_handler(WaitTimeoutError, _on_unavailable)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_bug)


def answer(request: Request, fault: ApiError) -> JSONResponse:
    """The problem document of `fault`."""
    problem = Problem(
        type=f"urn:sluice:problem:{fault.kind}",
        title=http.HTTPStatus(fault.status).phrase,
        status=fault.status,
        detail=fault.detail,
        instance=request.url.path,
        field=fault.field,
        value=_printable(fault.value),
        limit=_printable(fault.limit),
        knob=fault.knob,
    )
    headers = {"WWW-Authenticate": "Bearer"} if fault.status == 401 else {}
    if fault.status == 503:
        headers["Retry-After"] = "2"
    return JSONResponse(problem.model_dump(exclude_none=True), fault.status, headers, PROBLEM_JSON)


def _printable(value: Any) -> Any:
    """A caller's value as it can go back in JSON, cut short: a problem document must not be larger than its cause."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        text, value = str(value), str(value)
    return value if len(text) <= 200 else text[:200] + "…"


async def _on_fault(request: Request, fault: Exception) -> JSONResponse:
    assert isinstance(fault, ApiError)
    return answer(request, fault)


async def _on_config_error(request: Request, error: Exception) -> JSONResponse:
    return answer(request, InvalidError(str(error)))


async def _on_unavailable(request: Request, error: Exception) -> JSONResponse:
    return answer(request, UnavailableError(str(error)))


async def _on_validation(request: Request, error: Exception) -> JSONResponse:
    """A wrong path, query, header or body value."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return answer(request, ApiError(f"the body is not JSON: {reason}", field="body", limit="a JSON object"))
    field = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
    return answer(request, InvalidError(f"{field}: {in_plain_words(first)}", field=field, value=first.get("input")))


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    """What the framework itself refuses: an unknown path, or a method that a path does not have."""
    assert isinstance(error, HTTPException)
    fault = ApiError(f"{request.method} {request.url.path}: {error.detail}; /docs lists what there is")
    fault.status, fault.kind = error.status_code, http.HTTPStatus(error.status_code).name.lower().replace("_", "-")
    return answer(request, fault)


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    """Our own fault: the server logs it with its traceback, the caller gets one line."""
    fault = ApiError(f"the coordinator failed on this request ({type(error).__name__}); its log says why")
    fault.status, fault.kind = 500, "internal"
    return answer(request, fault)
