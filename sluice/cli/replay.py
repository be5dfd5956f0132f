"""`sluice replay`: recorded groups under another verifier or filter rule, or trained again, and what comes out."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sluice.algorithms.dynamic_sampling import drop_reason
from sluice.cli.connection import At, NatsUrl, RunId, connect, nats_address, wait_for
from sluice.cli.replay_training import Again, train_again
from sluice.client import RunsClient
from sluice.config import FilterConfig, parse_run_spec
from sluice.errors import ConfigError
from sluice.group_views import GroupDetailView, RolloutView
from sluice.types import FinishReason, Group, GroupStatus, PolicyVersion, RolloutSummary, VerdictKind

PARALLEL = 16
RIGHT = 0.5
"""An outcome above this counts as right in the table."""

Verifier = Annotated[str | None, typer.Option(help="Judge the stored responses again with this verifier.")]
Metric = Annotated[str | None, typer.Option(help="Compare outcomes by acc, score or reward.")]
NoFilter = Annotated[bool, typer.Option("--no-filter", help="Keep every group that has its verdicts.")]
Last = Annotated[int, typer.Option(min=1, help="Look at so many groups, the newest.")]
Train = Annotated[
    bool, typer.Option("--train", help="Train its batches again in one process, and compare step by step.")
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="STEP|FOLDER", help="With --train: start at this checkpoint, or at 0, the model."),
]
Tolerance = Annotated[float, typer.Option(min=0, help="With --train: of the loss and the other metrics of a step.")]
WeightsTolerance = Annotated[float, typer.Option(min=0, help="With --train: relative, over all weights of a version.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass
class Changes:
    """What would be different; counted over groups and, for a verifier, over rollouts."""

    groups: int = 0
    kept_before: int = 0
    kept_after: int = 0
    decisions: Counter[str] = field(default_factory=Counter)
    """"before → after" of groups whose fate changes."""
    rollouts_judged: int = 0
    rollouts_not_stored: int = 0
    """Their group was dropped, or a checkpoint let them go: they keep their recorded verdict."""
    wrong_to_right: int = 0
    right_to_wrong: int = 0
    failed: int = 0


def replay(  # noqa: PLR0913, PLR0917  # an option each: typer reads the signature
    run: RunId,
    verifier: Verifier = None,
    metric: Metric = None,
    no_filter: NoFilter = False,
    last: Last = 1000,
    train: Train = False,
    start: From = None,
    tolerance: Tolerance = 1e-5,
    weights_tolerance: WeightsTolerance = 1e-6,
    json_: Json = False,
    at: At = None,
    nats_url: NatsUrl = None,
) -> None:
    """Show what another verifier or filter rule would have made of a run's groups, or train it again. Changes nothing.

    With --train it ends with 0 if losses, metrics, batches and weights agree, and with 1 if they do not.
    """
    changed = bool(verifier or metric or no_filter)
    if train == changed or (start and not train):
        raise ConfigError("give --train (and --from), or one of --verifier NAME, --metric NAME and --no-filter")
    if train:
        again = Again(run, start, tolerance, weights_tolerance, json_)
        raise typer.Exit(train_again(again, nats_address(nats_url, at)))
    changes = wait_for(_replay(run, verifier, metric, no_filter, last, at))
    print(json.dumps(_fields(changes))) if json_ else _show(run, changes)


async def _replay(
    run_id: str, verifier: str | None, metric: str | None, no_filter: bool, last: int, at: str | None
) -> Changes:
    async with connect(at) as client:
        run = await client.get(run_id)
        spec = parse_run_spec(run.spec or {})
        groups = await _stored(client, run_id, run.counts.issued, last)
    fields = spec.filter.model_dump() | {"enable": spec.filter.enable and not no_filter}
    fields |= {"metric": metric, "allow_shaped_metric": True} if metric else {}
    rule = FilterConfig.model_validate(fields)
    verdicts = await asyncio.to_thread(_judge, groups, verifier) if verifier else {}
    return compare(groups, spec.filter, rule, verdicts)


async def _stored(client: RunsClient, run_id: str, issued: int, last: int) -> list[GroupDetailView]:
    """Details of the newest groups that have come back."""
    room = asyncio.Semaphore(PARALLEL)

    async def detail(n: int) -> GroupDetailView:
        async with room:
            return await client.group(run_id, n)

    found = await asyncio.gather(*(detail(n) for n in range(max(0, issued - last), issued)))
    return [group for group in found if group.rollouts]


Verdicts = dict[tuple[int, int], dict[str, Any]]
"""(group, rollout) -> a line of `sluice verify`."""


def compare(
    groups: Sequence[GroupDetailView], before: FilterConfig, after: FilterConfig, verdicts: Verdicts
) -> Changes:
    """Decide every group by both rules, the second time with the new verdicts where there are any."""
    changes = Changes(groups=len(groups))
    for view in groups:
        recorded = _group(view, {})
        again = _group(view, verdicts)
        _count_rollouts(changes, recorded, again, view, verdicts)
        fates = [str(drop_reason(group, rule) or "kept") for group, rule in ((recorded, before), (again, after))]
        changes.kept_before += fates[0] == "kept"
        changes.kept_after += fates[1] == "kept"
        if fates[0] != fates[1]:
            changes.decisions[f"{fates[0]} → {fates[1]}"] += 1
    return changes


def _count_rollouts(changes: Changes, recorded: Group, again: Group, view: GroupDetailView, verdicts: Verdicts) -> None:
    for i, (old, new) in enumerate(zip(recorded.rollouts, again.rollouts, strict=True)):
        if (view.n, i) not in verdicts:
            changes.rollouts_not_stored += bool(verdicts)
            continue
        changes.rollouts_judged += 1
        if new.verdict is not VerdictKind.SCORED:
            changes.failed += 1
            continue
        changes.wrong_to_right += old.acc < RIGHT < new.acc
        changes.right_to_wrong += new.acc < RIGHT < old.acc


def _group(view: GroupDetailView, verdicts: Verdicts) -> Group:
    rollouts = tuple(_rollout(rollout, verdicts.get((view.n, i))) for i, rollout in enumerate(view.rollouts))
    scored = all(rollout.verdict is VerdictKind.SCORED for rollout in rollouts)
    status = GroupStatus.SCORED if scored else GroupStatus.VERIFIER_FAILED
    return Group("", view.n, "", status, rollouts, "", "", 0, 0.0, 0.0)


def _rollout(view: RolloutView, verdict: dict[str, Any] | None) -> RolloutSummary:
    kind, acc, score = (verdict["kind"], verdict["acc"], verdict["score"]) if verdict else _recorded(view)
    return RolloutSummary(
        view.sequences,
        b"",
        VerdictKind(kind),
        float(acc or 0.0),
        float(score or 0.0),
        view.shaping,
        view.length,
        FinishReason(view.finish_reason),
        PolicyVersion.parse(view.oldest_version),
        PolicyVersion.parse(view.newest_version),
    )


def _recorded(view: RolloutView) -> tuple[str, float | None, float | None]:
    return view.verdict, view.acc, view.score


def _judge(groups: Sequence[GroupDetailView], verifier: str) -> Verdicts:
    """Verdicts of the verifier's own process over all responses that are still stored."""
    rows = list(_rows(groups))
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "responses.jsonl", Path(folder) / "verdicts.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for _, row in rows), encoding="utf-8")
        # A process of its own: the verifiers belong to the reward service, which only its own package imports.
        command = [sys.executable, "-m", "services.reward", "verify", str(source), "--verifier", verifier]
        done = subprocess.run([*command, "--out", str(out)], check=False, capture_output=True, text=True)
        if done.returncode > 1 or not out.exists():
            raise ConfigError(f"--verifier {verifier}: {done.stderr.strip().rpartition(': ')[2] or done.returncode}")
        lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return {key: line for (key, _), line in zip(rows, lines, strict=True)}


