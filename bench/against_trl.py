"""The demo beside TRL: the same model, problems and settings on the same machine, one after the other.

    python bench/against_trl.py                 both sides, 20 training steps each: about 5 minutes on two quiet cores
    python bench/against_trl.py --rounds 2      twice, the other side first the second time, each round a seed further
    python bench/against_trl.py --only sluice   one side anew, beside the other side's last figures
    python bench/against_trl.py --steps 2       does it still run?

TRL is GRPOTrainer with loss "dapo" in the fastest form that was found for it: eager attention, float32 weights under
bfloat16 autocast, all rollouts of a step in one piece, no gradient checkpointing, and the cores and the allocator
settings that Sluice gives its own processes. It has an environment of its own, made once in artifacts/bench/trl-venv
(1.2 GB), which is why this is not one of `make bench`'s benchmarks. Needs 10 GB of memory.

Both sides take learning rate, batch, clip range, lengths, stop tokens and seed from the run file, and a reward is the
mean over all sampled groups of a step. TRL's problems are drawn afresh, sums and products half and half; Sluice takes
the same problems from its table. What stays different: TRL has no dynamic sampling, so it also trains on groups that
teach nothing, and it samples and trains in turns. Clocks start when each side's training does, after it has loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.harness import ROOT, TABLE_WIDTH, machine, short, versions
from sluice.cli.demo import make_model
from sluice.cli.resolve import resolve
from sluice.config import RunSpec, load_run_spec
from sluice.data.model_files import stop_token_ids
from sluice.errors import SluiceError
from sluice.local.stack import TORCH_ENVIRONMENT
from sluice.models.arithmetic import WORKED_EXAMPLE

NAME = "against-trl"
RUN_FILE = Path("configs/demo.toml")
FOLDER = Path("artifacts/bench")
RESULT = FOLDER / "against_trl.json"
VENV = FOLDER / "trl-venv"
REQUIREMENTS = ("torch==2.13.0", "trl==1.16.0", "transformers==5.24.0", "accelerate==1.15.0", "datasets==5.2.0")
# As many as Sluice's engine and trainer use together.
THREADS = 2
TRL_ENVIRONMENT = {**TORCH_ENVIRONMENT, "OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1"}
DEADLINE_SECONDS = 1800
QUIET_LOAD = 1.0
SIDES = ("trl", "sluice")
FIGURES = {
    "seconds_to_reward_085": "seconds to reward 0.85",
    "seconds_20_steps": "seconds for 20 steps",
    "reward_first": "reward, first step",
    "reward_last5_mean": "reward, mean of last 5",
}
READING = (
    "Ratio: TRL / Sluice, so above 1 Sluice needs less. Reward 0.85 is a mean of 5 steps. Rounds: medians. "
    "Two seeds of TRL alone lie a tenth apart; a smaller difference says nothing."
)

Turn = dict[str, Any]
"""What one side measured in one round."""
Measured = dict[str, Any]
"""A side's turns, and when, on which machine and under which load they were measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="turns of each side (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round (default 1)")
    parser.add_argument("--steps", type=int, default=20, help="training steps (default 20)")
    parser.add_argument("--only", choices=SIDES, help="run this side, keep the other's last figures")
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.steps) < 1:
        parser.error(f"--rounds {arguments.rounds}, --steps {arguments.steps}: both must be at least 1")
    os.chdir(ROOT)  # the paths in run files and of models start here
    try:
        compare(arguments)
    except SluiceError as error:
        sys.exit(f"{NAME}: {error}")


def compare(arguments: argparse.Namespace) -> None:
    """Run the sides in turns, and show and store what they measured.

    Raises:
        SluiceError: a side or TRL's environment failed; the turns before it are stored.
    """
    begin = machine()
    if warning := noise(begin):
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    make_model(Path(load_run_spec(RUN_FILE).model.path))
    chosen = [arguments.only] if arguments.only else list(SIDES)
    if "trl" in chosen:
        prepare_environment(ROOT / VENV)
    sides = last_figures(RESULT)
    # Only now: a side that fails before its first turn must not take the last figures with it.
    fresh: dict[str, Measured] = {}
    for side, seed in order(chosen, arguments.rounds, arguments.seed):
        print(f"\n{side}: {arguments.steps} training steps, seed {seed}", flush=True)
        turn = RUNNERS[side]([f"trainer.seed={seed}", f"trainer.total_steps={arguments.steps}"])
        now = datetime.now(UTC).isoformat(timespec="seconds")
        sides[side] = fresh.setdefault(side, {"measured_at": now, "machine": begin, "turns": []})
        sides[side]["turns"].append({"seed": seed, **turn})
        _store(sides)
    show(sides)


