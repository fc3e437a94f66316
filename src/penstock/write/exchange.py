"""Swap two folders in one step, where the operating system can.

Used by `place` for overwriting, so that readers see the old dataset or the new one and never none. Knows Linux's
`renameat2` and macOS's `renamex_np`; everywhere else, and on filesystems that refuse, it says that it did not.
"""

from __future__ import annotations

import os
import sys

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h
_RENAME_SWAP = 2  # macOS sys/stdio.h; the same number by chance


def exchange(one: str, other: str) -> bool:
    """Swap what two local paths name, atomically; False where that is not possible, and then nothing has changed."""
    import ctypes

    a, b = os.fsencode(one), os.fsencode(other)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if sys.platform.startswith("linux"):
            return bool(libc.renameat2(_AT_FDCWD, a, _AT_FDCWD, b, _RENAME_EXCHANGE) == 0)
        if sys.platform == "darwin":
            return bool(libc.renamex_np(a, b, _RENAME_SWAP) == 0)
    except (OSError, AttributeError, TypeError):  # no such function in this libc; TypeError: CDLL(None) on Windows
        return False
    return False
