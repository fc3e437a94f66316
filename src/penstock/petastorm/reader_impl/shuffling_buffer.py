"""Petastorm's shuffling buffers: rows in, rows out in another order, within a capacity.

For programs that shuffle themselves. Readers of Penstock shuffle by plan (`shuffle_rows=True`), which can be
resumed; the contents of such a buffer cannot.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["NoopShufflingBuffer", "RandomShufflingBuffer"]


class NoopShufflingBuffer:
    """First in, first out, without a limit."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()

    def add_many(self, items: Iterable[Any]) -> None:
        """Add items at the end."""
        self._items.extend(items)

    def retrieve(self) -> Any:
        """Return the oldest item; IndexError where none is left."""
        return self._items.popleft()

    def can_add(self) -> bool:
        """Return True: there is always room."""
        return True

    def can_retrieve(self) -> bool:
        """Return whether there is an item."""
        return bool(self._items)

    @property
    def size(self) -> int:
        """Number of items."""
        return len(self._items)

    def finish(self) -> None:
        """Do nothing: items come out whether more follow or not."""


class RandomShufflingBuffer:
    """Gives out random items while at least `min_after_retrieve` are in, and after `finish` until none is left.

    `add_many` may be called while fewer than the capacity are in, and may exceed it by `extra_capacity` items. Memory
    grows with the items, not with the capacity. `seed` makes the order repeatable.
    """

    def __init__(
        self,
        shuffling_buffer_capacity: int,
        min_after_retrieve: int,
        extra_capacity: int = 1000,
        seed: int | None = None,
    ) -> None:
        if not 0 <= min_after_retrieve <= shuffling_buffer_capacity:
            raise ValueError(
                f"min_after_retrieve must lie between 0 and the capacity {shuffling_buffer_capacity}; "
                f"got {min_after_retrieve}"
            )
        self._capacity, self._least = shuffling_buffer_capacity, min_after_retrieve
        self._most = shuffling_buffer_capacity + extra_capacity
        self._items: list[Any] = []
        self._finished = False
        self._rng = np.random.default_rng(seed)

    def add_many(self, items: Iterable[Any]) -> None:
        """Add items; RuntimeError after `finish`, or where they do not fit into the extra capacity."""
        added = list(items)
        if self._finished:
            raise RuntimeError("add_many() after finish(); no more items were to come")
        if not self.can_add() or len(self._items) + len(added) > self._most:
            raise RuntimeError(
                f"{len(added)} items do not fit beside {len(self._items)}: at most {self._most} in all, and none while "
                f"{self._capacity} are in; check can_add() first, or raise extra_capacity"
            )
        self._items += added

    def retrieve(self) -> Any:
        """Return a random item and remove it; RuntimeError if `can_retrieve()` is False."""
        if not self.can_retrieve():
            raise RuntimeError(f"only {len(self._items)} items are in and more are to come; check can_retrieve() first")
        index = int(self._rng.integers(len(self._items)))
        self._items[index], self._items[-1] = self._items[-1], self._items[index]
        return self._items.pop()

    def can_add(self) -> bool:
        """Return whether there is room, and `finish` was not called."""
        return len(self._items) < self._capacity and not self._finished

    def can_retrieve(self) -> bool:
        """Return whether there are enough items to take one."""
        return len(self._items) >= (1 if self._finished else max(1, self._least))

    @property
    def size(self) -> int:
        """Number of items."""
        return len(self._items)

    def finish(self) -> None:
        """Say that no more items come: the rest may be taken."""
        self._finished = True
