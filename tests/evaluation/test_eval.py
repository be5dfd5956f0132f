"""`sluice eval` with real engines and real verifiers: whole, cut, resumed, refused, and with engines that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluice.cli import main
from tests.evaluation.publishing import publish
from tests.servers import free_port, wait_for_port

ROOT = Path(__file__).parents[2]
SAMPLING = ["--prompt-format", "raw", "--stop-text", "\n", "--max-tokens", "8"]
LONG = ["--prompt-format", "raw", "--max-tokens", "60", "--temperature", "6", "--top-p", "1", "--concurrency", "8"]
"""So hot that the tiny model seldom ends: slow enough to be killed in the middle."""


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SLUICE_REWARD_WORKERS", "1")


@dataclass(frozen=True)
class Engine:
    """An engine that is not the command's own: it gets the address only."""

    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running_engines(model: Path, count: int) -> Iterator[list[Engine]]:
    ports = [free_port() for _ in range(count)]
    command = [sys.executable, "-m", "services.engine", "--model", str(model)]
    processes = [
        subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for port in ports
    ]
    engines = [Engine(f"http://127.0.0.1:{port}", process) for port, process in zip(ports, processes, strict=True)]
    try:
        for port in ports:
            wait_for_port(port, 60)
        yield engines
    finally:
        for engine in engines:
            engine.kill()


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Engine]:
    """One that outlives all tests here."""
    with running_engines(tiny_model, 1) as (only,):
        yield only


def problems(path: Path, count: int, copies: int = 1) -> Path:
    """The first sums of the tiny set, each problem so many times."""
    rows = Path("configs/data/tiny_addition.jsonl").read_text().splitlines()[:count]
    path.write_text("".join(f"{row}\n" for row in rows for _ in range(copies)))
    return path


def samples_in(out: Path) -> list[dict[str, Any]]:
    file = out / "samples.jsonl"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def responses(out: Path) -> dict[tuple[int, int], str]:
    rows = samples_in(out)
    found = {(row["problem"], row["sample"]): row["response"] for row in rows}
    assert len(found) == len(rows)  # none twice
    return found


