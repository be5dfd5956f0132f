"""The exception tree. Catch only what you can act on; everything else ends the process, and its supervisor restarts it.

SluiceError
├── ConfigError       the user's input is wrong: one line that names field, value, limit and knob; exit code 2 or a 4xx
├── TransientError    may succeed when tried again: retried with back-off until a named deadline
├── PermanentError    will never succeed: recorded with its reason, never retried
│   ├── WireError     a message that cannot be read, or whose content hash is not the one named
│   └── WeightError   a policy version whose manifest, bytes or checksums do not agree
├── FencedError       another process holds the subject now: stop, and start again by reading
├── WaitTimeoutError  a named wait passed its deadline
├── RunFailedError    training cannot go on by itself, which is on record; this process may serve another run
└── DivergedError     NaN or Inf in the loss or the gradient: the run stops before a checkpoint
"""


class SluiceError(Exception):
    """Base of everything Sluice raises on purpose; its text is one line that a user can act on."""


class ConfigError(SluiceError):
    """The user's input is wrong; the text names the field, the value, the limit and the knob."""


class TransientError(SluiceError):
    """A failure that may pass: the caller retries until its own deadline."""


class PermanentError(SluiceError):
    """A failure that will not pass: the caller records it and goes on without retrying."""


class WireError(PermanentError):
    """A message that cannot be decoded, or whose bytes do not have the content hash that was named."""


class WeightError(PermanentError):
    """A policy version whose manifest, bytes and checksums do not agree."""


class FencedError(SluiceError):
    """An append was refused because somebody else wrote since: the holder ends and starts again by reading."""


class WaitTimeoutError(SluiceError):
    """A named wait passed its deadline.

    Args:
        wait: the name that the log, the run's status and the metric show.
        seconds: the deadline that passed.
        knob: the setting that changes it.
    """

    def __init__(self, wait: str, seconds: float, knob: str) -> None:
        super().__init__(
            f"wait {wait!r} passed its deadline of {seconds:g} s; change {knob} or look at who it waits for"
        )
        self.wait, self.seconds, self.knob = wait, seconds, knob


class DivergedError(SluiceError):
    """NaN or Inf in the loss or the gradient norm; names the groups of the batch."""


class RunFailedError(SluiceError):
    """Training cannot go on by itself, which is on record: the run has failed, this process may serve another."""
