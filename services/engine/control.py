"""The control routes of SGLang's HTTP API: pause, abort, weights and their versions."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ValidationError

from services.engine.completions import Completions
from services.engine.engine import Engine, NotIdleError
from services.engine.generate_request import RefusedError
from services.engine.request import PauseMode, Sample
from services.engine.weights import WeightsError

FLUSH_POLL_SECONDS = 0.05
NOT_SERVED = (
    "/init_weights_update_group",
    "/destroy_weights_update_group",
    "/begin_weight_update",
    "/end_weight_update",
    "/update_weights_from_distributed",
    "/update_weights_from_tensor",
    "/update_weights_from_ipc",
    "/release_memory_occupation",
    "/resume_memory_occupation",
)


class _Pause(BaseModel):
    mode: PauseMode = "abort"


class _Abort(BaseModel):
    rid: str = ""
    abort_all: bool = False


class _DiskUpdate(BaseModel):
    model_path: str
    load_format: str | None = None
    abort_all_requests: bool = False
    weight_version: str | None = None
    flush_cache: bool = True
    keep_pause: bool = False


class _VersionUpdate(BaseModel):
    new_version: str
    abort_all_requests: bool = True


class _WeightsCheck(BaseModel):
    action: str


class _WeightsByName(BaseModel):
    name: str
    truncate_size: int = 100


Body = TypeVar("Body", bound=BaseModel)
Result = TypeVar("Result")


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The request's JSON as `kind`, defaults for an empty body; unknown fields are ignored as in SGLang.

    Raises RefusedError naming the field at fault.
    """
    raw = await request.body()
    try:
        return kind.model_validate_json(raw or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "body"
        raise RefusedError(f"{place}: {first['msg']}, got {json.dumps(first['input'], default=str)[:100]}") from error


class ControlRoutes:
    """The handlers; each runs its command on the engine's thread and waits for it."""

    def __init__(self, engine: Engine, completions: Completions) -> None:
        self._engine = engine
        self._loop = completions.loop

    def router(self) -> APIRouter:
        router = APIRouter()
        posts = (
            self.pause_generation,
            self.continue_generation,
            self.abort_request,
            self.update_weights_from_disk,
            self.update_weight_version,
            self.weights_checker,
        )
        for handler in posts:
            router.add_api_route(f"/{handler.__name__}", handler, methods=["POST"])
        for handler in (self.flush_cache, self.get_weights_by_name):
            router.add_api_route(f"/{handler.__name__}", handler, methods=["GET", "POST"])
        for path in NOT_SERVED:
            router.add_api_route(path, _not_served, methods=["POST"])
        return router

    async def _call(self, action: Callable[[], Result], drains: bool = False) -> Result:
        result: Result = await asyncio.wrap_future(self._loop.call(action, drains))
        return result

    async def _end_samples(self, action: Callable[[], list[Sample]]) -> None:
        await asyncio.wrap_future(self._loop.call_and_report(action))

    async def _abort_all(self) -> None:
        await self._end_samples(lambda: self._engine.abort(lambda sample: True))

    async def pause_generation(self, request: Request) -> Response:
        mode = (await read_body(request, _Pause)).mode
        await self._end_samples(lambda: self._engine.pause(mode))
        return _success("Generation paused successfully.", status="ok")

    async def continue_generation(self) -> Response:
        await self._call(self._engine.resume)
        return _success("Generation continued successfully.", status="ok")

    async def abort_request(self, request: Request) -> Response:
        """Unlike SGLang, an id aborts its own request only, not all whose ids begin with it."""
        body = await read_body(request, _Abort)
        rid = body.rid
        if body.abort_all:
            await self._abort_all()
        elif rid:
            await self._end_samples(lambda: self._engine.abort(lambda one: rid in (one.request_id, one.sample_id)))
        return Response(status_code=200)

    async def flush_cache(self, timeout: float = 0.0) -> Response:
        """Wait up to `timeout` seconds for the engine to be idle."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                await self._call(self._engine.flush_cache)
                return PlainTextResponse("Cache flushed.\n")
            except NotIdleError as error:
                if time.monotonic() >= deadline:
                    return PlainTextResponse(f"Flush cache failed: {error} (timeout={timeout} s)\n", status_code=400)
            await asyncio.sleep(FLUSH_POLL_SECONDS)

    async def update_weights_from_disk(self, request: Request) -> Response:
        """Load between two steps; without a pause the running samples are finished first, under the old weights."""
        body = await read_body(request, _DiskUpdate)
        if body.load_format not in (None, "auto", "safetensors"):
            return _failure(f"load_format is {body.load_format!r}; the CPU engine loads auto or safetensors")
        if body.abort_all_requests:
            await self._abort_all()
        path = Path(body.model_path)
        try:
            message = await self._call(
                lambda: self._engine.update_weights(path, body.weight_version, body.flush_cache), drains=True
            )
        except (WeightsError, NotIdleError) as error:
            return _failure(str(error))
        return _success(message, num_paused_requests=self._engine.state.num_paused)

    async def update_weight_version(self, request: Request) -> Response:
        body = await read_body(request, _VersionUpdate)
        if body.abort_all_requests:
            await self._abort_all()
        await self._call(lambda: self._engine.set_weight_version(body.new_version))
        return _success(f"Weight version updated to {body.new_version}", new_version=body.new_version)

    async def weights_checker(self, request: Request) -> Response:
        action = (await read_body(request, _WeightsCheck)).action
        if action != "checksum":
            return _failure(f"action is {action!r}; the CPU engine serves checksum")
        checksums = await self._call(self._engine.model.weights.checksums)
        return _success("Success.", ranks=[{"rank": 0, "checksums": checksums}])

    async def get_weights_by_name(self, request: Request) -> Response:
        body = await read_body(request, _WeightsByName)
        tensor = self._engine.model.weights.tensor
        try:
            rows = await self._call(lambda: tensor(body.name)[: body.truncate_size].float().tolist())
        except KeyError:
            return JSONResponse({"error": {"message": f"name is {body.name!r}, which the model lacks"}}, 400)
        return JSONResponse(rows)


async def _not_served(request: Request) -> Response:
    message = (
        f"{request.url.path} is not implemented by the CPU engine; weights are updated with /update_weights_from_disk"
    )
    return JSONResponse({"success": False, "message": message, "error": {"message": message}}, status_code=501)


def _success(message: str, **more: Any) -> Response:
    return JSONResponse({"success": True, "message": message, **more})


def _failure(message: str) -> Response:
    return JSONResponse({"success": False, "message": message}, status_code=400)
