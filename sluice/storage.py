"""Whether a folder can be written, asked before anything depends on it, and what a disk's refusal means."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from sluice.errors import ConfigError

PROBE_BYTES = 1 << 20
"""Room without which nothing of use can be stored."""
_REMEDIES = {
    errno.ENOSPC: "make room on it",
    errno.EDQUOT: "make room on it, or ask for a larger quota",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "mount it writable",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.ENOTDIR: "remove the file that is in the way",
    errno.EEXIST: "remove the file that is in the way",
}


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What nothing but a disk answers."""


def check_writable(folder: Path, knob: str) -> None:
    """Make `folder` if it is not there, and see that PROBE_BYTES can be written into it.

    Raises:
        ConfigError: that fails; the line names `knob`, which chose the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        remedy = ", or ".join(filter(None, (_REMEDIES.get(error.errno or 0), "choose another folder")))
        raise ConfigError(f"{knob}={folder}: {error.strerror or error}; {remedy}") from None


def disk_fault(error: OSError) -> str | None:
    """One line if the disk refused, so that a person has to act; None for any other error of the system."""
    refused = error.errno in _DISK or (isinstance(error, PermissionError) and error.filename is not None)
    return f"{error.filename or 'a file'}: {_words(error)}" if refused else None


def _words(error: OSError) -> str:
    said = error.strerror or str(error)
    return f"{said}; {_REMEDIES[error.errno]}" if error.errno in _REMEDIES else said
