"""Every benchmark runs as `make bench` runs it, on the tiny model, and writes figures that can be true.

They mostly wait for their processes to start, so they all run at once; each test waits for its own.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
SECONDS = 240
RUN_HERE = ("bus", "coordinator", "engine", "scheduling", "step", "train")
Quick = Callable[[str], dict[str, Any]]
"""What `NAME_bench.py --quick` has written."""
TRAIN_SIDES = {"padded loop", "Sluice", "torch, 1 core", "ZeRO-3, 1 core", "ZeRO-3, 2 ranks"}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def quick(output: Path, tiny_model: Path) -> Iterator[Quick]:
    running = {name: start_quick(name, output) for name in RUN_HERE}
    yield lambda name: report_of(name, running[name], output)
    for process in running.values():
        process.terminate()
        process.communicate()


def start_quick(name: str, output: Path) -> subprocess.Popen[str]:
    command = [sys.executable, f"bench/{name}_bench.py", "--quick", "--output", str(output)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def report_of(name: str, process: subprocess.Popen[str], output: Path) -> dict[str, Any]:
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    report: dict[str, Any] = json.loads((output / f"{name}.json").read_text(encoding="utf-8"))
    assert set(report) == {"name", "machine", "versions", "settings", "figures", "ratios", "reading"}
    assert report["name"] == name
    assert set(report["machine"]) == {"cores", "cpu", "load_at_start"}
    assert report["versions"]["torch"]
    for row in report["figures"]:
        assert row in said, "the table for people has every row"
    return report


def median(report: dict[str, Any], row: str, figure: str) -> float:
    value = report["figures"][row][figure]
    assert value["min"] <= value["median"] <= value["max"]
    return float(value["median"])


def test_every_benchmark_says_what_it_measures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(path.stem for path in (ROOT / "bench").glob("*_bench.py"))
    assert {f"{name}_bench" for name in RUN_HERE} < set(names)
    for name in names:
        module = importlib.import_module(f"bench.{name}")
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        with pytest.raises(SystemExit) as ended:
            module.main()
        said = capsys.readouterr().out
        assert ended.value.code == 0
        assert "--quick" in said and "--output" in said
        assert str(module.__doc__).splitlines()[0] in said


def test_the_engine_and_generate_sample_as_many_tokens_when_nothing_stops_them(quick: Quick) -> None:
    report = quick("engine")
    wanted = report["settings"]["groups"] * report["settings"]["group_size"] * report["settings"]["max_new_tokens"]
    for side in ("engine", "generate"):
        assert median(report, f"{side}, exactly 8", "tokens") == wanted
        assert 0 < median(report, f"{side}, stop at newline", "tokens") < wanted
        assert median(report, f"{side}, exactly 8", "CPU-s") > 0
        assert median(report, f"{side}, exactly 8", "nats / token") > 0
    quotient = median(report, "engine, exactly 8", "tokens / CPU-s") / median(
        report, "generate, exactly 8", "tokens / CPU-s"
    )
    assert report["ratios"]["engine / generate, exactly 8, tokens / CPU-s"]["median"] == pytest.approx(quotient)


def test_the_bus_is_measured_beside_other_queues_at_both_sizes(quick: Quick) -> None:
    report = quick("bus")
    for kilobytes in (40, 160):
        assert report["settings"][f"payload_bytes_{kilobytes}_kB"] == pytest.approx(kilobytes * 1000, rel=0.1)
        for side in ("sluice", "raw", "redis"):
            assert median(report, f"{side}, {kilobytes} kB", "server CPU-ms") > 0
        for side in ("raw", "redis", "files"):
            assert report["ratios"][f"sluice / {side}, {kilobytes} kB, round trips"]["median"] > 0


def test_the_queue_and_the_whole_coordinator_are_measured_group_by_group(quick: Quick) -> None:
    report = quick("coordinator")
    queue, process = (report["figures"][f"{side}, 200 live"] for side in ("queue", "process"))
    assert 0 < queue["p50 µs"] <= queue["p99 µs"]
    assert queue["p50 µs"] < process["p50 µs"] < 10_000
    assert process["batches"] >= 2


def test_simulated_runs_are_measured_beside_what_their_rules_allow(quick: Quick) -> None:
    report = quick("scheduling")
    for row in ("η = 0", "η = 1", "streaming, keep 0.5", "rounds, keep 0.5"):
        assert 0 < median(report, row, "model / measured") <= 1.0, "no run is faster than its model"
    assert median(report, "η = 1", "staleness") == 1
    assert median(report, "streaming, keep 0.5", "staleness") == 0
    assert median(report, "streaming, keep 0.5", "wasted tokens") == 0
    assert median(report, "rounds, keep 0.5", "wasted tokens") > 0
    assert report["ratios"]["speed-up, η = 1 over η = 0"] > 0


def test_a_step_is_split_among_the_trainers_phases_and_the_cores_among_the_services(quick: Quick, output: Path) -> None:
    report = quick("step")
    figures = report["figures"]
    phases = [row["mean"] for name, row in figures.items() if name.startswith("trainer: ")]
    assert len(phases) == 5
    assert sum(phases) == pytest.approx(figures["step"]["mean"], rel=0.01)
    for name in ("worker: weight sync", "coordinator: last group to batch", "one group: generate", "one group: reward"):
        assert median(report, name, "seconds") > 0
    for service in ("engine-0", "rollout-0", "trainer-0", "coordinator", "reward-0", "nats"):
        assert 0 <= figures[f"CPU: {service}"]["cores"] < report["machine"]["cores"]
    assert figures["CPU: trainer-0"]["CPU-s / step"] > 0
    assert not (output / "step-stack" / "data").exists(), "the run's data are not left on the disk"


def test_all_ways_to_train_the_batch_make_the_same_update(quick: Quick) -> None:
    report = quick("train")
    assert set(report["figures"]) == TRAIN_SIDES
    settings = report["settings"]
    assert settings["groups"] * settings["group_size"] == 16
    norm = median(report, "padded loop", "grad norm")
    loss = median(report, "padded loop", "loss")
    assert norm > 0
    for side in TRAIN_SIDES:
        assert median(report, side, "grad norm") == pytest.approx(norm, rel=1e-3)
        assert median(report, side, "loss") == pytest.approx(loss, rel=1e-3, abs=1e-5)
        assert median(report, side, "peak RSS MiB") > 50
    assert median(report, "Sluice", "tokens computed") < median(report, "padded loop", "tokens computed")
    quotient = median(report, "Sluice", "tokens / s") / median(report, "padded loop", "tokens / s")
    assert report["ratios"]["speed, Sluice / padded loop"]["median"] == pytest.approx(quotient)
