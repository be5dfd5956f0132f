"""Who may use the engine: many groups at once, or one that must be alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.rollout import metrics


class Gate:
    """Shared and exclusive use. Whoever waits to be alone holds newcomers back, so its turn comes."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._changed = asyncio.Condition()
        self._inside = 0
        self._alone = 0
        """How many are alone or wait to be: at most one of them is inside."""

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Use the engine beside others."""
        if self._alone:
            async with self._changed:
                with metrics.waiting(self._run_id, "engine_gate"):
                    await self._changed.wait_for(lambda: self._alone == 0)
        self._inside += 1
        try:
            yield
        finally:
            await self._leave(alone=0)

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Use the engine alone: waits until everybody has left."""
        async with self._changed:
            self._alone += 1
            try:
                with metrics.waiting(self._run_id, "engine_alone"):
                    await self._changed.wait_for(lambda: self._inside == 0)
            except asyncio.CancelledError:
                self._alone -= 1
                self._changed.notify_all()
                raise
            self._inside += 1
        try:
            yield
        finally:
            await self._leave(alone=1)

    async def _leave(self, alone: int) -> None:
        async with self._changed:
            self._inside -= 1
            self._alone -= alone
            self._changed.notify_all()
