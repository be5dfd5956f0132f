"""How long a simulated response takes, as a function of its seed: constant, log-normal with a tail, from a file."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

from sluice.errors import ConfigError

Z_99 = 2.3263478740408408
"""The 99th percentile of a normal distribution, in standard deviations."""
Latency = Callable[[random.Random], float]
"""Draws seconds."""


def parse_latency(text: str) -> Latency:
    """Read `constant:SECONDS`, `lognormal:MEDIAN:P99[:CAP]` or `trace:FILE` (a number of seconds a line).

    Raises:
        ConfigError: it is none of these, or a number is not positive.
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "trace":
            return _trace([float(line) for line in Path(rest).read_text(encoding="utf-8").split()])
        numbers = [float(part) for part in rest.split(":")]
        if min(numbers) <= 0:
            raise ValueError("seconds are above 0")
        match kind, numbers:
            case "constant", [seconds]:
                return lambda rng: seconds
            case "lognormal", [median, p99]:
                return _lognormal(median, p99, math.inf)
            case "lognormal", [median, p99, cap]:
                return _lognormal(median, p99, cap)
    except (OSError, ValueError) as error:
        raise ConfigError(f"latency {text!r}: {error}") from None
    raise ConfigError(f"latency {text!r} is not constant:SECONDS, lognormal:MEDIAN:P99[:CAP] or trace:FILE")


def sample_seconds(latency: Latency, seed: int, i: int) -> float:
    """Seconds that response `i` of the prompt with this seed takes; the same wherever it is asked."""
    return latency(random.Random(f"{seed}/{i}"))


def _lognormal(median: float, p99: float, cap: float) -> Latency:
    if p99 < median:
        raise ValueError(f"the 99th percentile {p99:g} is below the median {median:g}")
    sigma = math.log(p99 / median) / Z_99
    return lambda rng: min(cap, rng.lognormvariate(math.log(median), sigma))


def _trace(seconds: list[float]) -> Latency:
    if not seconds or min(seconds) <= 0:
        raise ValueError("it holds no numbers above 0")
    return lambda rng: rng.choice(seconds)