def wait_for_samples(out: Path, count: int, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while len(samples_in(out)) < count:
        assert time.monotonic() < deadline, f"{len(samples_in(out))} samples after {seconds} s"
        time.sleep(0.01)


def processes_about(out: Path) -> list[int]:
    """Children that an evaluation into `out` started: they log there."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "fd/1").startswith(str(out)):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_until_gone(out: Path, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while processes_about(out):
        assert time.monotonic() < deadline, processes_about(out)
        time.sleep(0.02)


def when_samples(out: Path, count: int, act: Callable[[], object]) -> threading.Thread:
    """Does `act` once so many samples are stored, while the command runs in this thread."""

    def watch() -> None:
        wait_for_samples(out, count)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def command(data: Path, out: Path, *more: str) -> Sequence[str]:
    return ["eval", "models/tiny", "--data", str(data), "--out", str(out), *more]


def kill_engine_that_logs_to(out: Path) -> None:
    logs = [(pid, os.readlink(f"/proc/{pid}/fd/1")) for pid in processes_about(out)]
    os.kill(next(pid for pid, log in logs if log.endswith("engine.log")), signal.SIGKILL)


def test_an_evaluation_judges_every_sample_once_though_its_engine_is_killed_and_leaves_nothing_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_model: Path
) -> None:
    out = tmp_path / "out"
    data = problems(tmp_path / "set.jsonl", count=20, copies=32)
    version = publish(tiny_model, tmp_path)
    whole = ["eval", str(version), "--model", "models/tiny", "--data", str(data), "--out", str(out)]
    whole += ["--samples", "24", "--concurrency", "8", *SAMPLING]
    killer = when_samples(out, 8, lambda: kill_engine_that_logs_to(out))
    assert main(whole) == 0
    killer.join()
    shown, said = capsys.readouterr()
    assert "engine: was killed by signal 9; starts again" in said
    assert "620 of 640 rows are exact copies of a problem, which counts once: 20 problems" in shown
    assert len(responses(out)) == 20 * 24
    rows = samples_in(out)
    for row in rows:  # sums of one digit, in the order of the file: the verdict is checked by arithmetic
        first, second = divmod(row["problem"], 10)
        assert row["verdict"]["acc"] == float(row["response"].strip() == str(first + second))
        assert row["weight_version"] == "v3.1"  # of the engine that was started again too
    average = sum(row["verdict"]["acc"] for row in rows) / len(rows)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["all"]["metrics"]["avg@24"]["value"] == pytest.approx(average)
    assert 0.2 < average < 1.0
    assert f"{average:.3f}" in shown
    assert processes_about(out) == []

    log = (out / "logs" / "engine.log").read_bytes()
    assert main(whole) == 0  # complete: nothing is started, and the results are the same
    assert capsys.readouterr().out == shown
    assert (out / "logs" / "engine.log").read_bytes() == log

    assert main([*whole, "--temperature", "0.5"]) == 2
    assert "was begun with temperature = 1.0 (now 0.5)" in capsys.readouterr().err
    assert samples_in(out) == rows


def test_a_killed_evaluation_leaves_no_process_and_goes_on_to_what_it_would_have_been(
    tmp_path: Path, engine: Engine
) -> None:
    data = problems(tmp_path / "set.jsonl", count=6)
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    more = [*LONG, "--samples", "16", "--engine", engine.url]
    process = subprocess.Popen([sys.executable, "-m", "sluice.cli", *command(data, cut, *more)], cwd=ROOT)
    try:
        wait_for_samples(cut, 8)
    finally:
        process.kill()
        process.wait()
    wait_until_gone(cut)
    before = samples_in(cut)
    assert 8 <= len(before) < 96
    with (cut / "samples.jsonl").open("a") as file:
        file.write('{"problem": 39, "sam')  # what a death in the middle of a write leaves
    assert main(command(data, cut, *more)) == 0
    assert samples_in(cut)[: len(before)] == before
    assert main(command(data, whole, *more)) == 0
    assert responses(cut) == responses(whole)
    assert len(responses(whole)) == 96


def test_the_others_take_over_from_a_dead_engine_and_without_any_the_error_is_clear_and_the_rest_can_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: Engine, tiny_model: Path
) -> None:
    data = problems(tmp_path / "set.jsonl", count=6)
    out = tmp_path / "out"
    asked = command(data, out, *LONG, "--samples", "16", "--engine-wait-seconds", "0.2")
    with running_engines(tiny_model, 2) as (stays, dies):
        killers = [when_samples(out, 8, dies.kill), when_samples(out, 40, stays.kill)]
        assert main([*asked, "--engine", stays.url, "--engine", dies.url]) == 1
        for killer in killers:
            killer.join()
    message = capsys.readouterr().err
    assert "no engine is left" in message
    assert stays.url in message
    assert dies.url in message
    stored = samples_in(out)
    assert 40 <= len(stored) < 96
    assert f"{len(stored)} of 96 samples are in {out / 'samples.jsonl'}; the same command goes on" in message
    assert processes_about(out) == []
    assert main([*asked, "--engine", engine.url]) == 0
    assert len(responses(out)) == 96


def test_an_engine_that_gets_other_weights_in_the_middle_ends_the_evaluation_and_none_of_theirs_is_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: Engine
) -> None:
    def serve_as(version: str) -> None:
        httpx.post(f"{engine.url}/update_weight_version", json={"new_version": version}).raise_for_status()

    data = problems(tmp_path / "set.jsonl", count=6)
    out = tmp_path / "out"
    changer = when_samples(out, 8, lambda: serve_as("v3.1"))
    try:
        assert main(command(data, out, *LONG, "--samples", "16", "--engine", engine.url)) == 2
    finally:
        changer.join()
        serve_as("default")
    said = capsys.readouterr().err
    assert f"--engine {engine.url}: serves weights 'v3.1', and this evaluation is of 'default'" in said
    assert {row["weight_version"] for row in samples_in(out)} == {"default"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--samples", "0"], "--samples = 0: must be at least 1"),
        (["--top-p", "1.5"], "--top-p = 1.5: must be at most 1"),
        (["--row-format", "parquet"], "--row-format = 'parquet': must be one of"),
        (["--map-key", "response"], "--map-key response: write KEY=COLUMN"),
        (["--prompt-format", "chat"], "set --prompt-format = 'raw' or take a chat model"),
        (["--max-prompt-length", "2"], "raise it"),
        (["--model", "models/tiny"], "--model models/tiny: models/tiny is a model itself"),
        (["--engine", "http://127.0.0.1:1"], "engine at http://127.0.0.1:1 does not answer /model_info"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    data = problems(tmp_path / "set.jsonl", count=2)
    assert main(command(data, tmp_path / "out", *SAMPLING, *more)) in (1, 2)
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_data_source_that_no_verifier_judges_is_refused_before_anything_is_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: Engine
) -> None:
    data = problems(tmp_path / "set.jsonl", count=2)
    out = tmp_path / "out"
    assert main(command(data, out, *SAMPLING, "--engine", engine.url, "--verifier", "nonesuch")) == 2
    assert "--verifier nonesuch: problem 0, ground truth '0': no verifier for data source" in capsys.readouterr().err
    assert samples_in(out) == []
