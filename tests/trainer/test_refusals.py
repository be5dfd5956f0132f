"""What is refused before anything starts, in one line that names value, limit and knob."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.trainer.checkpoint import CheckpointManifest
from services.trainer.claim import Claim, Restored, check_claim, wait_for_run
from services.trainer.config import TrainerSettings
from services.trainer.policy import load_policy
from services.trainer.ranks import Ranks
from sluice.config import RunSpec
from sluice.errors import ConfigError
from sluice.transport.nats import Bus
from sluice.types import Checkpoint
from sluice.wire import subjects
from tests.trainer.script import make_spec

pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SLUICE_TRAINER_THREADS", "0", "SLUICE_TRAINER_THREADS=0"),
        ("SLUICE_TRAINER_DEVICE", "tpu", "SLUICE_TRAINER_DEVICE=tpu"),
        ("SLUICE_WEIGHTS_BIND", "nowhere", "SLUICE_WEIGHTS_BIND=nowhere"),
        ("RANK", "3", "RANK=3 must be below WORLD_SIZE=1"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainerSettings.from_environment({name: value})


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"algorithm": {"loss_mode": "gspo"}},
            "loss_agg_mode = 'token-mean'.*set loss_agg_mode = 'seq-mean-token-mean'",
        ),
        ({"algorithm": {"loss_scale_factor": 8.0}}, "loss_scale_factor = 8 .*'seq-mean-token-sum-norm'"),
        ({"algorithm": {"importance_weight_floor": 0.5}}, "floor = 0.5 .*importance_weight_mode = 'mask'"),
        (
            {"algorithm": {"importance_weight_mode": "mask", "importance_weight_floor": 2.0}},
            "floor = 2 must be below importance_weight_cap = 2",
        ),
        (
            {"algorithm": {"importance_weight_cap": None, "importance_weight_level": "sequence"}},
            "importance_weight_level need an importance_weight_cap",
        ),
        ({"algorithm": {"rejection": "token_k2"}}, "rejection = 'token_k2' and rejection_upper = None go together"),
        ({"algorithm": {"rejection_upper": 2.0}}, "rejection = None and rejection_upper = 2.0 go together"),
        (
            {"algorithm": {"rejection": "token_k2", "rejection_upper": 2.0, "rejection_lower": 0.5}},
            "rejection_lower = 0.5 is used by k1",
        ),
        (
            {"algorithm": {"rejection": "seq_mean_k1", "rejection_upper": 0.9}},
            "rejection_upper = 0.9 must be above rejection_lower = 1.11",
        ),
        ({"rollout": {"group_size": 1}, "filter": {"enable": False}}, "group_size = 1 .*choose 'reward' or 'zero'"),
        ({"algorithm": {"singleton_advantage": "zero"}}, "group_size = 4 .*singleton_advantage = 'zero'"),
        ({"checkpoint": {"interval": 4, "keep_every": 10}}, "keep_every = 10 must be a multiple of interval = 4"),
        ({"optim": {"betas": [0.9, 1.0]}}, r"betas = \[0.9, 1.0\] must each be"),
        (
            {"optim": {"lr_scheduler_type": "cosine", "lr_warmup_steps": 100}},
            "lr_warmup_steps = 100 leaves nothing of the run's 100 steps",
        ),
    ],
)
def test_a_run_file_that_contradicts_itself_is_refused_with_value_and_knob(
    sections: dict[str, dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_spec(Path("no-model-is-loaded"), **sections)


def test_the_process_ends_with_code_2_and_one_line_before_torch_is_loaded() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "services.trainer"],
        env={"WORLD_SIZE": "many"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("sluice-trainer: WORLD_SIZE=many:")
    assert ended.stderr.count("\n") == 1


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path = .*holds no config\.json"):
        load_policy(make_spec(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sliding_window": 4}, "attends to a window of 4 tokens, less than .* = 16"),
        ({"final_logit_softcapping": 30.0}, "sets final_logit_softcapping"),
    ],
)
def test_a_model_that_would_be_trained_wrongly_is_refused(
    tiny_model: Path, tmp_path: Path, one_rank: Ranks, change: dict[str, Any], message: str
) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=message):
        load_policy(make_spec(tmp_path / "model"))


def test_attention_without_masks_needs_plain_rows(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"set trainer\.prefix_sharing = false"):
        make_spec(tiny_model, model={"attention": "flash_attention_2"})


def test_ranks_that_share_micro_batches_are_counted_against_ranks_heads_and_rows(
    tiny_model: Path, one_rank: Ranks
) -> None:
    def shared(ranks: int, **fields: Any) -> RunSpec:
        trainer = {"sequence_parallel": ranks, "total_steps": 1, "max_tokens_per_micro_batch": 7}
        return make_spec(tiny_model, trainer=trainer, **fields)

    with pytest.raises(ConfigError, match=r"= 7 × trainer\.sequence_parallel = 2 cannot hold one row .* = 16 tokens"):
        shared(2)
    with pytest.raises(ConfigError, match=r"sequence_parallel = 3 needs model\.attention = 'sdpa'"):
        shared(3, model={"attention": "eager"})
    with pytest.raises(ConfigError, match=r"sequence_parallel = 5 is more than the 4 attention heads of model\.path"):
        load_policy(shared(5))
    manifest = CheckpointManifest("run", 1, 1, "", 9, "", 2, world_size=6)
    claim = Claim("run", shared(3), "", 2, Restored(Checkpoint(1, 1, "1.1", "", ""), manifest, ()))
    with pytest.raises(ConfigError, match=r"must divide .* WORLD_SIZE=4 .* start 3 or a multiple"):
        check_claim(claim, allow_remote_code=False, world_size=4)
    check_claim(claim, allow_remote_code=False, world_size=6)


def test_dropout_of_a_checkpoint_is_switched_off(tiny_model: Path, tmp_path: Path, one_rank: Ranks) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "attention_dropout": 0.1}))
    policy = load_policy(make_spec(tmp_path / "model"))
    assert policy.body.config.attention_dropout == 0.0
    assert policy.body.layers[0].self_attn.attention_dropout == 0.0


async def test_a_run_that_no_coordinator_can_hold_is_left_until_one_can(bus: Bus) -> None:
    bucket = await bus.bucket(subjects.RUNS_BUCKET)

    async def announce(run_id: str, created_at: float, **fields: str) -> None:
        await bucket.put(run_id, json.dumps({"state": "running", "created_at": created_at} | fields).encode())

    async def found() -> str:
        run_id, lease = await wait_for_run(bus, "trainer", 5.0, lambda: asyncio.sleep(0))
        await lease.release()
        return run_id

    await announce("older", 1.0, problem="LEDGER sequence 3: LedgerRecord has format 9")
    await announce("newer", 2.0)
    assert await found() == "newer"
    await announce("older", 1.0)
    assert await found() == "older"
