"""Who may call which route, and the count of calls: SGLang's two keys and three levels."""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse

from services.engine.metrics import EngineMetrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

READY_ROUTE = "/ready"
OPEN_PREFIXES = ("/health", "/metrics")
"""Whatever begins so is open, and so is READY_ROUTE: SGLang's own rule. Its `/ping` needs the key."""
NORMAL_ROUTES = frozenset(
    {"/generate", "/model_info", "/get_model_info", "/server_info", "/get_server_info", "/v1/loads", "/ping"}
)


@dataclass(frozen=True)
class Keys:
    """The bearer keys; an empty one is not set."""

    api_key: str
    admin_api_key: str

    def needed_for(self, path: str) -> str:
        """The key a call of `path` must bring, empty for none.

        Normal routes need the api key when one is set. Control routes are open when no key is set, need the one
        that is set, and need the admin key when both are.
        """
        if path == READY_ROUTE or path.startswith(OPEN_PREFIXES):
            return ""
        if path in NORMAL_ROUTES:
            return self.api_key
        return self.admin_api_key or self.api_key


class Access:
    """ASGI middleware that answers 401 to a call without its route's key, and counts requests and responses."""

    def __init__(self, app: Application, keys: Keys, paths: frozenset[str], metrics: EngineMetrics) -> None:
        self._app = app
        self._keys = keys
        # Only known paths become label values: a scanner must not be able to invent them.
        self._paths = paths
        self._metrics = metrics

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        endpoint = scope["path"] if scope["path"] in self._paths else "other"
        self._metrics.http_requests.labels(endpoint, scope["method"]).inc()

        async def counting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.http_responses.labels(str(message["status"])).inc()
            await send(message)

        with self._metrics.http_active.track_inprogress():
            if self._admits(scope):
                await self._app(scope, receive, counting_send)
            else:
                refusal = JSONResponse({"error": "Unauthorized"}, status_code=401)
                await refusal(scope, receive, counting_send)

    def _admits(self, scope: Message) -> bool:
        needed = self._keys.needed_for(scope["path"])
        given: bytes = dict(scope["headers"]).get(b"authorization", b"")
        return not needed or hmac.compare_digest(given, f"Bearer {needed}".encode())
