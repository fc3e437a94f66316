"""What each kind of column becomes in PyTorch: shared where it can be, never dropped, nulls told."""

from __future__ import annotations

import decimal
import pickle

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from penstock.errors import PlanError, SchemaError, UnsupportedType  # noqa: E402
from penstock.testing import make_parquet, mixed  # noqa: E402
from penstock.torch import as_tensors, loader  # noqa: E402
from penstock.torch.tensors import _column, converter  # noqa: E402

NUMBERS = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
NUMBERS += ["float16", "float32", "float64", "complex64"]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_keep_their_dtype_and_memory(dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = as_tensors({"x": values})["x"]
    assert str(tensor.dtype) == f"torch.{dtype}"
    assert tensor.shape == (2, 3)
    assert tensor.data_ptr() == values.ctypes.data
    assert np.array_equal(tensor.numpy(), values)


def test_a_batch_of_the_engine_is_not_copied_and_stays_valid(tmp_path):
    penstock.write({"image": np.arange(4000).reshape(100, 5, 8), "label": np.arange(100)}, tmp_path / "data")
    ds = penstock.open(tmp_path / "data")
    given = []

    def keep(batch):
        given.append(batch)
        return batch

    with loader(ds, batch_size=16, transform=keep, workers=1) as batches:
        got = list(batches)
    by_memory = {batch["image"].ctypes.data for batch in given}
    assert all(batch["image"].data_ptr() in by_memory for batch in got)
    labels = torch.cat([batch["label"] for batch in got])
    assert labels.tolist() == list(range(100)), "memory was used again under the user's feet"


@pytest.mark.parametrize(
    "values",
    [
        np.arange(12).reshape(3, 4)[:, ::-1],
        np.broadcast_to(np.arange(4), (3, 4)),
        np.arange(12, dtype=">i4").reshape(3, 4),
        np.zeros(3, [("a", "i1"), ("b", "f8")])["b"],
    ],
    ids=["backwards", "read-only", "byte order", "odd strides"],
)
def test_what_torch_cannot_look_at_is_copied(values):
    tensor = as_tensors({"x": values})["x"]
    assert np.array_equal(tensor.numpy(), values)
    tensor[0] = 1


@pytest.mark.parametrize("dtype", ["M8[D]", "M8[s]", "M8[ms]", "M8[us]", "M8[ns]", "m8[s]", "m8[ns]"])
def test_times_are_nanoseconds(dtype):
    values = np.array([0, 3, -5], dtype)
    tensor = as_tensors({"t": values})["t"]
    assert tensor.dtype == torch.int64
    assert tensor.tolist() == values.astype(f"{dtype[0]}8[ns]").view(np.int64).tolist()
    assert (tensor.data_ptr() == values.ctypes.data) == dtype.endswith("[ns]")


def test_a_time_that_is_no_int64_of_nanoseconds_is_an_error():
    with pytest.raises(UnsupportedType, match=r"'t' of datetime64\[s\].*1677 to 2262.*transform="):
        as_tensors({"t": np.array(["3000-01-01"], "M8[s]")})
    assert as_tensors({"t": np.array(["NaT"], "M8[s]")})["t"].tolist() == [np.iinfo(np.int64).min]


def test_what_has_no_tensor_form_comes_as_lists():
    batch = as_tensors(
        {
            "text": np.array(["a", None], object),
            "money": np.array([decimal.Decimal("1.5"), decimal.Decimal(2)], object),
            "blob": np.array([b"x", b""], object),
            "fixed": np.array(["ab", "c"]),
            "ragged": [np.arange(3), np.arange(0)],
            "none": [np.arange(2), None],
            "maps": [[("k", 1)], []],
            "structs": [[{"a": np.arange(2)}], None],
            "windows": [[np.arange(1), np.arange(2)], [np.arange(3), None]],
        }
    )
    assert batch["text"] == ["a", None]
    assert batch["money"] == [decimal.Decimal("1.5"), decimal.Decimal(2)]
    assert batch["blob"] == [b"x", b""]
    assert batch["fixed"] == ["ab", "c"]
    assert [row.tolist() for row in batch["ragged"]] == [[0, 1, 2], []]
    assert batch["none"][0].tolist() == [0, 1]
    assert batch["none"][1] is None
    assert batch["maps"] == [[("k", 1)], []]
    assert batch["structs"][0][0]["a"].tolist() == [0, 1]
    assert batch["windows"][1][0].tolist() == [0, 1, 2]
    assert len(batch) == 9


def test_what_torch_has_no_dtype_for_is_an_error_that_names_the_column():
    with pytest.raises(UnsupportedType, match=r"'record'.*transform="):
        as_tensors({"record": np.zeros(2, [("a", "i4")])})


def test_tensors_of_a_transform_stay_what_they_are():
    tensor = torch.arange(4)
    assert as_tensors({"x": tensor})["x"] is tensor


# -- nulls ------------------------------------------------------------------------------------------------------------


def masked(values, mask):
    return np.ma.MaskedArray(np.array(values, np.float32), mask)


def test_nulls_have_a_mask_beside_them():
    batch = as_tensors({"x": masked([1, 0, 3], [False, True, False]), "y": masked([1, 2, 3], [False] * 3)})
    assert list(batch) == ["x", "y", "x_valid", "y_valid"]
    assert batch["x"].tolist() == [1, 0, 3]
    assert batch["x_valid"].dtype == torch.bool
    assert batch["x_valid"].tolist() == [True, False, True]
    assert batch["y_valid"].all(), "the keys of a batch do not depend on its rows"


def test_null_elements_of_ragged_rows_have_masks_too():
    rows = [masked([1, 2], [False, True]), None, np.arange(1, dtype=np.float32)]
    batch = as_tensors({"x": rows})
    assert batch["x"][1] is None
    assert [None if row is None else row.tolist() for row in batch["x_valid"]] == [[True, False], None, [True]]


def test_nulls_may_be_an_error():
    for values in (masked([1, 2], [False, True]), np.array(["a", None], object), [None, np.arange(2)]):
        with pytest.raises(SchemaError, match=r"'x' has a null.*nulls='mask'.*nulls=\['x'\].*filters="):
            as_tensors({"x": values}, nulls="error")
    assert as_tensors({"x": masked([1, 2], [False, False])}, nulls="error")["x"].tolist() == [1, 2]


def test_named_columns_have_their_mask_in_every_batch():
    with_null, without = masked([1, 2], [False, True]), np.arange(2)
    assert as_tensors({"x": with_null, "y": without}, nulls=["x"])["x_valid"].tolist() == [True, False]
    assert as_tensors({"x": without, "y": without}, nulls=["x"])["x_valid"].tolist() == [True, True]
    assert as_tensors({"x": np.array(["a", None], object)}, nulls=["x"])["x_valid"].tolist() == [True, False]
    with pytest.raises(SchemaError, match="'y' has a null"):
        as_tensors({"x": without, "y": with_null}, nulls=["x"])


def test_a_mask_does_not_replace_a_column():
    with pytest.raises(SchemaError, match="'x_valid', which is a column already"):
        as_tensors({"x": masked([1, 2], [False, True]), "x_valid": np.arange(2)})


def test_nulls_takes_no_other_word():
    with pytest.raises(PlanError, match="nulls must be 'mask', 'error' or a list of columns; got 'drop'"):
        as_tensors({}, nulls="drop")
    assert pickle.loads(pickle.dumps(converter(["x"])))({"x": np.arange(2)})["x_valid"].tolist() == [True, True]


def test_every_kind_of_column_of_a_dataset_arrives(tmp_path):
    ds = penstock.open(make_parquet(tmp_path / "data", columns=mixed))
    with ds.loader(batch_size=51) as native, loader(ds, batch_size=51) as batches:
        [want], [got] = native, batches
    masks = {f"{name}_valid" for name in ("small", "flag", "when")}
    assert set(got) == set(want) | masks
    for name in ("text", "blob", "money"):
        assert got[name] == want[name].tolist()
    assert [None if row is None else row.tolist() for row in got["ragged"]] == [
        None if row is None else row.tolist() for row in want["ragged"]
    ]
    assert np.array_equal(got["small_valid"].numpy(), ~want["small"].mask)
    assert np.array_equal(got["small"].numpy(), want["small"].data)
    assert np.array_equal(got["when"].numpy(), want["when"].data.astype("M8[ns]").view(np.int64))
    assert np.array_equal(got["pair"].numpy(), want["pair"])


@given(
    arrays=st.lists(
        npst.arrays(
            npst.boolean_dtypes()
            | npst.integer_dtypes(endianness="?", sizes=(8, 16, 32, 64))
            | npst.unsigned_integer_dtypes(endianness="?", sizes=(8,))
            | npst.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
            npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4),
        ),
        min_size=1,
        max_size=3,
    ),
    step=st.sampled_from([1, 2, -1]),
    writeable=st.booleans(),
)
def test_what_is_handed_over_at_once_equals_what_is_looked_at(arrays, step, writeable):
    batch = {str(i): array[::step] for i, array in enumerate(arrays)}
    for array in batch.values():
        array.flags.writeable = writeable
    found = as_tensors(batch)
    for name, array in batch.items():
        plain, _ = _column(name, array)
        assert found[name].dtype == plain.dtype
        assert found[name].shape == plain.shape
        assert torch.equal(found[name].nan_to_num(), plain.nan_to_num())
