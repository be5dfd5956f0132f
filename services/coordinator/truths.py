"""Ground truths checked where a run is created: by the verifiers that will judge it, before anything is generated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sluice.config import RunSpec
from sluice.data import PromptTable
from sluice.errors import ConfigError, PermanentError, TransientError
from sluice.telemetry import get_logger
from sluice.types import ScoreItem

TRUTHS = "truths"
"""Key of the data manifest: by whom the ground truths were checked, or why not."""
SHOWN = 5


class TruthCheck:
    """Asks the reward service about the ground truths of a run's prompts.

    Args:
        addresses: the replicas; none: nothing is checked, and the manifest says so.
        seconds: time for one run's data.
    """

    def __init__(self, addresses: Sequence[str], seconds: float) -> None:
        self._addresses, self._seconds = addresses, seconds

    async def facts(self, spec: RunSpec, table: PromptTable, manifests: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """What the data manifest says of the check.

        Args:
            manifests: of earlier runs: what one of them has checked by the same verifiers is not checked again.

        Raises:
            ConfigError: some cannot be judged by; names the first of them by file and row.
            TransientError: the reward service did not answer in time.
        """
        if not spec.reward.check_truths:
            return {"checked": False, "why": "reward.check_truths = false"}
        if not self._addresses:
            why = "SLUICE_REWARD_ADDRESSES is not set on the coordinator"
            get_logger("coordinator").warning("truths_unchecked", why=why)
            return {"checked": False, "why": why}
        from sluice.transport.reward import RewardClient  # brings gRPC along: only for the check

        client = RewardClient(self._addresses, self._seconds, "SLUICE_TRUTH_CHECK_SECONDS")
        try:
            facts = {"checked": True, "verifier": spec.reward.verifier, "by": await client.verifiers()}
            known = ((manifest.get("fingerprint"), manifest.get(TRUTHS)) for manifest in manifests)
            if (table.fingerprint, facts) not in known:
                rows = _distinct(spec, table)
                _refuse(spec, table, rows, await client.check_truths([_item(spec, table, row) for row in rows]))
        except PermanentError as error:
            raise ConfigError(f"the ground truths cannot be checked: {error}; knob: reward.check_truths") from None
        except TransientError as error:
            raise TransientError(f"the ground truths cannot be checked now: {error}") from None
        finally:
            await client.close()
        return facts


def _distinct(spec: RunSpec, table: PromptTable) -> list[int]:
    """The first row of each ground truth that a verifier is to judge by: most sets repeat them a lot."""
    first: dict[tuple[str, str], int] = {}
    for row, source in enumerate(table.sources):
        first.setdefault((spec.reward.verifier or source.data_source, source.ground_truth), row)
    return list(first.values())


def _item(spec: RunSpec, table: PromptTable, index: int) -> ScoreItem:
    row = table.row(index)
    source = spec.reward.verifier or row.data_source
    return ScoreItem(str(index), source, "", "", row.ground_truth, row.extra_info, 0)


def _refuse(spec: RunSpec, table: PromptTable, rows: Sequence[int], faults: Sequence[str]) -> None:
    """Raises: ConfigError: there are faults; each stands for all rows with that ground truth."""
    wrong = {
        (spec.reward.verifier or table.data_source(row), table.row(row).ground_truth): fault
        for row, fault in zip(rows, faults, strict=True)
        if fault
    }
    if not wrong:
        return
    found = [
        f"{source.file}, row {source.row}: {wrong[key]}"
        for source in table.sources
        if (key := (spec.reward.verifier or source.data_source, source.ground_truth)) in wrong
    ]
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise ConfigError(
        f"data.train_files: {len(found)} of {len(table)} ground truths cannot be judged by: "
        f"{'; '.join(found[:SHOWN])}{more}; mend or remove these rows, choose another reward.verifier, or set "
        "reward.check_truths = false: groups of such prompts are then dropped as verifier_failed"
    )