def order(sides: Sequence[str], rounds: int, seed: int) -> Iterator[tuple[str, int]]:
    """Who runs with which seed: in each round every side once, and another side begins."""
    for at in range(rounds):
        first = at % len(sides)
        for side in [*sides[first:], *sides[:first]]:
            yield side, seed + at


def problems(seed: int, count: int) -> list[dict[str, str]]:
    """`count` sums of 1..9 and products of 2..9, one as likely as the other, with their answers."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        adds = draw.choice(("add", "multiply")) == "add"
        least = 1 if adds else 2
        a, b = draw.randint(least, 9), draw.randint(least, 9)
        sign, answer = ("+", a + b) if adds else ("*", a * b)
        found.append({"prompt": f"{WORKED_EXAMPLE}{a} {sign} {b} =", "answer": str(answer)})
    return found


def trl_settings(spec: RunSpec, output: Path) -> dict[str, Any]:
    """What trl_demo.py reads: the run's own settings, so that the two sides cannot drift apart."""
    rollout, algorithm, optim, trainer = spec.rollout, spec.algorithm, spec.optim, spec.trainer
    return {
        "model": spec.model.path,
        "output": str(output),
        "problems": problems(trainer.seed, trainer.total_steps * trainer.prompts_per_step),
        "stop_token_ids": stop_token_ids(spec),
        "steps": trainer.total_steps,
        "seed": trainer.seed,
        "prompts_per_step": trainer.prompts_per_step,
        **{name: getattr(rollout, name) for name in ("group_size", "max_response_length", "temperature", "top_p")},
        **{name: getattr(algorithm, name) for name in ("clip_ratio_low", "clip_ratio_high")},
        **{name: getattr(optim, name) for name in ("lr", "betas", "eps", "weight_decay", "grad_clip")},
    }


def run_trl(overrides: Sequence[str]) -> Turn:
    """Raises: SluiceError: TRL failed; names its log."""
    folder = FOLDER / "trl"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings, result, log = folder / "settings.json", folder / "result.json", folder / "stderr.log"
    settings.write_text(json.dumps(trl_settings(resolve(RUN_FILE, overrides), folder / "output")), encoding="utf-8")
    command = [str(VENV / "bin/python"), "-m", "bench.trl_demo", str(settings), str(result)]
    with log.open("wb") as errors:
        _call(command, f"TRL; see {log}", stderr=errors, env={**os.environ, **TRL_ENVIRONMENT})
    return _read(result)


def run_sluice(overrides: Sequence[str]) -> Turn:
    """Raises: SluiceError: the demo failed, or left no summary."""
    summary = Path("artifacts") / NAME / "summary.json"
    summary.unlink(missing_ok=True)
    command = [sys.executable, "-m", "sluice.cli", "demo", "--name", NAME, "--config", str(RUN_FILE)]
    command += ["--no-early-stop", "--deadline-seconds", str(DEADLINE_SECONDS)]
    # It ends its services itself when its deadline passes; killed from here, it could not.
    _call([*command, *(f"--set={override}" for override in overrides)], f"Sluice; see {summary.parent / 'logs'}", None)
    return _read(summary)


RUNNERS: Mapping[str, Callable[[Sequence[str]], Turn]] = {"trl": run_trl, "sluice": run_sluice}


def prepare_environment(folder: Path) -> None:
    """TRL's virtual environment in `folder`, made anew unless it has just these packages.

    Raises:
        SluiceError: it cannot be made.
    """
    wanted = f"{' '.join(REQUIREMENTS)} {sys.version_info[:2]} {folder}\n"
    stamp = folder / "stamp"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return
    print(f"making TRL's environment in {folder} (once) ...", flush=True)
    _call([sys.executable, "-m", "venv", "--clear", str(folder)], f"a virtual environment in {folder}")
    command, environment = installer(folder / "bin/python", os.environ)
    _call([*command, *REQUIREMENTS], "the installation of TRL", env=environment)
    stamp.write_text(wanted, encoding="utf-8")


