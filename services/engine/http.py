"""SGLang's HTTP API, as far as RL needs it, on top of the engine's loop."""

import asyncio
import importlib.metadata
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.engine.access import Access, Keys
from services.engine.completions import Completions
from services.engine.control import ControlRoutes
from services.engine.engine import Engine
from services.engine.generate_request import GenerateRequest, RefusedError
from services.engine.request import Sample

HEALTH_TIMEOUT_SECONDS = 20.0
CLIENT_CLOSED_REQUEST = 499  # nobody reads it; it keeps such requests apart in the metrics


def build_app(engine: Engine, completions: Completions, api_key: str, admin_api_key: str) -> Access:
    """All routes, with their keys checked and their calls counted."""
    app = FastAPI(title="Sluice CPU engine", docs_url=None, redoc_url=None, openapi_url=None)
    routers = (
        _generate_routes(engine, completions),
        ControlRoutes(engine, completions).router(),
        _information_routes(engine),
        _health_routes(engine, completions),
    )
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(RefusedError, _answer_refusal)
    paths = {route.path for router in routers for route in router.routes if isinstance(route, APIRoute)}
    return Access(app, Keys(api_key, admin_api_key), frozenset(paths), engine.metrics)


async def _answer_refusal(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": {"message": str(error)}}, status_code=400)


async def _read_json(request: Request) -> Any:
    """The request's JSON body, {} when it has none; raises RefusedError when it is not JSON."""
    body = await request.body()
    try:
        return json.loads(body) if body else {}
    except ValueError as error:
        raise RefusedError(f"the body is not JSON: {error}") from error


def _generate_routes(engine: Engine, completions: Completions) -> APIRouter:
    router = APIRouter()

    @router.api_route("/generate", methods=["POST", "PUT"])
    async def generate(request: Request) -> Response:
        wanted = GenerateRequest(await _read_json(request), engine.model.architecture, engine.limits)
        completions.start(wanted.samples)
        if wanted.stream:
            return StreamingResponse(_events(completions, wanted), media_type="text/event-stream")
        try:
            answers = await _unless_disconnected(request, completions, wanted.samples)
        finally:
            completions.forget(wanted.samples)
        if answers is None:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return JSONResponse(answers if wanted.is_list else answers[0])

    return router


async def _unless_disconnected(
    request: Request, completions: Completions, samples: list[Sample]
) -> list[dict[str, Any]] | None:
    """All answers in order, or None when the client went away before."""
    answers = asyncio.ensure_future(_all_answers(completions, samples))
    # The body is read, so the next message is the disconnection.
    disconnection = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((answers, disconnection), return_when=asyncio.FIRST_COMPLETED)
        return answers.result() if answers.done() else None
    finally:
        answers.cancel()
        disconnection.cancel()


async def _all_answers(completions: Completions, samples: list[Sample]) -> list[dict[str, Any]]:
    return [await completions.last_answer(sample) for sample in samples]


async def _events(completions: Completions, wanted: GenerateRequest) -> AsyncIterator[str]:
    """Server-sent events with each sample's whole answer so far, then [DONE]. A disconnect closes the iterator."""
    news: asyncio.Queue[tuple[int, dict[str, Any], bool]] = asyncio.Queue()

    async def follow(index: int, sample: Sample) -> None:
        ended = False
        while not ended:
            answer, ended = await completions.next_answer(sample)
            await news.put((index, answer, ended))

    followers = [asyncio.ensure_future(follow(index, sample)) for index, sample in enumerate(wanted.samples)]
    try:
        open_samples = len(wanted.samples)
        while open_samples:
            index, answer, ended = await news.get()
            open_samples -= ended
            # As SGLang, an answer of several says which of them it is.
            yield f"data: {json.dumps(answer | {'index': index} if wanted.is_list else answer)}\n\n"
        yield "data: [DONE]\n\n"
    finally:
        for follower in followers:
            follower.cancel()
        completions.forget(wanted.samples)


def _information_routes(engine: Engine) -> APIRouter:
    router = APIRouter()
    architecture = engine.model.architecture

    @router.get("/model_info")
    @router.get("/get_model_info")
    async def model_info() -> dict[str, Any]:
        return {
            "model_path": str(engine.model_path),
            "tokenizer_path": str(engine.model_path),
            "is_generation": True,
            "weight_version": engine.weight_version,
            "served_model_name": engine.served_model_name,
            "model_type": architecture.model_type,
            "architectures": list(architecture.architectures),
        }

    @router.get("/server_info")
    @router.get("/get_server_info")
    async def server_info() -> dict[str, Any]:
        return {
            "model_path": str(engine.model_path),
            "served_model_name": engine.served_model_name,
            "device": "cpu",
            "dtype": str(engine.model.weights.dtype).removeprefix("torch."),
            "skip_tokenizer_init": True,
            "context_length": architecture.context_length,
            "max_running_requests": engine.limits.max_running_requests,
            "max_total_num_tokens": engine.limits.max_total_tokens,
            "max_prefill_tokens": engine.limits.max_prefill_tokens,
            "weight_version": engine.weight_version,
            "internal_states": [_load(engine)],
            "version": f"sluice-{importlib.metadata.version('sluice')}",
        }

    @router.get("/v1/loads")
    async def loads() -> dict[str, Any]:
        return {"timestamp": time.time(), "dp_rank_count": 1, "loads": [_load(engine)]}

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(engine.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router


def _load(engine: Engine) -> dict[str, Any]:
    state = engine.state
    return {
        "dp_rank": 0,
        "num_running_reqs": state.num_running,
        "num_waiting_reqs": state.num_waiting,
        "num_paused_reqs": state.num_paused,
        "num_used_tokens": state.used_tokens,
        "max_total_num_tokens": engine.limits.max_total_tokens,
        "token_usage": state.reserved_tokens / engine.limits.max_total_tokens,
        "gen_throughput": state.tokens_per_second,
        "paused": state.paused,
    }


def _health_routes(engine: Engine, completions: Completions) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    @router.get("/ready")
    async def health() -> Response:
        return Response(status_code=503 if completions.loop.failure else 200)

    @router.get("/ping")
    async def ping() -> Response:
        return PlainTextResponse("pong")

    @router.get("/health_generate")
    async def health_generate() -> Response:
        """Makes one token. A paused engine is healthy: it does what it was told."""
        if completions.loop.failure:
            return Response(status_code=503)
        if engine.state.paused:
            return Response(status_code=200)
        body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1}, "rid": "HEALTH_CHECK"}
        probe = GenerateRequest(body, engine.model.architecture, engine.limits).samples
        completions.start(probe)
        try:
            await asyncio.wait_for(completions.last_answer(probe[0]), HEALTH_TIMEOUT_SECONDS)
        except TimeoutError:
            return Response(status_code=503)
        finally:
            completions.forget(probe)
        return Response(status_code=200)

    return router
