"""How large what a run stores may become: what its streams, and the server's messages, must have room for."""

from __future__ import annotations

from sluice.config import RunSpec
from sluice.errors import ConfigError
from sluice.wire.payload import MAX_MESSAGE_BYTES

BYTES_PER_TOKEN = 7
"""Of a stored rollout: a token id of three bytes, a float32 log-prob."""
BYTES_PER_ROLLOUT = 256
"""Of a stored rollout beside its tokens: names, spans, headers."""
HEADER_BYTES = 4096
"""Of any message: the server counts its headers too."""


def rollout_room(spec: RunSpec) -> int:
    """Bytes of a stored rollout at its longest."""
    tokens = spec.data.max_prompt_length + spec.rollout.max_response_length
    return tokens * BYTES_PER_TOKEN + BYTES_PER_ROLLOUT


def message_room(spec: RunSpec) -> int:
    """Bytes of the largest message that carries rollouts: those of an attempt share messages of a limited size."""
    return min(spec.rollout.group_size * rollout_room(spec), MAX_MESSAGE_BYTES) + HEADER_BYTES


def check_message_room(spec: RunSpec, max_payload: int) -> None:
    """Raises: ConfigError: the NATS server, which takes messages of `max_payload` bytes, may refuse its rollouts."""
    if (message := message_room(spec)) > max_payload:
        raise ConfigError(
            f"rollouts of rollout.max_response_length = {spec.rollout.max_response_length} tokens, "
            f"rollout.group_size = {spec.rollout.group_size} to a group, take messages of up to {message} bytes; "
            f"the NATS server takes messages of {max_payload}: raise the server's max_payload, or lower one of the two"
        )
