"""The trainer over a real NATS server: what it publishes, checkpoints, purges and tells."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from services.trainer.config import TrainerSettings
from sluice.transport.log import read_stream
from sluice.transport.nats import Bus
from sluice.types import Floors, RunState, StateChange
from sluice.wire import subjects
from tests.servers import free_port
from tests.trainer.running import chain_by_hand, checkpoints, events, lineages, tensors, train, until, versions
from tests.trainer.script import RUN, Script, make_spec

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning"),
    pytest.mark.usefixtures("one_rank"),
]


def documented_metrics() -> set[str]:
    """Our names in the table of metrics."""
    page = (Path(__file__).parent.parent.parent / "docs" / "algorithms.md").read_text(encoding="utf-8")
    rows = [line for line in page.split("## Metrics")[1].split("## ")[0].splitlines() if line.startswith("| ")]
    return {name for row in rows for name in re.findall(r"`([a-z][a-z_0-9]+)`", row.split(" | ")[1])}


METRICS = documented_metrics()


async def test_each_batch_becomes_the_next_version_and_checkpoints_come_when_due(
    bus: Bus, tiny_model: Path, settings: TrainerSettings, tmp_path: Path
) -> None:
    optim = {"lr": 1e-3, "lr_warmup_steps": 4}
    script = Script(bus, make_spec(tiny_model, checkpoint={"interval": 2}, optim=optim))
    await script.create()
    for lengths in (None, [0, 0, 0, 0], None):
        await script.add_batch(lengths=lengths)
    await script.set_state(RunState.STOPPING, record=True)
    assert await train(settings) == 0

    assert await lineages(bus) == [(1, 0)]
    published = await versions(bus)
    assert list(published) == ["v0.1", "v1.1", "v2.1", "v3.1"]
    assert [record.chain for record in published.values()] == [chain_by_hand(script, k) for k in range(4)]
    assert [(c.k, c.chain) for c in await checkpoints(bus)] == [(k, chain_by_hand(script, k)) for k in (2, 3)]
    # a batch without one trainable token makes no update, and is a version all the same
    first, second, third = [await tensors(published[f"v{k}.1"], tmp_path) for k in (1, 2, 3)]
    assert first == second != third
    assert not (settings.weights_dir / RUN / "v0.1").exists()  # weights.keep = 3

    steps = await events(bus, "step")
    assert [(s["step"], s["version"], s["updates"]) for s in steps] == [(0, "v1.1", 1), (1, "v2.1", 0), (2, "v3.1", 1)]
    assert [(s["updates_total"], s["groups_issued"]) for s in steps] == [(1, 2), (1, 4), (2, 6)]
    assert [s["lr"] for s in steps] == [0.25e-3, 0.5e-3, 0.5e-3]  # the second made no update, so it moves no schedule
    manifest = json.loads((settings.checkpoints_dir / RUN / "3.1" / "manifest.json").read_text())
    assert (manifest["k"], manifest["optimizer_updates"], manifest["updated_steps"]) == (3, 2, 2)
    assert steps[0]["trained_tokens"] == sum(r.length for g in script.batches[0].groups for r in g.rollouts)
    assert steps[2]["staleness_max"] == 2
    assert set(steps[1]["seconds"]) == {"wait", "fetch", "train", "publish", "checkpoint", "total"}
    assert REGISTRY.get_sample_value("sluice_trainer_policy_version", {"run": RUN}) == 3


async def test_a_run_with_every_term_of_the_loss_trains_and_reports_what_the_documentation_lists(
    bus: Bus, tiny_model: Path, settings: TrainerSettings
) -> None:
    spec = make_spec(
        tiny_model,
        algorithm={
            "kl_loss_coef": 0.1,
            "entropy_coeff": 0.01,
            "rejection": "token_k1",
            "rejection_upper": 20.0,
            "overlong_filtering": True,
        },
        trainer={"total_steps": 2, "prompts_per_step": 4, "updates_per_step": 2, "epochs_per_step": 2},
    )
    script = Script(bus, spec)
    await script.create()
    await script.add_batch()
    await script.add_batch()
    await script.set_state(RunState.STOPPING, record=True)
    assert await train(settings) == 0
    steps = await events(bus, "step")
    assert [(s["updates"], s["updates_total"]) for s in steps] == [(4, 4), (4, 8)]
    assert all(s["kl_loss"] > 0.0 and 0.0 < s["rejected_token_fraction"] < 1.0 for s in steps)
    assert all(0.0 < s["effective_sample_size"] <= 1.0 and s["overlong_filtered"] == 0 for s in steps)
    assert len(METRICS) > 30
    assert METRICS - steps[0].keys() == set()


async def test_weights_go_over_grpc_when_the_run_says_so(
    bus: Bus, tiny_model: Path, settings: TrainerSettings, tmp_path: Path
) -> None:
    script = Script(bus, make_spec(tiny_model, weights={"transport": "grpc"}, model={"engine_dtype": "bfloat16"}))
    await script.create()
    address = f"127.0.0.1:{free_port()}"
    trainer = asyncio.create_task(train(settings.model_copy(update={"weights_bind": address})))

    async def published() -> bool:
        return "v0.1" in await versions(bus)

    await until(published)
    record = (await versions(bus))["v0.1"]
    assert record.uri == f"grpc://{address}"
    fetched = await tensors(record, tmp_path / "cache")
    assert len(fetched["model.norm.weight"]) == 64 * 2
    assert "lm_head.weight" not in fetched  # tied to the embedding
    await script.set_state(RunState.STOPPED, record=True)
    assert await trainer == 0


async def test_a_pause_is_a_checkpoint_and_resuming_goes_on_from_there(
    bus: Bus, tiny_model: Path, settings: TrainerSettings
) -> None:
    script = Script(bus, make_spec(tiny_model))
    await script.create()
    await script.add_batch()
    await script.set_state(RunState.PAUSED, record=True)
    await script.set_state(RunState.RUNNING, record=True)
    await script.set_state(RunState.PAUSED, record=True)  # nothing is new: no second checkpoint
    await script.add_batch()
    await script.set_state(RunState.STOPPING, record=True)
    assert await train(settings) == 0
    assert [c.k for c in await checkpoints(bus)] == [1, 2]


async def test_a_checkpoint_purges_only_what_the_one_before_it_will_never_replay(
    bus: Bus, tiny_model: Path, settings: TrainerSettings
) -> None:
    script = Script(bus, make_spec(tiny_model, checkpoint={"interval": 1}))
    await script.create()
    await bus.publish(subjects.rollouts("another-run"), b"lies below the floors and is not ours")
    ends = []
    for _ in range(4):
        ends.append(await script.floors())
        await script.add_batch(ends[-1])
    await script.set_state(RunState.STOPPING, record=True)
    assert await train(settings) == 0
    # checkpoints 1, 2, 3, 4: after the last one p = 3, so up to the floors in batch 2
    assert await first_sequence(bus, subjects.ROLLOUTS, subjects.rollouts(RUN)) == ends[2].rollouts + 1
    assert await first_sequence(bus, subjects.GROUPS, subjects.groups(RUN)) == ends[2].groups + 1
    assert await first_sequence(bus, subjects.ROLLOUTS, subjects.rollouts("another-run")) == 1
    assert len(list((settings.checkpoints_dir / RUN).iterdir())) == 2  # checkpoint.keep


async def first_sequence(bus: Bus, stream: str, subject: str) -> int:
    return await anext(sequence async for sequence, _, _ in read_stream(bus, stream, subject))


async def test_a_rollout_stream_three_quarters_full_makes_a_checkpoint_due(
    bus: Bus, tiny_model: Path, settings: TrainerSettings
) -> None:
    script = Script(bus, make_spec(tiny_model))
    await script.create()
    await script.add_batch(floors=Floors(0, rollouts=100))  # a checkpoint gives back whatever there is
    info = await bus.js.stream_info(subjects.ROLLOUTS)
    await bus.js.update_stream(info.config, max_bytes=int(info.state.bytes / 0.8))
    await script.ledger.append(StateChange(RunState.STOPPED, "ends without asking for a checkpoint"))
    assert await train(settings) == 0
    assert [c.k for c in await checkpoints(bus)] == [1]
