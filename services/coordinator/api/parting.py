"""What callers hear of a coordinator that ends while it has their request in hand."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.coordinator.api.problems import UnavailableError, answer


class PartingWords:
    """Ends a request that the server cuts off: with 503 if nothing was said yet, else with the end of its stream.

    Left alone, the server takes that for a fault of ours: it logs a traceback, and answers 500, which ends a watch.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if begun:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                fault = UnavailableError("this coordinator is being stopped; ask again, for another one answers then")
                await answer(Request(scope), fault)(scope, receive, send)
