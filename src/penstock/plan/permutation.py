"""Random numbers of an order: pinned permutations, and the streams of words that they are drawn from.

`shuffled`, `epoch` and `draws` lay out items by them. NumPy pins bit generators across versions but not the functions
that draw from them, so permutations are made here from raw words: changing one would break runs that resume.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNKS, BLOCKS, AUGMENTATION, DRAWS = 0, 1, 2, 3
"""What random words are for: the last word of the Philox counter, so that no two streams meet."""


class Words:
    """The random words of one (seed, epoch): a separate stream for each (a, b, kind).

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
        # Sort the tied places by whole words; groups stay where they are, as their upper bits differ.
        tied = np.flatnonzero(np.append(ties, False) | np.append(False, ties))
        rows = places[tied]  # equal upper bits are in index order, so a stable sort handles equal words too
        places[tied] = rows[np.argsort(words[rows], kind="stable")]
    return places


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
