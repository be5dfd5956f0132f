"""Start the CPU engine: `python -m services.engine --model DIR --port P`."""

import asyncio
import os
import socket
import sys
import threading
import time
from typing import NoReturn

import torch
import uvicorn

from services.engine.architecture import UnsupportedModelError, read_architecture
from services.engine.completions import Completions
from services.engine.config import EngineConfig, read_config
from services.engine.engine import Engine
from services.engine.http import build_app
from services.engine.model import Model
from services.engine.scheduler import Limits
from services.engine.weights import Weights, WeightsError
from sluice.telemetry import configure_logging, get_logger

EXIT_CONFIGURATION = 2
SHUTDOWN_SECONDS = 3
EXIT_POLL_SECONDS = 0.05


def build_engine(config: EngineConfig) -> Engine:
    """Read the model and make an engine of it; raises UnsupportedModelError or WeightsError."""
    torch.set_num_threads(config.threads)
    architecture = read_architecture(config.model)
    weights = Weights(architecture, getattr(torch, config.dtype))
    weights.load(config.model)
    limits = Limits(config.max_running_requests, config.max_total_tokens, config.max_prefill_tokens)
    return Engine(Model(architecture, weights), limits, config.model, config.served_model_name or str(config.model))


def listen(config: EngineConfig) -> socket.socket:
    """The socket of the HTTP server; raises OSError. Uvicorn would end with its own exit code 3, which means fenced."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    return socket.create_server((config.host, config.port), family=family)


async def serve(engine: Engine, config: EngineConfig, listener: socket.socket, started: float) -> int:
    """Run the engine's thread and the HTTP server until a signal or a failed step; returns the exit code."""
    logger = get_logger("engine")
    completions = Completions(engine)
    app = build_app(engine, completions, config.api_key, config.admin_api_key)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
    )

    def run_engine() -> None:
        try:
            completions.loop.run()
        finally:
            # Without its loop the engine answers nobody: leave, and let whoever supervises start another.
            server.should_exit = True

    thread = threading.Thread(target=run_engine, name="engine")
    thread.start()
    engine.metrics.startup.set(time.monotonic() - started)
    logger.info("engine_starting_http", host=config.host, port=config.port, model=str(config.model))
    closing = asyncio.create_task(_end_samples_on_exit(server, engine, completions))
    try:
        await server.serve(sockets=[listener])
    finally:
        closing.cancel()
        completions.loop.stop()
        thread.join()
    if completions.loop.failure is not None:
        logger.error("engine_failed", error=repr(completions.loop.failure))
        return 1
    return 0


async def _end_samples_on_exit(server: uvicorn.Server, engine: Engine, completions: Completions) -> None:
    """Once the server is told to leave, answer the waiting requests with what they have: else they would hold it."""
    while not server.should_exit:
        await asyncio.sleep(EXIT_POLL_SECONDS)
    completions.loop.call_and_report(lambda: engine.abort(lambda sample: True, "The engine is shutting down"))


def main() -> None:
    started = time.monotonic()
    config = read_config(sys.argv[1:], os.environ)
    configure_logging(config.log_level)
    try:
        engine = build_engine(config)
    except (UnsupportedModelError, WeightsError) as error:
        _refuse(f"--model (ENGINE_MODEL): {error}")
    try:
        listener = listen(config)
    except OSError as error:
        _refuse(f"--port (ENGINE_PORT) = {config.port} of --host = {config.host}: {error.strerror}")
    sys.exit(asyncio.run(serve(engine, config, listener, started)))


def _refuse(fault: str) -> NoReturn:
    """End with one line about what the user has to change."""
    print(f"engine: {' '.join(fault.split())}", file=sys.stderr)
    sys.exit(EXIT_CONFIGURATION)


if __name__ == "__main__":
    main()
