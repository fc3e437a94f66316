"""Rows to bytes and back, by pickle.

For programs that named it; the process pool of the engine sends no rows by pickle. Bytes from others must never be
given to it: a pickle can run anything.
"""

from __future__ import annotations

import pickle
from typing import Any

__all__ = ["PickleSerializer"]


class PickleSerializer:
    """Pickles anything that can be pickled."""

    def serialize(self, rows: Any) -> bytes:
        """Return the bytes."""
        return pickle.dumps(rows, pickle.HIGHEST_PROTOCOL)

    def deserialize(self, serialized_rows: bytes) -> Any:
        """Return what `serialize` got; only for bytes of one's own."""
        return pickle.loads(serialized_rows)
