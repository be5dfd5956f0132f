"""Probes and metrics: outside /v1 and its token, as orchestrators and Prometheus expect them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.coordinator.api.problems import UnavailableError, responses

router = APIRouter(tags=["probes"])


@router.get("/healthz", response_class=PlainTextResponse, responses=responses(503))
async def healthz(request: Request) -> str:
    """The process does its work; 503 asks for a restart."""
    if not await request.app.state.runs.healthy():
        raise UnavailableError("the coordinator's loop has ended; restart this process")
    return "ok\n"


@router.get("/readyz", response_class=PlainTextResponse, responses=responses(503))
async def readyz(request: Request) -> str:
    """Requests can be served; 503 names who it waits for."""
    waits_for = await request.app.state.runs.ready()
    if waits_for:
        raise UnavailableError(f"not ready: waits for {waits_for}")
    return "ready\n"


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics() -> Response:
    """Prometheus metrics of this process."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
