"""`pad=` after a transform: what it makes or changes is padded too, or refused by name."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock import TransformSpec
from penstock.errors import PlanError, TransformError
from penstock.testing import make_parquet


@pytest.mark.parametrize("pool", ["thread", "serial", "process"])
@pytest.mark.parametrize("pad", [-1, {"tokens": -1}])
def test_what_a_transform_makes_is_padded_too(tmp_path, pool, pad):
    ds = penstock.open(make_parquet(tmp_path, [[6]]))
    with ds.loader(batch_size=3, pad=pad, transform=tokens_of, pool=pool, workers=1) as loader:
        batches = list(loader)
    for batch in batches:
        assert batch["tokens"].dtype == np.int64
        most = max(batch["id"])
        assert batch["tokens"].tolist() == [list(range(i)) + [-1] * (most - i) for i in batch["id"].tolist()]
        assert batch["words"] == [["a"] * i for i in batch["id"].tolist()], "no numbers: nothing fills them up"


def tokens_of(batch):
    counts = batch["id"].tolist()
    return {
        "id": batch["id"],
        "tokens": [list(range(count)) for count in counts],
        "words": [["a"] * count for count in counts],
    }


def two_lists(rows):
    lists = [list(range(i)) for i in rows.tolist()]
    return {"a": pa.array(lists, pa.list_(pa.int16())), "b": pa.array(lists, pa.list_(pa.int16()))}


def test_a_transform_that_changes_a_padded_column_has_it_padded_again(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[4]], columns=two_lists))

    def shorter(batch):
        assert batch["a"].shape == (4, 3), "padded as it was read"
        return {"a": [row[row >= 0][1:] for row in batch["a"]]}

    for pad in (-1, {"a": -1}):
        with ds.loader(batch_size=4, pad=pad, transform=shorter) as loader:
            (batch,) = loader
        assert batch["a"].dtype == np.int16
        assert batch["a"].tolist() == [[-1, -1], [-1, -1], [1, -1], [1, 2]]


@pytest.mark.parametrize("pad", [0, {"x": 0}])
def test_a_field_of_a_spec_is_padded_with_its_own_dtype_and_rank(tmp_path, pad):
    ds = penstock.open(make_parquet(tmp_path, [[4]]))

    def func(row):
        length = int(row["id"])
        return {**row, "x": None if length < 2 else np.ones((length, 2), np.float32)}

    spec = TransformSpec(func, edit_fields=[("x", np.float32, (None, 2), True)], selected_fields=["x"])
    with ds.loader(batch_size=2, pad=pad, transform=spec) as loader:
        empty, full = loader
    assert empty["x"].dtype == full["x"].dtype == np.float32
    assert empty["x"].shape == (2, 0, 2)
    assert full["x"].shape == (2, 3, 2)
    assert full["x"][0].tolist() == [[1, 1], [1, 1], [0, 0]]


def test_a_function_of_rows_that_changes_a_padded_column_has_it_padded_again(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[4]], columns=two_lists))
    spec = TransformSpec(lambda row: {**row, "a": row["a"][row["a"] >= 0]})
    with ds.loader(batch_size=4, pad={"a": -1}, transform=spec) as loader:
        (batch,) = loader
    assert batch["a"].tolist() == [[-1, -1, -1], [0, -1, -1], [0, 1, -1], [0, 1, 2]]


@pytest.mark.filterwarnings("ignore:.*edit_fields")
def test_a_function_of_rows_that_makes_integers_floats_has_no_fraction_cut_off(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[4]], columns=two_lists))
    spec = TransformSpec(lambda row: {**row, "a": [float(x) + 0.5 for x in row["a"] if x >= 0]})
    with ds.loader(batch_size=4, pad={"a": -1}, transform=spec) as loader:
        (batch,) = loader
    assert batch["a"].tolist() == [[-1, -1, -1], [0.5, -1, -1], [0.5, 1.5, -1], [0.5, 1.5, 2.5]]


def test_padding_that_cannot_be_done_after_a_transform_is_refused_by_name(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[4]]))

    def fails(pad, transform, error, match):
        with pytest.raises(error, match=match), ds.loader(batch_size=4, pad=pad, transform=transform) as loader:
            list(loader)

    fails({"token": 0}, tokens_of, TransformError, r"pad= names the column 'token'.*tokens.*row group 0")
    fails({"words": "", "tokens": 0.5}, tokens_of, TransformError, "pad=0.5 does not fit column 'tokens' of int")
    fails("x", tokens_of, TransformError, "pad='x' does not fit column 'tokens' of int")
    nested = {"x": [[[1], [2, 3]]] * 4}
    fails({"x": 0}, lambda _: nested, TransformError, "column 'x', whose rows have no common shape")
    spec = TransformSpec(None, edit_fields=[("x", np.int16, (None,), False)])
    fails({"y": 0}, spec, PlanError, "pad= names the column 'y', which is not one of variable shape; .*x")
    fails({"x": 1 << 20}, spec, PlanError, "does not fit column 'x' of int16")
    with ds.loader(batch_size=4, pad=0, transform=lambda _: nested) as loader:
        assert list(loader) == [nested], "one fill for all is for those that have a shape"