def _rows(groups: Sequence[GroupDetailView]) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    for group in groups:
        for i, rollout in enumerate(group.rollouts):
            if rollout.text is not None:
                yield (
                    (group.n, i),
                    {
                        "id": f"{group.n}/{i}",
                        "prompt": group.prompt,
                        "response": rollout.text,
                        "ground_truth": group.ground_truth,
                        "data_source": group.data_source,
                        "extra_info": json.loads(group.extra_info or "{}"),
                    },
                )


def _fields(changes: Changes) -> dict[str, Any]:
    return vars(changes) | {"decisions": dict(changes.decisions)}


def _show(run: str, c: Changes) -> None:
    table = Table(title=f"{run}: {c.groups} groups again", title_justify="left", show_header=False)
    rate = [f"{kept / c.groups:.3f}" if c.groups else "-" for kept in (c.kept_before, c.kept_after)]
    table.add_row("kept", f"{c.kept_before} → {c.kept_after} (keep rate {rate[0]} → {rate[1]})")
    for change, count in sorted(c.decisions.items()):
        table.add_row(change, str(count))
    if c.rollouts_judged or c.rollouts_not_stored:
        table.add_row("rollouts judged again", f"{c.rollouts_judged}; {c.rollouts_not_stored} not stored any more")
        table.add_row("wrong → right, right → wrong", f"{c.wrong_to_right}, {c.right_to_wrong}")
        table.add_row("failed verdicts", str(c.failed))
    Console(width=120).print(table)
