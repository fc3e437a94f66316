"""Predicates under Petastorm's names, and the defects of its own that they must not have."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.petastorm.predicates import (
    PredicateBase,
    in_intersection,
    in_lambda,
    in_negate,
    in_pseudorandom_split,
    in_reduce,
    in_set,
)


@pytest.fixture
def ds(tmp_path):
    count = 600
    data = {
        "id": np.arange(count),
        "twice": np.arange(count) * 2,
        "text": [None if i % 5 == 0 else f"t{i % 7}" for i in range(count)],
        "cell": np.arange(count * 4, dtype=np.float32).reshape(count, 2, 2),
    }
    penstock.write(data, tmp_path / "d", row_group_bytes=4000)
    return penstock.open(tmp_path / "d")


def rows_of(ds, **options):
    with ds.loader(batch_size=50, **options) as loader:
        batches = list(loader)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def test_every_class_is_a_predicate():
    for one in (in_set([1], "a"), in_intersection([1], "a"), in_pseudorandom_split([1.0], 0, "a")):
        assert isinstance(one, PredicateBase)
        assert one.get_fields() == {"a"}
        assert isinstance(in_negate(one), PredicateBase)
        assert isinstance(in_reduce([one], all), PredicateBase)


def test_a_split_parts_the_rows(ds):
    parts = [rows_of(ds.where(in_pseudorandom_split([0.5, 0.3, 0.2], part, "id")))["id"] for part in range(3)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(600))
    assert [round(len(part) / 600, 1) for part in parts] == [0.5, 0.3, 0.2]


def test_defect_5_2_1_shuffled_rows_and_a_predicate_keep_their_columns_together(ds):
    kept = rows_of(ds.where(in_lambda(["id"], lambda i: i % 3 == 0)), shuffle=True, seed=3)
    assert kept["id"].tolist() != sorted(kept["id"].tolist())
    assert sorted(kept["id"].tolist()) == list(range(0, 600, 3))
    assert (kept["twice"] == 2 * kept["id"]).all()
    assert (kept["cell"][:, 0, 0] == 4 * kept["id"]).all()


def test_defect_5_2_4_integers_stay_integers_under_a_predicate(ds):
    kept = rows_of(ds.where(in_set([3, 100, 599], "id")))
    assert kept["id"].tolist() == [3, 100, 599]
    assert (kept["id"].dtype, kept["twice"].dtype, kept["cell"].dtype) == (np.int64, np.int64, np.float32)


def test_defect_5_2_11_null_text_is_none_for_a_predicate(ds):
    assert len(ds.where(in_lambda(["text"], lambda text: text == "None"))) == 0
    assert len(ds.where(in_set(["None"], "text"))) == 0
    assert len(ds.where(in_lambda(["text"], lambda text: text is None))) == 120
    assert len(ds.where(in_set([None], "text"))) == 120


def test_defect_5_2_11_row_groups_without_rows_do_no_harm(tmp_path):
    table = pa.table({"id": pa.array(range(6), pa.int64())})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 3), table.slice(0, 0), table.slice(3, 3)):
            writer.write_table(part)
    ds = penstock.open(tmp_path)
    assert rows_of(ds.where(in_lambda(["id"], lambda i: i in (2, 4))))["id"].tolist() == [2, 4]
    assert rows_of(ds.where(in_set([0, 5], "id")))["id"].tolist() == [0, 5]


def test_defect_5_3_a_predicate_that_does_not_pickle_hangs_no_process_pool(ds):
    limit = 7
    kept = rows_of(ds.where(in_lambda(["id"], lambda i: i < limit)), pool="process", workers=1)
    assert kept["id"].tolist() == list(range(7))
