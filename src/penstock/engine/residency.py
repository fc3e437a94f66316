"""Which chunks are in memory, which is read next, and which one leaves.

Pure bookkeeping over the visits of an `EpochPlan`: no threads, no files, no clock; the caller holds its lock around
every call. Time is counted in *ticks*: items of this rank since the run began, so that the visits of one epoch and the
next lie on one line. A chunk stays until its last planned item is gathered; beyond that it stays while there is room,
and the one whose next use is farthest leaves first, so what fits is read once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from penstock.plan.epoch import Visits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.engine.gather import Chunk, LostChunk
    from penstock.engine.row_arena import Records, Shelf
    from penstock.plan import EpochPlan
    from penstock.plan.order import Grouping

    Stride = tuple[int, int]
    """The first batch that is built here, and how many batches on the next one is."""

_TIGHT_SHARE = 0.5
"""From this part of the budget on, freed memory goes back to the system."""
_RELEASE_BYTES = 64 << 20
"""But only after so many bytes were read, or a 32nd of the budget: touching memory again costs more than reading it."""
_COPIES_AHEAD = 2
"""Chunks that are copied from the shelf before they are needed."""
Key = tuple[int, int]
NEVER = 1 << 62


class EpochWork:
    """One epoch of a run: its plan, its batches, its first tick, and which visits have been taken up."""

    def __init__(  # noqa: PLR0913 -- the values of one epoch, each from another place
        self, plan: EpochPlan, base: int, items: Grouping, most: int, *, aligned: bool = False, stride: Stride = (0, 1)
    ) -> None:
        self.plan = plan
        self.base = base
        self.items = items
        self._most = most
        self._first, self._step = stride
        self._borders = _borders(plan, most) if aligned else None
        visits = items.visits(plan.visits)
        if self._step > 1:
            # Keep the stays of chunks that our batches need: others build those in between.
            first, last = visits.first // self._most, (visits.last - 1) // self._most
            latest = (last - self._first) // self._step * self._step + self._first
            mine = latest >= np.maximum(first, self._first)
            visits = Visits(visits.chunk[mine], visits.first[mine], visits.last[mine])
        self.chunk = visits.chunk
        self.first = visits.first + base
        self.last = visits.last + base
        self.taken = np.zeros(len(visits.chunk), np.bool_)
        self.next_visit = 0
        self._by_chunk: tuple[NDArray[np.intp], NDArray[np.int64]] | None = None

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self.plan.cursor.epoch

    @property
    def num_batches(self) -> int:
        """Batches that are built for this epoch."""
        return max(0, -(-(self.all_batches - self._first) // self._step))

    @property
    def all_batches(self) -> int:
        """Batches of this epoch, those that others build included."""
        return -(-self.plan.num_items // self._most) if self._borders is None else len(self._borders) - 1

    def start_of(self, batch: int) -> int:
        """Return the first item of a batch."""
        return self._border(self._first + batch * self._step)

    def end_of(self, batch: int) -> int:
        """Return the item after the last one of a batch."""
        return self._border(self._first + batch * self._step + 1)

    def _border(self, batch: int) -> int:
        return min(batch * self._most, self.plan.num_items) if self._borders is None else int(self._borders[batch])

    def visits_of(self, chunk: int) -> NDArray[np.intp]:
        """Return the visits to a chunk in this epoch."""
        if self._by_chunk is None:
            order = np.argsort(self.chunk, kind="stable")
            self._by_chunk = order, self.chunk[order]
        order, chunks = self._by_chunk
        return order[np.searchsorted(chunks, chunk, "left") : np.searchsorted(chunks, chunk, "right")]

    def next_use(self, chunk: int, tick: int) -> int:
        """Return the tick at which the chunk is needed next, from `tick` on; NEVER if not in this epoch."""
        ahead = [int(self.first[v]) for v in self.visits_of(chunk) if self.last[v] > tick]
        return max(min(ahead), tick) if ahead else NEVER


def _borders(plan: EpochPlan, most: int) -> NDArray[np.int64]:
    """Return where batches of at most that many items begin that never cross from one stay of a chunk to the next."""
    borders = np.unique(np.concatenate((plan.visits.first, plan.visits.last, [0, plan.num_items])))
    each = -(-np.diff(borders) // most)
    begin = np.repeat(borders[:-1], each)
    number = np.arange(len(begin)) - np.repeat(np.cumsum(each) - each, each)
    return np.append(begin + number * most, plan.num_items)


@dataclass(slots=True)
class Resident:
    """A chunk that is in memory or being read."""

    until: int
    """Tick after the last item that a taken-up visit needs."""
    num_bytes: int
    loaded: Chunk | LostChunk | None = None
    next_use: int | None = None
    """Cached answer of `Residency.next_use`; None: to be looked up."""


class Read(NamedTuple):
    """An order to read one chunk."""

    key: Key
    chunk: int
    num_bytes: int


@dataclass(slots=True, kw_only=True)
class Residency:
    """The chunks in memory, within a budget of bytes."""

    budget_bytes: int
    """For residents and reads in flight."""
    ahead_bytes: int
    """How far prefetch may go beyond what the next items need."""
    chunk_bytes: NDArray[np.int64]
    """Estimate for each chunk, of what stays in memory."""
    read_bytes: NDArray[np.int64]
    """Estimate for each chunk, of what a read in flight holds."""
    share: bool
    """Whether epochs use the same chunks in memory; otherwise chunks leave as soon as they are done."""
    slack: float = 1.0
    """How much more memory a chunk takes than its buffers are long."""
    arena: Records | None = None
    """Where slots go back to when a chunk leaves."""
    shelf: Shelf | None = None
    """What need not be read again: a copy takes no time, and is not made long before it is needed."""
    works: list[EpochWork] = field(default_factory=list)
    residents: dict[Key, Resident] = field(default_factory=dict)
    held_bytes: int = 0
    flight_bytes: int = 0
    lent_bytes: int = 0
    """Chunks that left the window while the user still holds views of them."""
    reads: int = 0
    _ahead: deque[tuple[int, int]] = field(default_factory=deque)
    """(first tick, bytes) of what was read before it is needed, in order."""
    _ahead_now: int = 0
    _read_since_release: int = 0

    def add(self, work: EpochWork) -> None:
        """Append the next epoch."""
        self.works.append(work)
        for resident in self.residents.values():
            resident.next_use = None

    def key(self, work: EpochWork, chunk: int) -> Key:
        """Return under which name the chunk is kept for that epoch."""
        return (-1 if self.share else work.epoch, chunk)

    def chunk(self, work: EpochWork, chunk: int) -> Chunk | LostChunk | None:
        """Return the chunk if it is loaded."""
        resident = self.residents.get(self.key(work, chunk))
        return resident.loaded if resident else None

    def hold(self, work: EpochWork, chunk: int, until: int) -> None:
        """Keep a loaded chunk up to tick `until`, because a span is gathered from it."""
        resident = self.residents[self.key(work, chunk)]
        resident.until = max(resident.until, until)

    def read_needed(self, work: EpochWork, chunk: int, *, end: int, force: bool, tick: int) -> Read | None:
        """Take up the visits to a chunk that items before tick `end` need; return the read, if room for it is found.

        Later visits are left for later: a chunk at the border of two lanes is needed at both ends of the epoch, and
        must not stay in memory all the time between.
        """
        if not force and self._soon_kept(chunk):
            return None
        visits = work.visits_of(chunk)
        visits = visits[(work.first[visits] < end) & (work.last[visits] > tick)]
        first, until = int(work.first[visits].min()), int(work.last[visits].max())
        if not self._room_for(chunk, first, tick=tick, force=force):
            return None
        work.taken[visits] = True
        return self._begin(self.key(work, chunk), chunk, until)

    def read_ahead(self, *, tick: int) -> Read | None:
        """Return the next read in order of first use, as far as prefetch and memory allow."""
        for work in self.works:
            while work.next_visit < len(work.taken):
                visit = work.next_visit
                if work.taken[visit]:
                    work.next_visit += 1
                    continue
                chunk = int(work.chunk[visit])
                key, until, first = self.key(work, chunk), int(work.last[visit]), int(work.first[visit])
                if key not in self.residents and not self._may_prefetch(chunk, first, tick):
                    return None
                work.taken[visit] = True
                work.next_visit += 1
                if key not in self.residents:
                    self._ahead.append((first, int(self.chunk_bytes[chunk])))
                    self._ahead_now += int(self.chunk_bytes[chunk])
                    return self._begin(key, chunk, until)
                resident = self.residents[key]
                resident.until = max(resident.until, until)
                resident.next_use = None
        return None

    def _may_prefetch(self, chunk: int, first: int, tick: int) -> bool:
        while self._ahead and self._ahead[0][0] <= tick:
            self._ahead_now -= self._ahead.popleft()[1]
        if self._soon_kept(chunk):
            return False
        ahead_bytes = self.ahead_bytes
        if self.shelf is not None and chunk in self.shelf:
            ahead_bytes = min(ahead_bytes, _COPIES_AHEAD * int(self.chunk_bytes[chunk]))
        if first > tick and self._ahead_now + int(self.chunk_bytes[chunk]) > ahead_bytes:
            return False
        return self._room_for(chunk, first, tick=tick, force=False)

    def _soon_kept(self, chunk: int) -> bool:
        """Tell whether the chunk is being read for another epoch and will then be kept: no need to read it twice."""
        if self.shelf is None or chunk in self.shelf:
            return False
        found = (self.residents.get(self.key(work, chunk)) for work in self.works)
        return any(resident is not None and resident.loaded is None for resident in found)

    def _begin(self, key: Key, chunk: int, until: int) -> Read:
        num_bytes = int(self.chunk_bytes[chunk])
        self.residents[key] = Resident(until, num_bytes)
        self.held_bytes += num_bytes
        self.flight_bytes += int(self.read_bytes[chunk])
        self.reads += 1
        return Read(key, chunk, num_bytes)

    @property
    def is_tight(self) -> bool:
        """Whether so much of the budget is in use that freed memory must not be kept for later."""
        return self.held_bytes + self.flight_bytes + self.lent_bytes > _TIGHT_SHARE * self.budget_bytes

    def release_is_due(self) -> bool:
        """Return whether freed memory should go back to the system now; True starts counting reads anew."""
        due = self.is_tight and self._read_since_release >= min(_RELEASE_BYTES, self.budget_bytes // 32)
        if due:
            self._read_since_release = 0
        return due

    def done(self, read: Read, loaded: Chunk | LostChunk) -> None:
        """Note that a read has ended; its real size replaces the estimate."""
        self.flight_bytes -= int(self.read_bytes[read.chunk])
        resident = self.residents[read.key]
        num_bytes = int(loaded.num_bytes * self.slack)
        self.held_bytes += num_bytes - resident.num_bytes
        resident.num_bytes = num_bytes
        resident.loaded = loaded
        self._read_since_release += num_bytes

    def _room_for(self, chunk: int, first: int, *, tick: int, force: bool) -> bool:
        """Find room for one more read that is first needed at tick `first`, by letting go of what is needed later.

        Evicts only if that makes enough room, or if the read is done in any case (`force`).
        """
        return self._free(int(self.chunk_bytes[chunk] + self.read_bytes[chunk]), first, tick=tick, force=force)

    def shrink(self, tick: int) -> None:
        """Let go of what is not needed now, as far as more is held than the budget allows."""
        self._free(0, tick, tick=tick, force=True)

    def _free(self, need: int, first: int, *, tick: int, force: bool) -> bool:
        short = self.held_bytes + self.flight_bytes + self.lent_bytes + need - self.budget_bytes
        if short <= 0:
            return True
        idle = []
        for key, resident in self.residents.items():
            if resident.until <= tick and resident.loaded:
                if resident.next_use is None or resident.next_use < tick:
                    resident.next_use = self.next_use(key, tick)
                idle.append((resident.next_use, key))
        leaving = []
        for use, key in sorted(idle, reverse=True):
            if use <= first or short <= 0:
                break
            leaving.append(key)
            short -= self.residents[key].num_bytes
        if short > 0 and not force:
            return False
        for key in leaving:
            self.drop(key)
        return True

    def next_use(self, key: Key, tick: int) -> int:
        """Return the tick at which a resident is needed next; NEVER if no planned epoch needs it."""
        return min((work.next_use(key[1], tick) for work in self.works if self.key(work, key[1]) == key), default=NEVER)

    def drop(self, key: Key) -> None:
        """Let a chunk go."""
        resident = self.residents.pop(key)
        slot = getattr(resident.loaded, "slot", -1)
        if slot >= 0 and self.arena is not None:
            self.arena.free(slot)
        self.held_bytes -= resident.num_bytes

    def leave(self, tick: int) -> list[Chunk]:
        """Drop, where epochs share nothing, what is done before `tick`; return what was dropped."""
        if self.share:
            return []
        gone = {key: r.loaded for key, r in self.residents.items() if r.until <= tick and r.loaded}
        for key in gone:
            self.drop(key)
        return [cast("Chunk", loaded) for loaded in gone.values()]
