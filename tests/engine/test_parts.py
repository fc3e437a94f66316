"""Chunks that a source can divide: shuffling deals parts, other orders and older states whole chunks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import BudgetError, PlanError, StateMismatch
from penstock.source import Selection, Split, pack_mask
from penstock.testing import MemorySource, assert_resumes_exactly
from tests.engine.make import tightest

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTS = ((3, 3, 2), (1,), (5, 5), (4, 1), (2, 2, 2, 2, 2), (6,))
"""Rows of the parts of each chunk."""
TOTAL = sum(map(sum, PARTS))


def rows() -> dict[str, Any]:
    return {"id": np.arange(TOTAL), "even": np.arange(TOTAL) % 2 == 0}


def split_of(parts: Sequence[Sequence[int]], source: Any) -> Split:
    chunk = np.repeat(np.arange(len(parts)), [len(one) for one in parts])
    first = np.concatenate([np.cumsum((0, *one[:-1])) for one in parts])
    return Split(source, chunk, first)


class DividedSource(MemorySource):
    """Rows in memory whose chunks have parts."""

    splits = 0

    def __init__(self, parts: Sequence[Sequence[int]] = PARTS) -> None:
        super().__init__(pa.table(rows()), [sum(one) for one in parts])
        self._split_parts = parts

    def split(self, *, scan: bool | None) -> Split | None:
        self.splits += 1
        return split_of(
            self._split_parts, MemorySource(pa.table(rows()), [n for one in self._split_parts for n in one])
        )


def ids(loader: Any) -> list[int]:
    with loader:
        return [int(i) for batch in loader for i in batch["id"]]


OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 5, "rank": 0, "world": 1, "lanes": 2}


def test_shuffling_deals_parts_in_the_order_of_a_source_that_has_them_as_chunks() -> None:
    finer = MemorySource(pa.table(rows()), [n for one in PARTS for n in one])
    loader = penstock.open(DividedSource()).loader(**OPTIONS)
    assert loader.order.name == "lanes-2"
    assert ids(loader) == ids(penstock.open(finer).loader(**OPTIONS))


def test_other_orders_read_whole_chunks_and_never_ask_for_parts() -> None:
    source = DividedSource()
    whole = MemorySource(pa.table(rows()), [sum(one) for one in PARTS])
    for shuffle in (False, "groups"):
        options = OPTIONS | {"shuffle": shuffle, "lanes": None}
        assert ids(penstock.open(source).loader(**options)) == ids(penstock.open(whole).loader(**options))
    unsplit = penstock.open(source).loader(**OPTIONS, parts=False)
    assert unsplit.order.name == "lanes-1"
    assert ids(unsplit) == ids(penstock.open(whole).loader(**OPTIONS))
    assert source.splits == 0


def test_the_first_rows_can_be_probed_whatever_the_parts() -> None:
    with penstock.open(DividedSource()).loader(**OPTIONS, parts=True) as loader:
        assert loader.probe(3)["id"].tolist() == [0, 1, 2]


def test_parts_resume_at_every_step() -> None:
    dataset = penstock.open(DividedSource())
    assert_resumes_exactly(lambda: dataset.loader(**OPTIONS | {"epochs": 2}))


def test_states_of_whole_chunks_go_on_as_they_were() -> None:
    dataset = penstock.open(DividedSource())
    with dataset.loader(**OPTIONS, parts=False) as loader:
        batches = iter(loader)
        seen = [int(i) for _ in range(3) for i in next(batches)["id"]]
        state = json.loads(json.dumps(loader.state_dict()))
    assert state["order"] == "lanes-1"
    resumed = dataset.loader(**OPTIONS)
    resumed.load_state_dict(state)
    assert resumed.order.name == "lanes-1"
    assert seen + ids(resumed) == ids(dataset.loader(**OPTIONS, parts=False))


def test_states_of_parts_go_on_in_a_loader_that_was_made_without() -> None:
    dataset = penstock.open(DividedSource())
    whole_run = ids(dataset.loader(**OPTIONS))
    with dataset.loader(**OPTIONS) as loader:
        next(iter(loader))
        state = loader.state_dict()
    resumed = dataset.loader(**OPTIONS, parts=False)
    resumed.load_state_dict(state)
    assert ids(resumed) == whole_run[4:]


def test_a_state_of_parts_is_refused_where_there_are_none_or_others() -> None:
    with penstock.open(DividedSource()).loader(**OPTIONS) as loader:
        state = loader.state_dict()
    whole = penstock.open(MemorySource(pa.table(rows()), [sum(one) for one in PARTS])).loader(**OPTIONS)
    with pytest.raises(StateMismatch, match="divides row groups into parts"):
        whole.load_state_dict(state)
    other = penstock.open(DividedSource(((4, 4), *PARTS[1:]))).loader(**OPTIONS)
    with pytest.raises(StateMismatch, match="rows of the state"):
        other.load_state_dict(state)


@pytest.mark.parametrize("world", [1, 3])
def test_every_rank_gets_its_rows_once_and_another_world_takes_over(world: int) -> None:
    dataset = penstock.open(DividedSource(), columns=["id"])
    options = OPTIONS | {"remainder": "uneven", "batch_size": 3, "lanes": 3}
    seen: list[int] = []
    for rank in range(world):
        with dataset.loader(**options | {"rank": rank, "world": world}) as loader:
            batches = iter(loader)
            seen += [int(i) for _ in range(2) for i in next(batches)["id"]]
            state = loader.state_dict()
    for rank in range(2):
        with dataset.loader(**options | {"rank": rank, "world": 2}) as loader:
            loader.load_state_dict(state)
            seen += [int(i) for batch in loader for i in batch["id"]]
    assert sorted(seen) == [*range(TOTAL)]


def test_filters_select_rows_of_parts() -> None:
    dataset = penstock.open(DividedSource()).where([("even", "=", True), ("id", ">", 5)])
    found = ids(dataset.loader(**OPTIONS))
    assert sorted(found) == [*range(6, TOTAL, 2)]
    assert_resumes_exactly(lambda: dataset.loader(**OPTIONS))


class KeepingSource(MemorySource):
    """Rows in memory, with a memory of its own beside."""

    limits: ClassVar[list[int]] = []

    def kept_bytes(self, columns: Sequence[str]) -> int:
        assert list(columns) == ["id", "even"]
        return 1_000

    def keep(self, most_bytes: int) -> None:
        self.limits.append(most_bytes)


def test_what_a_source_keeps_between_reads_is_a_part_of_the_budget() -> None:
    plain = tightest(penstock.open(MemorySource(pa.table(rows()), [10] * 4)), batch_size=4)
    dataset = penstock.open(KeepingSource(pa.table(rows()), [10] * 4))
    least = tightest(dataset, batch_size=4)
    assert least == plain + -(-plain // 8)
    for memory, most in ((least, least - plain), (5_000, 5_000 // 9), (1 << 20, 1_000)):
        KeepingSource.limits.clear()
        assert ids(dataset.loader(batch_size=4, memory_bytes=memory)) == [*range(TOTAL)]
        assert KeepingSource.limits == [most]
    with pytest.raises(BudgetError, match="indexes and narrow columns"):
        dataset.loader(batch_size=4, memory_bytes=least - 1)


def test_windows_over_time_read_whole_chunks() -> None:
    dataset = penstock.open(DividedSource())
    loader = dataset.loader(**OPTIONS, window=penstock.Window(2, by="id", max_gap=1))
    assert loader.order.name == "lanes-1"
    with pytest.raises(PlanError, match="parts=True needs"):
        dataset.loader(**OPTIONS, window=penstock.Window(2, by="id", max_gap=1), parts=True)


@given(st.data())
def test_a_split_selection_names_the_same_rows(data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=5))
    counts, bitmaps, wanted, at = [], {}, [], 0
    for chunk, one in enumerate(parts):
        keep = np.array(data.draw(st.lists(st.booleans(), min_size=sum(one), max_size=sum(one))))
        counts.append(int(keep.sum()))
        if 0 < counts[-1] < len(keep):
            bitmaps[chunk] = pack_mask(keep)
        wanted += (at + np.flatnonzero(keep)).tolist()
        at += len(keep)
    finer = [n for one in parts for n in one]
    table = pa.table({"id": np.arange(at)})
    found = Selection(np.array(counts), bitmaps).split(split_of(parts, MemorySource(table, finer)))
    starts = np.cumsum([0, *finer[:-1]])
    got = []
    for part, (start, size) in enumerate(zip(starts.tolist(), finer, strict=True)):
        some = found.rows_of(part)
        here = np.arange(size) if some is None else some
        assert len(here) == found.counts[part]
        got += (start + here).tolist()
    assert got == wanted


def test_parts_are_refused_where_a_source_has_none() -> None:
    whole = MemorySource(pa.table(rows()), [sum(one) for one in PARTS])
    with pytest.raises(PlanError, match="parts=True needs a source whose parts can be divided; MemorySource cannot"):
        penstock.open(whole).loader(**OPTIONS, parts=True)
    assert penstock.open(whole).loader(**OPTIONS).order.name == "lanes-1"