def installer(python: Path, environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command that installs for `python`, without the packages, and its environment: as scripts/setup.sh does."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.is_file():
        return [str(python), "-m", "pip", "install", "--quiet"], dict(environment)
    # uv does not read pip's settings; what the user gave pip in the environment counts for uv too.
    links = environment.get("UV_FIND_LINKS") or environment.get("PIP_FIND_LINKS")
    index = environment.get("UV_DEFAULT_INDEX") or environment.get("PIP_INDEX_URL")
    extra = {name: value for name, value in (("UV_FIND_LINKS", links), ("UV_DEFAULT_INDEX", index)) if value}
    # TRL runs on the CPU here, and the ordinary wheel of torch would bring gigabytes of CUDA for nothing.
    backend = [] if links else ["--torch-backend", "cpu"]
    return [str(uv), "pip", "install", "--quiet", "--python", str(python), *backend], {**environment, **extra}


def last_figures(file: Path) -> dict[str, Measured]:
    """Each side's figures from the last comparison, if there was one."""
    if not file.is_file():
        return {}
    sides: dict[str, Measured] = json.loads(file.read_text(encoding="utf-8"))["sides"]
    return sides


def figure(measured: Measured | None, name: str) -> float | None:
    """Median over the turns; None when there is none, or a turn has no such figure (reward 0.85 not reached)."""
    values = [turn.get(name) for turn in measured["turns"]] if measured else []
    found = [value for value in values if value is not None]
    return statistics.median(found) if found and len(found) == len(values) else None


def ratios(sides: Mapping[str, Measured]) -> dict[str, float | None]:
    """TRL / Sluice of each figure in seconds."""
    names = [name for name in FIGURES if name.startswith("seconds")]
    pairs = {name: [figure(sides.get(side), name) for side in SIDES] for name in names}
    return {name: trl / sluice if trl and sluice else None for name, (trl, sluice) in pairs.items()}


def doubts(sides: Mapping[str, Measured]) -> list[str]:
    """Why the figures should not be believed, in sentences."""
    found = [f"{side}: {text}" for side, measured in sides.items() if (text := noise(measured["machine"]))]
    if len({_runs(measured) for measured in sides.values()}) > 1:
        found.append("the sides have not run the same seeds and steps")
    return found


def noise(begin: Mapping[str, Any]) -> str | None:
    """What is to be said when others were using the machine at the start."""
    load, what = begin["load_at_start"], "others use this machine, and these figures are worthless"
    return f"load average at the start {load}, above {QUIET_LOAD}: {what}" if load > QUIET_LOAD else None


def show(sides: Mapping[str, Measured]) -> None:
    """The comparison as a table, for people."""
    console = Console(soft_wrap=True, highlight=False)
    console.width = max(console.width, TABLE_WIDTH)
    table = Table("", "TRL", "Sluice", "TRL / Sluice", box=None, pad_edge=False)
    quotients = ratios(sides)
    for name, label in FIGURES.items():
        cells = [_cell(figure(sides.get(side), name)) for side in SIDES]
        table.add_row(f"[bold]{label}[/]", *cells, _cell(quotients.get(name)))
    console.print()
    for side, measured in sides.items():
        begin = measured["machine"]
        console.print(f"{side}: {_runs(measured)}, {measured['measured_at']}, {begin['cpu']}, {begin['cores']} cores")
    console.print(table)
    console.print(f"[dim]{READING}[/]")
    for doubt in doubts(sides):
        console.print(f"[bold red]{doubt}[/]")
    console.print(f"figures: {RESULT}")


def _store(sides: Mapping[str, Measured]) -> None:
    settings = {"run_file": str(RUN_FILE), "trl_environment": TRL_ENVIRONMENT, "trl_requirements": REQUIREMENTS}
    body = {"name": NAME, "versions": versions(), "settings": settings, "sides": sides, "ratios": ratios(sides)}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps({**body, "reading": READING}, indent=2) + "\n", encoding="utf-8")


def _call(command: Sequence[str], what: str, timeout: float | None = DEADLINE_SECONDS, **options: Any) -> None:
    try:
        code = subprocess.run(command, check=False, timeout=timeout, **options).returncode
    except subprocess.TimeoutExpired:
        raise SluiceError(f"no end within {timeout} s: {what}") from None
    if code:
        raise SluiceError(f"ended with code {code}: {what}")


def _read(file: Path) -> Turn:
    turn: Turn = json.loads(file.read_text(encoding="utf-8"))
    return turn


def _cell(value: float | None) -> str:
    return "-" if value is None else short(value)


def _runs(measured: Measured) -> str:
    return ", ".join(sorted(f"seed {turn['seed']} × {turn['steps']} steps" for turn in measured["turns"]))


if __name__ == "__main__":
    main()
