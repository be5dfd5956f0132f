"""The simulated engine keeps SGLang's contract with the real worker's client, and takes the time that it should."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from bench.simulated.latency import parse_latency, sample_seconds
from bench.simulated.model import play
from bench.simulated.responses import outcomes
from bench.simulated.stack import Simulation
from services.rollout.completion import EngineUnfinishedError
from services.rollout.engine import Engine, EngineLimits
from sluice.config import RunSpec, load_run_spec, parse_run_spec
from sluice.errors import ConfigError
from sluice.types import PolicyVersion, Prompt, Sampling
from tests.servers import free_port, wait_for_port

ROOT = Path(__file__).parent.parent.parent
LIMITS = EngineLimits(vocab_size=19, context_length=2048, deterministic=False)
PROMPT = Prompt("r", 0, 0, 0, (8, 15, 9, 18), "3+4=", "7", "exact", "{}", 4, Sampling(64), seed=5, min_version=0)


@pytest.fixture(scope="module")
def engine_url(tiny_model: Path) -> Iterator[str]:
    """A simulated engine whose every response takes 0.2 s; half of the groups are kept."""
    port = free_port()
    flags = {"--model": tiny_model, "--port": port, "--latency": "constant:0.2", "--pace": 100, "--concurrency": 2}
    command = [sys.executable, "-m", "bench.simulated.engine", *(str(part) for flag in flags.items() for part in flag)]
    process = subprocess.Popen(command, cwd=ROOT)
    wait_for_port(port)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


@pytest.fixture
async def engine(engine_url: str) -> AsyncIterator[Engine]:
    client = Engine(engine_url)
    yield client
    await client.close()


async def load(engine: Engine, folder: Path, version: str) -> None:
    assert not await engine.update_weights(published(folder), version, 5)


def published(folder: Path) -> Path:
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    return folder


async def test_the_engine_answers_the_same_after_the_modelled_time_and_says_what_it_is(
    engine: Engine, tmp_path: Path
) -> None:
    await load(engine, tmp_path / "v0.1", "v0.1")
    assert await engine.weight_version() == "v0.1"
    assert (await engine.limits(ROOT / "models" / "tiny")) == LIMITS
    began = time.monotonic()
    first, again, other = await asyncio.gather(
        engine.generate(PROMPT, LIMITS, 10),
        engine.generate(PROMPT, LIMITS, 10),
        engine.generate(replace(PROMPT, seed=6), LIMITS, 10),
    )
    assert time.monotonic() - began >= 0.4, "two at a time: the third waits for its turn"
    assert first == again
    assert [completion.oldest_version for completion in other] == [PolicyVersion(0, 1)] * 4
    assert {len(completion.token_ids) for completion in first + other} == {20}, "0.2 s at 100 tokens a second"


async def test_a_pause_stops_the_clock_and_tokens_carry_the_version_that_made_them(
    engine: Engine, tmp_path: Path
) -> None:
    await load(engine, tmp_path / "v0.1", "v0.1")
    generating = asyncio.create_task(engine.generate(PROMPT, LIMITS, 10))
    await asyncio.sleep(0.1)
    await engine.pause()
    await load(engine, tmp_path / "v1.1", "v1.1")
    await asyncio.sleep(0.4)
    assert not generating.done()
    await engine.resume()
    for completion in await generating:
        assert [span.version for span in completion.spans] == [PolicyVersion(0, 1), PolicyVersion(1, 1)]


async def test_an_aborted_request_comes_back_unfinished(engine: Engine, tmp_path: Path) -> None:
    await load(engine, tmp_path / "v0.1", "v0.1")
    generating = asyncio.create_task(engine.generate(PROMPT, LIMITS, 10))
    await asyncio.sleep(0.05)
    await engine.abort_all()
    with pytest.raises(EngineUnfinishedError):
        await generating


async def test_a_version_that_is_nowhere_is_refused(engine: Engine, tmp_path: Path) -> None:
    assert "nothing" in await engine.update_weights(tmp_path / "nothing", "v1.1", 5)


def test_log_normal_seconds_have_the_median_and_the_tail_that_were_asked_for() -> None:
    latency = parse_latency("lognormal:0.1:1.0")
    drawn = sorted(sample_seconds(latency, seed, 0) for seed in range(20_000))
    assert statistics.median(drawn) == pytest.approx(0.1, rel=0.05)
    assert drawn[int(0.99 * len(drawn))] == pytest.approx(1.0, rel=0.1)
    capped = parse_latency("lognormal:0.1:1.0:0.5")
    assert max(sample_seconds(capped, seed, 0) for seed in range(1000)) == 0.5
    assert sample_seconds(latency, 7, 3) == sample_seconds(latency, 7, 3) != sample_seconds(latency, 7, 4)


def test_a_trace_gives_only_seconds_that_are_in_it(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text("0.1\n0.25\n3\n")
    latency = parse_latency(f"trace:{file}")
    assert {latency(Random(seed)) for seed in range(50)} == {0.1, 0.25, 3.0}


@pytest.mark.parametrize(
    "text", ["constant", "constant:-1", "lognormal:1:0.5", "gamma:1", "trace:/nowhere", "constant:x"]
)
def test_a_latency_that_cannot_be_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ConfigError, match=f"latency '{text}'"):
        parse_latency(text)


@pytest.mark.parametrize("keep_rate", [0.0, 0.2, 0.8, 1.0])
def test_groups_are_kept_at_the_rate_that_was_asked_for(keep_rate: float) -> None:
    drawn = [outcomes(seed, keep_rate, 8) for seed in range(2000)]
    assert sum(len(set(rights)) == 2 for rights in drawn) / 2000 == pytest.approx(keep_rate, abs=0.04)


def run_of(staleness: int, steps: int) -> RunSpec:
    fields = load_run_spec(ROOT / "configs" / "tiny.toml").model_dump(mode="json")
    fields["asynchrony"] |= {"max_staleness": staleness}
    fields["trainer"] |= {"prompts_per_step": 4, "total_steps": steps}
    return parse_run_spec(fields)


@pytest.mark.parametrize(
    ("staleness", "generate", "train", "seconds"),
    [
        (0, 2.0, 1.0, 10 * 3.0),
        (1, 1.0, 2.0, 1.0 + 10 * 2.0),  # generation hides behind training
        (1, 2.0, 1.0, 5 * (2.0 + 1.0) + 1.0),  # two batches are generated at a time, and trained one after the other
    ],
)
def test_the_model_plays_a_run_without_tail_and_drops_as_worked_out_by_hand(
    staleness: int, generate: float, train: float, seconds: float
) -> None:
    simulation = Simulation(latency=f"constant:{generate}", train=f"constant:{train}", keep_rate=1.0)
    assert play(run_of(staleness, 10), simulation).seconds == pytest.approx(seconds)
