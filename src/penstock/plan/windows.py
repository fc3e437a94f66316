"""Find the windows over time (n-grams): which rows start a stretch of `length` rows without a gap.

Takes timestamps in stored order. `window_starts` returns the rows at which windows of one stretch start; `WindowTable`
holds the windows of a whole dataset, and `WindowGrouping` makes them the items that are ordered and dealt. Reads
nothing and does not know what else the rows hold. `compare` compares the timestamps of neighbours, exactly.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from penstock.errors import NotSorted, PlanError
from penstock.plan.epoch import Visits, joined
from penstock.plan.order import Grouping, ItemRows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from numpy.typing import NDArray

_SECOND = 10**18
_ATTOSECONDS = {"W": 604_800 * _SECOND, "D": 86_400 * _SECOND, "h": 3_600 * _SECOND, "m": 60 * _SECOND, "s": _SECOND}
_ATTOSECONDS |= {unit: _SECOND // 1000**n for n, unit in enumerate(("ms", "us", "ns", "ps", "fs", "as"), 1)}


class Neighbours(NamedTuple):
    """What is known of each pair of neighbours (rows i and i+1), and of each row."""

    ordered: NDArray[np.bool_]
    """Whether row i+1 is not before row i in time; False where either has no timestamp."""
    close: NDArray[np.bool_]
    """Whether their difference is at most the threshold; without meaning where they are not ordered."""
    null: NDArray[np.bool_]
    """Whether row i has no timestamp: masked, None, NaN or NaT."""


def compare(timestamps: NDArray[Any], threshold: Any) -> Neighbours:
    """Compare all neighbours of an array of whole numbers, floats, dates or objects (Decimal, date, datetime).

    Differences of whole numbers never overflow; floats are subtracted in their own precision. For datetime64 and
    timedelta64 a plain number counts units of the array's own dtype. About 30 ns a row; objects cost 1 us.
    PlanError where timestamps have another type or a shape, or where threshold and timestamps do not go together.
    """
    values = np.ma.getdata(timestamps)
    if values.ndim != 1:
        raise PlanError(f"a timestamp must be one value a row; got an array of shape {values.shape}")
    kinds = {"b": _whole, "i": _whole, "u": _whole, "f": _floats, "m": _dates, "M": _dates, "O": _objects}
    if values.dtype.kind not in kinds:
        raise PlanError(f"timestamps must be numbers, Decimals, dates or times; got {values.dtype}")
    # Numbers of NumPy, and durations of no unit, become Python's, which compare exactly with any other.
    if isinstance(threshold, np.timedelta64) and np.datetime_data(threshold.dtype)[0] == "generic":
        threshold = int(threshold.astype(np.int64))
    elif isinstance(threshold, np.generic) and not isinstance(threshold, np.timedelta64):
        threshold = threshold.item()
    found = kinds[values.dtype.kind](values, threshold)
    if not isinstance(timestamps, np.ma.MaskedArray):
        return found
    null = found.null | np.ma.getmaskarray(timestamps)
    return Neighbours(found.ordered & ~(null[:-1] | null[1:]), found.close, null)


def _whole(values: NDArray[Any], threshold: Any) -> Neighbours:
    limit = _number(threshold)
    null = np.zeros(len(values), bool)
    return Neighbours(values[:-1] <= values[1:], _within(values, limit), null)


def _dates(values: NDArray[Any], threshold: Any) -> Neighbours:
    unit, count = np.datetime_data(values.dtype)
    plain = not isinstance(threshold, timedelta | np.timedelta64)
    limit = threshold if plain else _duration(threshold) // (_in_attoseconds(unit) * count)
    # Comparisons with NaT are False, so that a pair with one is not ordered.
    return Neighbours(values[:-1] <= values[1:], _within(values.astype(np.int64), limit), np.isnat(values))


def _floats(values: NDArray[Any], threshold: Any) -> Neighbours:
    most = _number(threshold)
    try:
        near = float(most)
    except OverflowError:
        near = math.inf if most > 0 else -math.inf
    limit = math.nextafter(near, -math.inf) if near > most else near
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is not close; a difference too large is infinite
        close = np.diff(values).astype(np.float64) <= limit  # NumPy 1 would compare in the smaller precision
    return Neighbours(values[:-1] <= values[1:], close, np.isnan(values))


def _within(values: NDArray[Any], limit: Any) -> NDArray[np.bool_]:
    """Return whether differences of ordered whole numbers are at most `limit`, which may be any real number."""
    num_pairs = max(len(values) - 1, 0)
    if limit < 0 or limit >= 2**64 - 1:
        return np.full(num_pairs, limit >= 0)
    # Modulo 2^64 the difference of two ordered numbers is right even where it does not fit the signed type.
    bits = values.astype(np.int64, copy=False).view(np.uint64) if values.dtype.kind == "i" else values.astype(np.uint64)
    return np.diff(bits) <= np.uint64(math.floor(limit))


def _objects(values: NDArray[Any], threshold: Any) -> Neighbours:
    null = np.array([v is None or v != v for v in values], bool)
    ordered, close = np.zeros((2, max(len(values) - 1, 0)), bool)
    limit = None
    for i in np.flatnonzero(~(null[:-1] | null[1:])).tolist():  # no vector type: Python compares
        now, then = values[i], values[i + 1]
        try:
            limit = _object_limit(now, threshold) if limit is None else limit
            ordered[i] = now <= then
            close[i] = ordered[i] and then - now <= limit
        except TypeError as exc:
            raise PlanError(
                f"timestamps must be numbers, Decimals, dates or times of one kind; got {now!r} and {then!r} in rows "
                f"{i} and {i + 1}"
            ) from exc
    return Neighbours(ordered, close, null)


def _object_limit(value: Any, threshold: Any) -> Any:
    if not isinstance(value, date | timedelta):
        return _number(threshold)
    if not isinstance(threshold, timedelta | np.timedelta64):
        raise PlanError(
            f"timestamps such as {value!r} need a timedelta as threshold; got {threshold!r}, which has no unit"
        )
    microseconds = _duration(threshold) // _ATTOSECONDS["us"]
    longest = timedelta.max // timedelta(microseconds=1)
    return timedelta(microseconds=max(-longest, min(microseconds, longest)))


def _number(threshold: Any) -> Any:
    """Return a threshold that must be a plain number; PlanError for a duration, whose unit numbers do not have."""
    if isinstance(threshold, timedelta | np.timedelta64):
        raise PlanError(f"timestamps are plain numbers, so that their threshold must be one; got {threshold!r}")
    return threshold


def _duration(threshold: timedelta | np.timedelta64) -> int:
    """Return a duration in attoseconds, exactly."""
    if isinstance(threshold, timedelta):
        return threshold // timedelta(microseconds=1) * _ATTOSECONDS["us"]
    unit, count = np.datetime_data(threshold.dtype)
    return int(threshold.astype(np.int64)) * count * _in_attoseconds(unit)


def _in_attoseconds(unit: str) -> int:
    if unit not in _ATTOSECONDS:
        raise PlanError(f"a threshold between timestamps needs a unit of weeks or less; got the unit {unit!r}")
    return _ATTOSECONDS[unit]


@dataclass(frozen=True, slots=True)
class WindowRule:
    """Which stretches of rows are windows.

    length=3, threshold=4, timestamps 0 3 8 10 11 20 30: the differences are 3 5 2 1 9 10, so that only rows 2 to 4
    are a window.
    """

    length: int
    """Rows of a window: consecutive ones, whose timestamps must not decrease."""
    threshold: Any
    """The most that a timestamp may be after the one before it in the window: a number, timedelta or timedelta64."""
    overlap: bool = True
    """False: a window starts strictly after the last timestamp of the window kept before it."""
    stride: int = 1
    """The least rows between the starts of two windows: each time the next possible start is taken."""

    def __post_init__(self) -> None:
        for name in ("length", "stride"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise PlanError(f"the {name} of windows must be a whole number of rows, at least 1; got {value!r}")
        real = isinstance(self.threshold, Number | timedelta | np.timedelta64)
        real = real and not isinstance(self.threshold, complex | np.complexfloating)
        if not real or self.threshold != self.threshold:
            raise PlanError(f"the threshold between timestamps must be a number or a timedelta; got {self.threshold!r}")

    @property
    def step(self) -> int:
        """Rows between starts where timestamps rise evenly."""
        return max(self.stride, 1 if self.overlap else self.length)


def window_starts(  # noqa: PLR0913 - the parts of a WindowRule, flat for those who need it once
    timestamps: NDArray[Any],
    length: int,
    *,
    threshold: Any,
    overlap: bool = True,
    stride: int = 1,
    breaks: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Return the rows at which windows of `length` consecutive rows start, ascending; Petastorm's rules.

    A window is kept where every timestamp is at most `threshold` after the one before it; after one that is not, the
    next row is tried. `breaks` are rows at which a stretch of its own begins: no window crosses into it, and `overlap`
    and `stride` start anew. A stretch shorter than `length` has no window and is not looked at. NotSorted names the row
    where a timestamp is missing or before its neighbour; windows of one row need no order (and with `overlap=True` no
    timestamps). About 50 ns a row, and 250 with `overlap=False` or a stride.
    """
    rule = WindowRule(length, threshold, overlap, stride)
    num_rows = len(timestamps)
    inner = np.unique(np.asarray([] if breaks is None else breaks, np.int64))
    if len(inner) and not 0 <= inner[0] <= inner[-1] <= num_rows:
        raise PlanError(f"breaks must be rows in [0, {num_rows}]; got {inner[0]} to {inner[-1]}")
    inner = inner[(inner > 0) & (inner < num_rows)]
    edges = np.concatenate((np.zeros(1, np.int64), inner, np.array([num_rows], np.int64)))
    return _starts(_Rows(timestamps, edges, lambda row: (None, row)), rule, _FRESH)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WindowTable:
    """The windows of all chunks, numbered along the line of their rows. Build it with `build`.

    Starts lie in runs of equal steps, so that memory grows with the gaps in time, not with the rows: 16 bytes a run.
    A window belongs to the chunk in which it starts. Rows count among the rows of a chunk that were given.
    """

    length: int
    """Rows of a window."""
    step: int
    """Rows between the starts of one run."""
    row_offsets: NDArray[np.int64]
    """Line row at which each chunk begins, and the number of rows at the end."""
    window_offsets: NDArray[np.int64]
    """Number of the first window of each chunk, and the number of windows at the end."""
    run_starts: NDArray[np.int64]
    """Line row of the first start of each run."""
    run_offsets: NDArray[np.int64]
    """Number of the first window of each run, and the number of windows at the end."""

    @classmethod
    def build(
        cls, chunks: Iterable[NDArray[Any]], rule: WindowRule, *, span: bool, breaks: Collection[int] = ()
    ) -> WindowTable:
        """Find all windows from the timestamps of each chunk's rows, chunk by chunk in stored order.

        `chunks` is consumed once and not kept: this takes the memory of two chunks and the table. Chunks without rows
        give empty arrays. Without `span` windows stay within a chunk. With `span` windows continue into the following
        chunks, over several if they are short; where the first timestamp of a chunk is before the last one so far, a
        new stretch of time begins, as it does at the chunks in `breaks`. NotSorted names chunk and row.
        """
        sweep = _Sweep(rule, span, frozenset(breaks))
        for timestamps in chunks:
            sweep.feed(timestamps)
        row_offsets = _offsets(np.array(sweep.sizes, np.int64))
        run_starts, run_offsets = sweep.runs.finish()
        window_offsets = _rank(row_offsets, run_starts, run_offsets, rule.step)
        return cls(int(rule.length), rule.step, row_offsets, window_offsets, run_starts, run_offsets)

    def __repr__(self) -> str:
        return (
            f"WindowTable(windows={self.total}, length={self.length}, chunks={len(self.counts)}, "
            f"rows={int(self.row_offsets[-1])})"
        )

    @property
    def counts(self) -> NDArray[np.int64]:
        """Windows that start in each chunk: what the plan deals out."""
        return np.diff(self.window_offsets)

    @property
    def total(self) -> int:
        """Number of windows."""
        return int(self.window_offsets[-1])

    def count(self, chunk: int) -> int:
        """Return the windows that start in a chunk."""
        return int(self.window_offsets[chunk + 1] - self.window_offsets[chunk])

    def starts(self, chunk: int) -> NDArray[np.int64]:
        """Return the rows of a chunk at which windows start, ascending."""
        first, last = int(self.window_offsets[chunk]), int(self.window_offsets[chunk + 1])
        return self._line_rows(np.arange(first, last, dtype=np.int64)) - int(self.row_offsets[chunk])

    def locate(self, chunk: NDArray[np.int64], window: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the start row, in its chunk, of each window given by chunk and ordinal among the chunk's windows."""
        return self._line_rows(self.window_offsets[chunk] + window) - self.row_offsets[chunk]

    def rows(self, chunk: NDArray[np.int64], window: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return chunk and row for every row of the windows given as in `locate`: two arrays (windows, length)."""
        first = self._line_rows(self.window_offsets[chunk] + window)
        line = first[:, None] + np.arange(self.length, dtype=np.int64)
        at = self._chunk_of(line)
        return at, line - self.row_offsets[at]

    def last_chunks(self) -> NDArray[np.int64]:
        """Return for each chunk the last chunk that its windows have rows of: itself, unless they span borders."""
        last = np.arange(len(self.counts), dtype=np.int64)
        some = np.flatnonzero(self.counts)
        last[some] = self._chunk_of(self._line_rows(self.window_offsets[some + 1] - 1) + self.length - 1)
        return last

    def digest(self) -> str:
        """Return 32 hex digits, equal for equal windows found by equal steps. Changing how breaks resumed runs."""
        sums = hashlib.blake2b(b"penstock.windows.v1\0", digest_size=16)
        for part in ([self.length, self.step, len(self.counts)], self.row_offsets, self.run_starts, self.run_offsets):
            sums.update(np.ascontiguousarray(part, "<i8").tobytes())
        return sums.hexdigest()

    def _line_rows(self, windows: NDArray[np.int64]) -> NDArray[np.int64]:
        run = np.searchsorted(self.run_offsets, windows, side="right") - 1
        return cast("NDArray[np.int64]", self.run_starts[run] + (windows - self.run_offsets[run]) * self.step)

    def _chunk_of(self, line_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        # Of several chunks that begin at one row all but the last are empty.
        return np.searchsorted(self.row_offsets, line_rows, side="right") - 1


@dataclass(frozen=True)
class WindowGrouping(Grouping):
    """Every window over time is an item; it belongs to the chunk in which it starts."""

    table: WindowTable
    name = "windows"

    @cached_property
    def counts(self) -> NDArray[np.int64]:  # type: ignore[override]
        """Windows that start in each chunk."""
        return self.table.counts

    def locate(self, part: NDArray[np.int64], number: NDArray[np.int64]) -> ItemRows:
        """Return the distinct rows of the windows, and which of them each window has."""
        table = self.table
        at, row = table.rows(part, number)
        distinct, windows = np.unique(table.row_offsets[at] + row, return_inverse=True)
        chunk: NDArray[np.int64] = np.searchsorted(table.row_offsets, distinct.reshape(-1), side="right") - 1
        return ItemRows(chunk=chunk, row=distinct - table.row_offsets[chunk], windows=windows.reshape(at.shape))

    def most_rows(self, num_items: int, *, neighbours: bool) -> int:
        """Return the rows of the windows; neighbours share all but one."""
        length = self.table.length
        return num_items + length - 1 if neighbours else num_items * length

    def visits(self, visits: Visits) -> Visits:
        """Return the visits, with those of later chunks that windows reach into."""
        far = self.table.last_chunks()[visits.chunk] - visits.chunk
        more = [visits]
        for step in range(1, int(far.max(initial=0)) + 1):
            there = far >= step
            more.append(Visits(visits.chunk[there] + step, visits.first[there], visits.last[there]))
        return joined(more) if len(more) > 1 else visits

    def table_digest(self) -> str:
        """Return the digest of the windows."""
        return self.table.digest()


def _rank(
    line_rows: NDArray[np.int64], run_starts: NDArray[np.int64], run_offsets: NDArray[np.int64], step: int
) -> NDArray[np.int64]:
    """Return how many windows start before each line row."""
    if not len(run_starts):
        return np.zeros(len(line_rows), np.int64)
    run = np.maximum(np.searchsorted(run_starts, line_rows, side="left") - 1, 0)
    inside = np.maximum(-(-(line_rows - run_starts[run]) // step), 0)
    return cast("NDArray[np.int64]", np.minimum(run_offsets[run] + inside, run_offsets[run + 1]))


class _Rows(NamedTuple):
    """Rows in stored order, cut into stretches."""

    timestamps: NDArray[Any]
    edges: NDArray[np.int64]
    """0, the rows at which further stretches begin, and the number of rows."""
    place: Callable[[int], tuple[int | None, int]]
    """Chunk and row, for messages, of a row here."""


class _Kept(NamedTuple):
    """What windows found before demand of the first stretch."""

    first: int
    """The first row at which a window may start."""
    end: Any
    """The last timestamp of the window kept before; None: there is none, or overlap is allowed."""


_FRESH = _Kept(0, None)


def _starts(rows: _Rows, rule: WindowRule, kept: _Kept) -> NDArray[np.int64]:
    if len(rows.timestamps) < rule.length:
        return np.empty(0, np.int64)
    if rule.length == 1 and not rule.overlap:
        null = compare(rows.timestamps, rule.threshold).null
        if null.any():
            raise _not_sorted(rows, int(null.argmax()), null=True)
        values, heads = np.ma.getdata(rows.timestamps), set(rows.edges[1:-1].tolist())
        chosen, (begin, end) = [], kept
        for row, timestamp in enumerate(values):  # a row is a window here, and each depends on the one before
            if row in heads:
                begin, end = row, None
            if row >= begin and (end is None or timestamp > end):
                chosen.append(row)
                begin, end = row + rule.stride, timestamp
        return np.array(chosen, np.int64)
    found = _candidates(rows, rule)
    first = kept.first
    if kept.end is not None:  # timestamps are known to be in order by now
        first = max(first, int(np.searchsorted(np.ma.getdata(rows.timestamps), kept.end, side="right")))
    if first > 0:
        found = found[np.searchsorted(found, first) :]
    return found if rule.step == 1 else _thin_out(found, rows, rule)


def _candidates(rows: _Rows, rule: WindowRule) -> NDArray[np.int64]:
    """Return every row that starts `length` rows of one stretch without a gap."""
    num_rows, length = len(rows.timestamps), rule.length
    if length == 1:
        return np.arange(num_rows, dtype=np.int64)
    pairs = compare(rows.timestamps, rule.threshold)
    sizes = np.diff(rows.edges)
    asked = np.repeat(sizes >= rule.length, sizes)[:-1]
    asked[rows.edges[1:-1] - 1] = False
    wrong = asked & ~pairs.ordered
    if wrong.any():
        at = int(wrong.argmax())
        raise _not_sorted(rows, at if pairs.null[at] else at + 1, null=bool(pairs.null[at : at + 2].any()))
    joined = asked & pairs.close
    if joined.all():
        return np.arange(num_rows - length + 1, dtype=np.int64)
    gaps_before = np.zeros(num_rows, np.int64)
    np.cumsum(~joined, out=gaps_before[1:])
    return np.flatnonzero(gaps_before[length - 1 :] == gaps_before[: num_rows - length + 1]).astype(
        np.int64, copy=False
    )


def _thin_out(found: NDArray[np.int64], rows: _Rows, rule: WindowRule) -> NDArray[np.int64]:
    """Keep the first of `found`, then always the next that stride and overlap allow, anew in each stretch."""
    allowed = found + rule.stride
    if not rule.overlap:
        values = np.ma.getdata(rows.timestamps)
        # Rows whose timestamp is after that of the row before, as all are in order inside a stretch.
        later = np.append(np.flatnonzero(values[1:] != values[:-1]) + 1, len(values))
        allowed = np.maximum(allowed, later[np.searchsorted(later, found + (rule.length - 1), side="right")])
    allowed = np.minimum(allowed, rows.edges[np.searchsorted(rows.edges, found, side="right")])
    following = np.searchsorted(found, allowed).tolist()
    chosen, at = [], 0
    while at < len(following):
        chosen.append(at)
        at = following[at]
    return found[np.array(chosen, np.int64)]


def _not_sorted(rows: _Rows, row: int, *, null: bool) -> NotSorted:
    chunk, own = rows.place(row)
    where = f"row {own}" if chunk is None else f"row {own} of chunk {chunk}"
    what = (
        "has no timestamp" if null else f"has the timestamp {rows.timestamps[row]}, before that of the row it follows"
    )
    return NotSorted(
        f"windows over time need rows in the order of their timestamps, but {where} {what}; "
        "write the dataset sorted by it, or leave such rows out with a filter",
        row=own,
        chunk=chunk,
    )


class _Sweep:
    """Goes through the chunks once and collects the windows of all."""

    def __init__(self, rule: WindowRule, span: bool, breaks: frozenset[int]) -> None:
        self._rule, self._span, self._breaks = rule, span, breaks
        self.runs = _Runs(rule.step)
        self.sizes: list[int] = []
        self._num_rows = 0
        self._tail: NDArray[Any] | None = None
        """The last rows of the current stretch, at which windows may still start; at least one, to compare with."""
        self._kept: tuple[int, Any] | None = None
        """Line row and last timestamp of the last window of the current stretch."""

    def feed(self, timestamps: NDArray[Any]) -> None:
        """Take the timestamps of the next chunk."""
        chunk = len(self.sizes)
        self.sizes.append(len(timestamps))
        if not len(timestamps):
            if chunk in self._breaks:
                self._tail = self._kept = None
            return
        if (
            self._tail is None
            or not self._span
            or chunk in self._breaks
            or not compare(_join(self._tail[-1:], timestamps[:1]), self._rule.threshold).ordered[0]
        ):
            self._tail = self._kept = None
        most = self._rule.length - 1
        carried = timestamps[:0] if self._tail is None or not most else self._tail[-most:]
        together = _join(carried, timestamps) if len(carried) else timestamps
        base = self._num_rows - len(carried)

        def place(row: int) -> tuple[int, int]:
            offsets = _offsets(np.array(self.sizes, np.int64))
            chunk = int(np.searchsorted(offsets, base + row, side="right")) - 1
            return chunk, base + row - int(offsets[chunk])

        kept = _FRESH
        if self._kept is not None:
            kept = _Kept(self._kept[0] + self._rule.stride - base, None if self._rule.overlap else self._kept[1])
        starts = _starts(_Rows(together, np.array([0, len(together)], np.int64), place), self._rule, kept)
        if len(starts):
            self.runs.add(starts + base)
            self._kept = base + int(starts[-1]), together[starts[-1] + most]
        self._tail = together[-max(most, 1) :].copy()  # not a view, which would keep the chunk
        self._num_rows += len(timestamps)


class _Runs:
    """Collects ascending line rows as runs of equal steps, each as long as it can be."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._starts: list[NDArray[np.int64]] = []
        self._sizes: list[NDArray[np.int64]] = []
        self._next: int | None = None
        """The row that would continue the last run."""

    def add(self, rows: NDArray[np.int64]) -> None:
        """Add rows, all after those added before; at least one."""
        heads = np.append(0, np.flatnonzero(np.diff(rows) != self._step) + 1)
        starts, sizes = rows[heads], np.diff(heads, append=len(rows))
        if starts[0] == self._next:
            self._sizes[-1][-1] += sizes[0]
            starts, sizes = starts[1:], sizes[1:]
        self._next = int(rows[-1]) + self._step
        if len(starts):
            self._starts.append(starts)
            self._sizes.append(sizes)

    def finish(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first row of each run, and the number of rows before each run and after the last."""
        none = np.empty(0, np.int64)
        return np.concatenate([none, *self._starts]), _offsets(np.concatenate([none, *self._sizes]))


def _offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0 and the running sums."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))


def _join(first: NDArray[Any], then: NDArray[Any]) -> NDArray[Any]:
    masked = isinstance(first, np.ma.MaskedArray) or isinstance(then, np.ma.MaskedArray)
    joined: NDArray[Any] = np.ma.concatenate((first, then)) if masked else np.concatenate((first, then))  # type: ignore[no-untyped-call]
    return joined
