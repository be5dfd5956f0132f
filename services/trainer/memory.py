"""glibc's allocator, set up for a program that makes and frees large tensors all the time."""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
"""Parameters of mallopt(3)."""
PAD_BYTES = 256 << 20


def keep_freed_memory() -> bool:
    """Let the process keep what it frees instead of handing it back page by page; False where there is no glibc.

    By default every large tensor is mapped, zeroed by the kernel and unmapped again: a third of a CPU training step.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return all(
        mallopt(parameter, value) for parameter, value in ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, PAD_BYTES))
    )
