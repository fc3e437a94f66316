"""Fix the order of an epoch: which kind, how many lanes, and the pinned permutations that everything else stands on.

Takes row counts, a seed and an epoch; returns small values and permutations for `line`, `lanes` and `lines` to lay out.
Reads nothing and keeps nothing. Every function here is pure, and its results are pinned: a changed order would break
runs that resume, so a better one gets a new name beside these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from penstock.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Kind = Literal["natural", "groups", "lanes"]

CHUNKS, BLOCKS, AUGMENTATION, DRAWS = 0, 1, 2, 3
"""What random words are for: the last word of the Philox counter, so that no two streams meet."""

LADDER = (1, 2, 4, 8, 24, 48, 96, 192, 384, 768)
"""Numbers of lanes tried by default; the upper ones divide by the worlds people have (2, 3, 4, 6, 8, 16, ... 256)."""

MAX_BLOCK = 1 << 20
"""Most rows of a block by default; also the largest dataset that is permuted whole."""

MAX_LANES = 1 << 20
"""Most lanes that may be asked for: every rank keeps a few words for each of its lanes."""


class Lanes(NamedTuple):
    """How rows are spread over lanes."""

    lanes: int
    block: int


@dataclass(frozen=True, slots=True)
class Order:
    """The kind and the parameters of an order; with the rows per chunk and the epoch it fixes every position."""

    kind: Kind
    """"natural" (as stored), "groups" (chunks permuted) or "lanes" (rows shuffled)."""
    seed: int
    """In [0, 2^64)."""
    lanes: int | None = None
    """Number of lanes L; None for the two kinds that are a line."""
    block: int | None = None
    """Rows of a block B; None for the two kinds that are a line."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise PlanError(f"order must be one of {', '.join(map(repr, get_args(Kind)))}; got {self.kind!r}")
        check_seed(self.seed)
        if not self.is_line:
            check_lanes(self.lanes)
            if not isinstance(self.block, int) or self.block < 1:
                raise PlanError(f"a block must have at least one row; got block={self.block!r}")
        elif self.lanes is not None or self.block is not None:
            raise PlanError(
                f"order {self.kind!r} has no lanes and no blocks; got lanes={self.lanes}, block={self.block}"
            )

    @property
    def is_line(self) -> bool:
        """Whether the order is a line of items (natural, groups), dealt out in contiguous parts."""
        return self.kind != "lanes"

    @property
    def name(self) -> str:
        """The name under which states keep this order; the number grows when an order changes."""
        return f"{self.kind}-1"


def check_seed(seed: int) -> None:
    """Raise PlanError unless 0 <= seed < 2^64."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise PlanError(f"seed must be an integer in [0, 2**64); got {seed!r}")


def check_lanes(lanes: Any) -> None:
    """Raise PlanError unless `lanes` is a usable number of lanes."""
    if isinstance(lanes, bool) or not isinstance(lanes, int) or not 1 <= lanes <= MAX_LANES:
        raise PlanError(f"lanes must be an integer from 1 to {MAX_LANES:,}; got {lanes!r}")


def as_counts(counts: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return selected rows per chunk as one int64 array; PlanError where it is not one or a count is negative."""
    array = np.asarray(counts, dtype=np.int64)
    if array.ndim != 1 or (array.size and array.min() < 0):
        raise PlanError(f"rows per chunk must be a list of counts >= 0; got shape {array.shape}")
    return array


class Words:
    """The random words of one (seed, epoch): a stream of its own for each (a, b, kind).

    Raw words of `Philox(key=[seed, epoch], counter=[0, a, b, kind])`, because NumPy pins bit generators across versions
    but not `Generator.permutation`. Not to be shared by threads.
    """

    def __init__(self, seed: int, epoch: int) -> None:
        key, self._counter = np.array((seed, epoch), dtype=np.uint64), np.zeros(4, dtype=np.uint64)
        self._generator = np.random.Philox(key=key)
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": key},
            "buffer": np.zeros(4, dtype=np.uint64),
            "buffer_pos": 4,  # empty: the next word is the counter's first
            "has_uint32": 0,
            "uinteger": 0,
        }

    def draw(self, n: int, *, a: int, b: int, kind: int) -> NDArray[np.uint64]:
        """Return the first n words of a stream; 5 ns a word."""
        self._counter[:] = 0, a, b, kind
        self._generator.state = self._state  # 1 us, where a new generator takes 9: small blocks would feel that
        return self._generator.random_raw(n)  # type: ignore[no-any-return, unused-ignore]


