"""The processes of one trainer, and how they keep in step. Every method is a collective call.

Each micro-batch is trained by one replica: a single rank or, with sequence parallelism, several consecutive ones.
"""

from __future__ import annotations

import datetime
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from services.trainer.sequence import SequenceGroup
from sluice.errors import SluiceError, TransientError

T = TypeVar("T")


class Ranks:
    """All ranks of this trainer. Small Python values go over gloo, also when gradients go over NCCL.

    `seconds`: longest time that they wait for one another in a group made here.
    """

    def __init__(self, rank: int, world_size: int, seconds: float = 1800.0) -> None:
        self.rank, self.world_size = rank, world_size
        self.sequence: SequenceGroup | None = None
        """The ranks of this one's replica, where there are several."""
        self._timeout = datetime.timedelta(seconds=seconds)
        self._over_nccl = world_size > 1 and dist.get_backend() != "gloo"
        self._group: Any = dist.new_group(backend="gloo", timeout=self._timeout) if self._over_nccl else None

    def divide(self, sequence_parallel: int) -> None:
        """Let so many ranks at a time share their micro-batches; it divides their number."""
        if sequence_parallel == 1:
            return
        for start in range(0, self.world_size, sequence_parallel):  # every rank takes part in making every group
            members = list(range(start, start + sequence_parallel))
            tensors = dist.new_group(members, timeout=self._timeout)
            objects = dist.new_group(members, timeout=self._timeout, backend="gloo") if self._over_nccl else tensors
            if self.rank in members:
                self.sequence = SequenceGroup(sequence_parallel, self.rank - start, tensors, objects)

    @property
    def replicas(self) -> int:
        """How many there are."""
        return self.world_size // (self.sequence.size if self.sequence else 1)

    @property
    def replica(self) -> int:
        """The one that this rank is in."""
        return self.rank // (self.sequence.size if self.sequence else 1)

    @property
    def leads(self) -> bool:
        """Whether this rank is the first of its replica, which speaks for it."""
        return self.sequence is None or self.sequence.index == 0

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

    def gather_replicas(self, value: T) -> list[T]:
        """The values of the first rank of each replica, on every rank."""
        return self.gather(value)[:: self.world_size // self.replicas]

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
