"""Start the CPU engine: `python -m services.engine --model DIR --port P`."""

import asyncio
import os
import socket
import sys
import threading
import time

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
from sluice.errors import ConfigError
from sluice.listening import plain
from sluice.service import run_service
from sluice.telemetry import configure_logging, get_logger

SHUTDOWN_SECONDS = 3
EXIT_POLL_SECONDS = 0.05


def build_engine(config: EngineConfig) -> Engine:
    """Read the model and make an engine of it; raises UnsupportedModelError or WeightsError."""
    torch.set_num_threads(config.threads)
    architecture = read_architecture(config.model)
    weights = Weights(architecture, getattr(torch, config.dtype))
    weights.load(config.model)
    limits = Limits(config.max_running_requests, config.max_total_tokens, config.max_prefill_tokens)
    name = config.served_model_name or str(config.model)
    return Engine(Model(architecture, weights), limits, config.model, name, config.weight_version)


def listen(config: EngineConfig) -> socket.socket:
    """The socket of the HTTP server. Uvicorn would end with its own exit code 3, which means fenced.

    Raises:
        ConfigError: the address is in use, or not ours to take.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family)
    except OSError as error:
        address = f"--port (ENGINE_PORT)={config.port} of --host (ENGINE_HOST)={config.host}"
        raise ConfigError(f"{address}: {plain(error)}; choose another") from None


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


def main() -> int:
    """Run an engine; the exit code is 2 for a fault of configuration and 1 for any other failure."""
    return run_service("engine", _run)


def _run() -> int:
    started = time.monotonic()
    config = read_config(sys.argv[1:], os.environ)
    configure_logging(config.log_level, service="engine")
    try:
        engine = build_engine(config)
    except (UnsupportedModelError, WeightsError) as error:
        raise ConfigError(f"--model (ENGINE_MODEL): {error}") from None
    return asyncio.run(serve(engine, config, listen(config), started))


if __name__ == "__main__":
    sys.exit(main())
