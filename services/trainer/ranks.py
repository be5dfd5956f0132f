"""The processes of one trainer, and how they keep in step. Every method is a collective call."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sluice.errors import SluiceError, TransientError

T = TypeVar("T")


class Ranks:
    """All ranks of this trainer. Small Python values go over gloo, also when gradients go over NCCL."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self._group: Any = None
        if world_size > 1 and dist.get_backend() != "gloo":
            self._group = dist.new_group(backend="gloo")

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which alone reads the ledger and appends records."""
        return self.rank == 0

    def share(self, value: T | None) -> T:
        """Rank 0's value, on every rank."""
        box: list[Any] = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(box, src=0, group=self._group)
        shared: T = box[0]
        return shared

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def total(self, sums: Tensor) -> Tensor:
        """Sum of a CPU tensor over all ranks."""
        if self.world_size > 1:
            dist.all_reduce(sums, group=self._group)
        return sums

    def agree(self, failure: SluiceError | None) -> None:
        """Go on together or not at all, so that no rank waits in a collective call for one that has failed.

        Raises:
            SluiceError: this rank's own failure, or a TransientError that names the rank that failed.
        """
        failures = self.gather("" if failure is None else str(failure))
        if failure is not None:
            raise failure
        for rank, text in enumerate(failures):
            if text:
                raise TransientError(f"rank {rank} failed: {text}")


def cuda_device(local_rank: int) -> torch.device:
    """This rank's GPU, made current."""
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
