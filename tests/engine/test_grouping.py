"""A new kind of item takes one class: packs of sequences, dealt, resumed and skipped like rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import pytest

import penstock
from penstock.factories import make_loader
from penstock.options import LoaderOptions
from penstock.plan.order import Grouping, ItemRows
from penstock.testing import assert_resumes_exactly, make_parquet
from tests.engine.make import ids

ROWS = [[7, 3, 9], [5]]
COUNTS = [7, 3, 9, 5]


@dataclass(frozen=True)
class Packs(Grouping):
    """Rows 0; 1, 2; 3, 4, 5; ... of every chunk are an item: the last one has what is left."""

    name = "packs"
    starts: tuple[tuple[int, ...], ...] = tuple((*(s for s in (0, 1, 3, 6, 10) if s < n), n) for n in COUNTS)

    @property
    def counts(self):
        return np.array([len(one) - 1 for one in self.starts], np.int64)

    def locate(self, part, number):
        bounds = [self.starts[p][n : n + 2] for p, n in zip(part.tolist(), number.tolist(), strict=True)]
        row = [np.arange(*one) for one in bounds]
        sizes = np.array([len(one) for one in row])
        return ItemRows(
            chunk=np.repeat(part, sizes),
            row=np.concatenate(row),
            starts=np.concatenate(([0], np.cumsum(sizes))),
        )

    def most_rows(self, num_items, *, neighbours):
        return 4 * num_items


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    return penstock.open(make_parquet(tmp_path_factory.mktemp("packs"), ROWS))


def packs(ds, **options):
    chosen = LoaderOptions(**{"batch_size": 2, "rank": 0, "world": 1} | options)
    return make_loader(ds, chosen, Packs())


def expected():
    offsets = np.cumsum([0, *COUNTS])
    return [
        list(range(offset + a, offset + b))
        for offset, starts in zip(offsets, Packs().starts, strict=False)
        for a, b in pairwise(starts)
    ]


@pytest.mark.parametrize("shuffle", [False, "groups", True])
def test_every_item_comes_once_and_whole(ds, shuffle):
    with packs(ds, batch_size=1, shuffle=shuffle) as loader:
        found = [batch["id"].tolist() for batch in loader]
    assert sorted(found) == sorted(expected())
    assert (found == expected()) is (shuffle is False)


@pytest.mark.parametrize("pool", ["thread", "process"])
def test_batches_hold_so_many_items(ds, pool):
    with packs(ds, batch_size=4, pool=pool, workers=1) as loader:
        found = [batch["id"].tolist() for batch in loader]
    items = expected()
    assert found == [list(chain(*items[i : i + 4])) for i in range(0, len(items), 4)]


def test_they_resume_exactly_and_on_another_world(ds):
    assert_resumes_exactly(lambda: packs(ds, shuffle=True, seed=5, epochs=2))
    with packs(ds, batch_size=2, shuffle=True, seed=5, remainder="uneven") as loader:
        iterator = iter(loader)
        first = ids([next(iterator)])
        state = loader.state_dict()
    rest = []
    for rank in range(2):
        with packs(ds, batch_size=1, shuffle=True, seed=5, rank=rank, world=2, remainder="uneven") as loader:
            loader.load_state_dict(state)
            rest += ids(loader)
    assert sorted(first + rest) == list(range(sum(COUNTS)))


def test_padding_is_marked_for_every_row_of_an_item(ds):
    parts = [list(packs(ds, batch_size=2, rank=rank, world=4, remainder="pad")) for rank in range(4)]
    assert all(len(batch["_valid"]) == len(batch["id"]) for part in parts for batch in part)
    seen = [batch["id"][batch["_valid"]] for part in parts for batch in part]
    assert sorted(np.concatenate(seen).tolist()) == list(range(sum(COUNTS)))


def test_a_transform_gets_the_position_of_each_rows_item(ds):
    def at(batch, positions):
        return {"id": batch["id"], "at": positions}

    with packs(ds, transform=at) as loader:
        found = {int(i): int(p) for batch in loader for i, p in zip(batch["id"], batch["at"], strict=True)}
    assert found == {row: number for number, rows in enumerate(expected()) for row in rows}
