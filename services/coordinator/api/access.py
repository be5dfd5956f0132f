"""Who may call: a bearer token, or this machine alone."""

from __future__ import annotations

import hmac
import ipaddress

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from services.coordinator.api.problems import UnauthorizedError
from sluice.errors import ConfigError

_BEARER = HTTPBearer(auto_error=False, description="The deployment's SLUICE_API_TOKEN; not asked for when it has none.")


def check_host(host: str, token: str | None) -> None:
    """Without a token only this machine may call.

    Raises:
        ConfigError: `host` is reachable from outside and there is no token.
    """
    if not token and not _loopback(host):
        raise ConfigError(
            f"SLUICE_API_HOST={host}: without a token the API binds to the loopback address only; "
            f"set SLUICE_API_TOKEN, or SLUICE_API_HOST=127.0.0.1"
        )


class TokenCheck:
    """Dependency of every route under /v1."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    async def __call__(self, credentials: HTTPAuthorizationCredentials | None = Depends(_BEARER)) -> None:  # noqa: B008
        """Raises: UnauthorizedError: a token is configured and the request does not carry it."""
        if self._token is None:
            return
        given = credentials.credentials if credentials else ""
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise UnauthorizedError(
                "the request carries no valid bearer token",
                field="Authorization",
                limit="Bearer <token>",
                knob="SLUICE_API_TOKEN",
            )


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
