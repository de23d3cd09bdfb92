"""Keeping the allocator from returning large buffers to the system after every step."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h of the GNU C library


def keep_freed_memory() -> None:
    """Makes glibc reuse freed memory instead of unmapping it; nothing happens on other systems.

    Activations of tens of megabytes otherwise come as fresh pages from the kernel in every step, which must
    zero and map them: on the CPU that cost more than the arithmetic (docs/performance.md).
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)
