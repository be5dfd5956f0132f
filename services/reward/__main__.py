"""`python -m services.reward` serves; `python -m services.reward verify FILE --verifier NAME` judges a file."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from services.reward.agreement import SecondOpinion
from services.reward.config import RewardSettings
from services.reward.loop import Judges
from services.reward.offline import check_file, compare_file, score_file
from services.reward.pool import Pool
from services.reward.routing import Routes
from services.reward.server import RewardServer, RewardServicer
from sluice.errors import ConfigError
from sluice.listening import check_listening
from sluice.service import calm_collector, run_service
from sluice.telemetry import Logger, configure_logging, get_logger, serve_metrics

WATCH_SECONDS = 1.0


def main() -> int:
    """Run the command; the exit code is 2 for a fault of configuration or input and 1 for any other failure."""
    arguments = _parser().parse_args()
    return run_service("reward", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    settings = RewardSettings.from_environment(os.environ)
    configure_logging(settings.log_level, service="reward")
    if arguments.command == "verify":
        return asyncio.run(_verify(arguments, settings))
    calm_collector()
    return asyncio.run(serve(settings))


async def _verify(arguments: argparse.Namespace, settings: RewardSettings) -> int:
    if arguments.compare:
        return await compare_file(arguments.file, arguments.compare, arguments.out, settings)
    if arguments.check_truths:
        return await check_file(arguments.file, arguments.check_truths, arguments.out, settings)
    return await score_file(arguments.file, arguments.verifier, arguments.out, settings)


async def serve(settings: RewardSettings) -> int:
    """Serve until SIGTERM or SIGINT; then refuse new calls, let open ones finish, and leave nothing running."""
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    log = get_logger("reward")
    check_listening(settings.bind, "SLUICE_REWARD_BIND")
    pool, listening = Pool(settings.pool), asyncio.Event()
    probes = serve_metrics(
        settings.metrics_port,
        settings.metrics_host,
        lambda: pool.ready and listening.is_set() and not stop.is_set(),
    )
    async with AsyncExitStack() as open_until_the_end:
        open_until_the_end.callback(probes.close)
        open_until_the_end.push_async_callback(pool.close)
        await pool.start()
        server = RewardServer(await _servicer(settings, pool, open_until_the_end))
        await _listen(server, settings.bind)
        listening.set()
        host = settings.bind.rpartition(":")[0]
        log.info("serving", address=f"{host}:{server.port}", metrics_port=probes.port, verifiers=pool.labels)
        await _watch(server, pool, stop)
        log.info("stopping", stop_seconds=settings.stop_seconds)
        await server.stop(settings.stop_seconds)
    return _status(pool, log)


async def _servicer(settings: RewardSettings, pool: Pool, stack: AsyncExitStack) -> RewardServicer:
    """The pool, behind a cache and with a second opinion where the deployment has set these up."""
    log, routes = get_logger("reward"), Routes(pool.labels, settings.routes)
    judges: Judges = pool
    second = None
    if settings.redis_url is not None:
        from services.reward.cache import CachedJudges  # its library is slow to import, and most do without it

        judges = cached = CachedJudges(pool, pool.labels, settings.redis_url, log)
        stack.push_async_callback(cached.close)
    if settings.second:
        if settings.second not in pool.labels:
            known = ", ".join(sorted(pool.labels))
            raise ConfigError(f"SLUICE_REWARD_SECOND={settings.second}: is none of: {known}")
        second = SecondOpinion(judges, settings.second, settings.second_share, log)
        stack.push_async_callback(second.close)
    return RewardServicer(pool, routes, judges, second)


async def _listen(server: RewardServer, bind: str) -> None:
    try:
        await server.start(bind)
    except RuntimeError:  # what gRPC raises when it cannot bind; why is in its own words for its own developers
        raise ConfigError(
            f"SLUICE_REWARD_BIND={bind}: the address is in use or not one of this host; choose another"
        ) from None


async def _watch(server: RewardServer, pool: Pool, stop: asyncio.Event) -> None:
    """Keep the health service true to the pool until it is time to stop."""
    serving = True
    while not stop.is_set() and not pool.failed.is_set():
        if pool.ready != serving:
            serving = pool.ready
            await server.report(serving)
        try:
            async with asyncio.timeout(WATCH_SECONDS):
                await stop.wait()
        except TimeoutError:
            continue


def _status(pool: Pool, log: Logger) -> int:
    failed = pool.failed.is_set()
    log.info("stopped", failed=failed)
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m services.reward", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    verify = commands.add_parser("verify", help="judge the rows of a JSON-lines file")
    verify.add_argument("file", type=Path, help="rows with response and ground_truth")
    what = verify.add_mutually_exclusive_group(required=True)
    what.add_argument("--verifier", help="name of a verifier, or a weighted sum such as math+0.2*style")
    what.add_argument("--compare", nargs=2, metavar=("A", "B"), help="report how far two verifiers agree")
    what.add_argument(
        "--check-truths",
        metavar="NAME",
        help="only say which ground truths that verifier cannot use; by-data-source: the one of each row",
    )
    verify.add_argument("--out", type=Path, default=None, help="where the lines go (default: standard output)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
