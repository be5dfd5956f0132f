"""What a response's length does to it: a punishment in its reward, or no loss at all. Pure functions of a rollout."""

from __future__ import annotations

from sluice.types import FinishReason


def overlong_penalty(length: int, max_response_length: int, buffer: int, factor: float) -> float:
    """Soft overlong punishment (DAPO, eq. 13, with a factor): 0 up to the buffer, then linear down to `-factor`.

    The buffer is the last `buffer` tokens before `max_response_length`. The result never passes `-factor`, also when a
    response is longer than `max_response_length`. It is added to the outcome and kept apart from it.

    Args:
        length: response tokens, the end token included.
        max_response_length: tokens a response may have.
        buffer: tokens over which the penalty grows; 0 < buffer < max_response_length.
        factor: penalty of a response that fills the buffer; ≥ 0.

    Raises:
        ValueError: an argument is out of its range.
    """
    if not 0 < buffer < max_response_length:
        raise ValueError(f"overlong buffer is {buffer}; it must be above 0 and below max_response_length")
    if length < 0 or factor < 0:
        raise ValueError(f"length {length} and overlong factor {factor} must not be negative")
    excess = length - (max_response_length - buffer)
    if excess <= 0:
        return 0.0
    return -factor * (min(excess, buffer) / buffer)


def trained_tokens(length: int, finish_reason: FinishReason, overlong_filtering: bool) -> int:
    """Response tokens that have a loss: all of them, or none of a truncated response under overlong filtering.

    A filtered response still counts in the mean and the deviation of its group, so the others are compared with it; it
    is in no denominator of the loss.

    Source: DAPO, section 3.4 (overlong filtering), which leaves the group's statistics open.
    """
    return 0 if overlong_filtering and finish_reason is FinishReason.LENGTH else length