def permutation(  # noqa: PLR0913 the words of the pinned key and counter, by name
    n: int, *, seed: int, epoch: int, a: int, b: int, kind: int
) -> NDArray[np.int64]:
    """Return the pinned permutation of `range(n)`: the stable argsort of n random words.

    The same for equal arguments on every machine and NumPy. About 15 ns an element with AVX-512 (bench/plan.py).
    """
    return stable_argsort(Words(seed, epoch).draw(n, a=a, b=b, kind=kind))


def stable_argsort(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return `np.argsort(words, kind="stable")`, several times faster for words that spread over all 64 bits.

    The index replaces the low bits of its word, so that one vectorised `np.sort` of plain numbers does the work (10 ns
    against 113 ns an element at 2^20); places whose upper bits tie, about n^2 / 2^(65 - log2 n), are sorted again.
    """
    n = len(words)
    if n < 2:
        return np.zeros(n, dtype=np.int64)
    low = np.uint64((1 << (n - 1).bit_length()) - 1)
    keys = words & ~low
    keys |= np.arange(n, dtype=np.uint64)
    keys.sort()
    ties = (keys[1:] ^ keys[:-1]) <= low
    keys &= low
    places = keys.view(np.int64)
    if ties.any():
        _settle(places, words, np.flatnonzero(np.append(ties, False) | np.append(False, ties)))
    return places


def _settle(places: NDArray[np.int64], words: NDArray[np.uint64], tied: NDArray[np.int64]) -> None:
    """Sort the tied places by whole words, in place; groups stay where they are, as their upper bits differ."""
    rows = places[tied]  # equal upper bits stand in index order, so a stable sort settles equal words too
    places[tied] = rows[np.argsort(words[rows], kind="stable")]


def stable_argsort_part(words: NDArray[np.uint64], first: int, last: int) -> NDArray[np.int64]:
    """Return `stable_argsort(words)[first:last]` for uniform words, sorting hardly more than those: 2 ns a word.

    Uniform words of those places lie within a narrow band; six standard deviations of slack leave one miss in 10^9,
    which costs a full sort.
    """
    n = len(words)
    slack = 8 + 3 * math.isqrt(n)
    low = np.uint64(max(0, first - slack) * (1 << 64) // n)
    high = np.uint64(min((last + slack) * (1 << 64) // n, (1 << 64) - 1))
    before = int(np.count_nonzero(words < low))
    band = np.flatnonzero((words >= low) & (words <= high))
    if before <= first and last <= before + len(band):
        return band[stable_argsort(words[band])[first - before : last - before]]
    return stable_argsort(words)[first:last]


def typical_rows(counts: NDArray[np.int64]) -> int:
    """Return s = ceil(sum n_i^2 / N): the rows of the chunk that a random row lies in; 0 without rows."""
    total = int(counts.sum())
    if counts.size and int(counts.max()) ** 2 * counts.size >= 1 << 63:
        squares = sum(n * n for n in counts.tolist())  # would overflow int64
    else:
        squares = int((counts * counts).sum())
    return -(-squares // total) if total else 0


def choose_lanes(
    counts: Sequence[int] | NDArray[np.integer[Any]], *, row_bytes: float, shuffle_bytes: int, lanes: int | None
) -> Lanes:
    """Return lanes and block for a fresh run, by the rule of the design.

    A dataset that fits the window and 2^20 rows is one block, a true permutation. Otherwise as many lanes of the ladder
    as leave four chunks to a lane and two chunks a lane to the window, and blocks that fill the window. `lanes` given
    by the user is kept as it is. `row_bytes` is that of all columns, so that the order does not depend on those read.
    """
    array = as_counts(counts)
    array = array[array > 0]
    total, typical = int(array.sum()), typical_rows(array)
    window_rows = rows_in(shuffle_bytes, row_bytes)
    if lanes is not None:
        check_lanes(lanes)
    elif total <= min(window_rows, MAX_BLOCK):
        return Lanes(1, max(1, total))
    else:
        fitting = [n for n in LADDER if n <= len(array) // 4 and 2 * n * typical <= window_rows]
        lanes = max(fitting, default=1)
    return Lanes(lanes, max(1, typical, min(window_rows // lanes - typical, MAX_BLOCK)))


def rows_in(shuffle_bytes: int, row_bytes: float) -> int:
    """Return w, how many rows of `row_bytes` the window holds; rows narrower than a byte count as one byte."""
    if shuffle_bytes < 1:
        raise PlanError(f"shuffle_bytes must be at least 1; got {shuffle_bytes}")
    return int(shuffle_bytes // max(row_bytes, 1.0))
