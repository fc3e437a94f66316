"""The shuffle on disk is the permutation it says it is, whatever the memory, and holds no more than it says."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from penstock.doctor.external_shuffle import SHUFFLE, Spill, shuffled

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 5000


def batches(sizes: list[int] | None = None) -> list[pa.RecordBatch]:
    ids = np.arange(ROWS)
    table = pa.table(
        {
            "id": ids,
            "cell": [None if i % 7 == 0 else bytes([i % 256]) * (i % 90) for i in range(ROWS)],
            "list": [list(range(i % 4)) for i in range(ROWS)],
        }
    )
    cuts = np.cumsum([0, *(sizes or [500] * 10)])
    return [b for a, z in itertools.pairwise(cuts) for b in table.slice(a, z - a).to_batches()]


def run(folder: Path, memory: int, *, seed: int = 3, sizes: list[int] | None = None, guess: float = 3e5) -> pa.Table:
    spill = Spill(str(folder), memory)
    found = pa.Table.from_batches(shuffled(iter(batches(sizes)), seed=seed, num_bytes=guess, spill=spill))
    assert not list(folder.iterdir())  # every file goes when its rows are out
    return found


def expected(seed: int) -> np.ndarray:
    words = np.random.Philox(key=[seed, 0], counter=[0, 0, 0, SHUFFLE]).random_raw(ROWS)
    return np.argsort(words, kind="stable")


@pytest.mark.parametrize("memory", [1 << 30, 1 << 18, 1 << 15])
def test_the_order_is_that_of_random_words_whatever_the_memory(tmp_path: Path, memory: int) -> None:
    found = run(tmp_path, memory)
    assert found["id"].to_pylist() == expected(3).tolist()
    whole = pa.Table.from_batches(batches()).take(pa.array(expected(3)))
    assert found.combine_chunks().equals(whole.combine_chunks())


def test_the_order_does_not_depend_on_how_rows_come_nor_on_the_guess(tmp_path: Path) -> None:
    ragged = [1, 4, 2000, 7, 988, 2000]
    assert run(tmp_path, 1 << 17, sizes=ragged)["id"].to_pylist() == expected(3).tolist()
    assert run(tmp_path, 1 << 16, guess=1.0)["id"].to_pylist() == expected(3).tolist()  # spread a second time
    assert run(tmp_path, 1 << 17, guess=1e9)["id"].to_pylist() == expected(3).tolist()


def test_another_seed_is_another_order(tmp_path: Path) -> None:
    assert run(tmp_path, 1 << 30, seed=4)["id"].to_pylist() == expected(4).tolist() != expected(3).tolist()


def test_the_order_is_pinned(tmp_path: Path) -> None:
    # Users compare datasets that were shuffled by different versions; change only with a new option.
    assert run(tmp_path, 1 << 30)["id"].to_pylist()[:8] == expected(3)[:8].tolist() == GOLDEN


GOLDEN = [1915, 4427, 2843, 2575, 137, 129, 1243, 4853]


def test_no_more_is_held_than_allowed(tmp_path: Path) -> None:
    spill = Spill(str(tmp_path), 1 << 16)
    for _ in shuffled(iter(batches()), seed=0, num_bytes=3e5, spill=spill):
        pass
    largest = max(batch.nbytes for batch in batches())
    assert 0 < spill.most_bytes <= spill.limit + largest + 500 * 8


def test_nothing_and_a_single_row(tmp_path: Path) -> None:
    spill = Spill(str(tmp_path), 1)
    assert list(shuffled(iter(()), seed=0, num_bytes=0, spill=spill)) == []
    one = batches()[0].slice(5, 1)
    [found] = shuffled(iter([one]), seed=0, num_bytes=100, spill=spill)
    assert found.to_pylist() == one.to_pylist()
