"""How a connection to NATS is opened, and what is said when it is lost and back."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

import nats
from nats.aio.client import Client

from sluice.errors import ConfigError, TransientError
from sluice.secrets import encoded_credentials, redact
from sluice.telemetry import get_logger

RECONNECT_SECONDS = cast(int, 0.25)
"""Between tries to connect again; the client sleeps for any number of seconds, though it asks for whole ones."""


class _LastingClient(Client):
    """Connects again also after an error that the server has named, which the library takes for the end."""

    async def _process_err(self, err_msg: str) -> None:
        error = nats.errors.Error(f"nats: {err_msg.strip(chr(39))}")
        await self._error_cb(error)
        if "permissions violation" not in str(error):  # after all others the server closes the connection
            await self._process_op_err(error)


async def connect(url: str, name: str, seconds: float) -> Client:
    """A client that reconnects for ever.

    Args:
        url: `nats://host:port`, several with commas between.

    Raises:
        TransientError: no server answers at `url` within `seconds`; it may be there soon.
        ConfigError: one does, and refuses the credentials, or has no JetStream.
    """
    log = get_logger("nats")

    async def on_error(error: Exception) -> None:
        """Each failed try to reconnect ends up here; `on_lost` has said all there is to say about those."""
        if str(error) not in faults:
            faults.append(str(error))
        if client.is_connected:
            log.warning("nats_error", error=str(error), url=redact(url))

    async def on_lost() -> None:
        if not client.is_closed:  # the client calls this for our own goodbye too
            log.warning("nats_lost", url=redact(url))

    async def on_back() -> None:
        log.info("nats_back", url=redact(url))

    credentials = encoded_credentials(url)
    client = _LastingClient()
    faults: deque[str] = deque(maxlen=3)
    try:
        async with asyncio.timeout(seconds):
            await client.connect(
                url.split(","),
                name=name,
                user=credentials.user,
                password=credentials.password,
                token=credentials.token,
                error_cb=on_error,
                disconnected_cb=on_lost,
                reconnected_cb=on_back,
                allow_reconnect=True,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_SECONDS,
                connect_timeout=5,
                ping_interval=10,
                max_outstanding_pings=2,
                pending_size=64 << 20,
            )
    except (TimeoutError, OSError, nats.errors.Error) as error:
        await client.close()
        raise _absent(url, seconds, str(error) or "; ".join(faults) or "connection refused") from None
    await _check_jetstream(client, url)
    return client


def _absent(url: str, seconds: float, said: str) -> ConfigError | TransientError:
    text = f"SLUICE_NATS_URL={redact(url)}: no NATS server answers within {seconds:g} s ({said})"
    if "authorization" in said.lower():
        return ConfigError(f"{text}; change the credentials")
    return TransientError(f"{text}; start one, or change the address")


async def _check_jetstream(client: Client, url: str) -> None:
    """See what the server said of itself when we connected; in a cluster JetStream may be on the others."""
    said = client._server_info  # the client has no public name for it
    if said.get("jetstream") or said.get("cluster"):
        return
    await client.close()
    raise ConfigError(
        f"SLUICE_NATS_URL={redact(url)}: the NATS server has no JetStream; start it with --jetstream and a "
        "--store_dir, or change the address"
    )
