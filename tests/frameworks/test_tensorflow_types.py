"""What each type becomes in TensorFlow: static specs that batches keep, values that are exact, and clear refusals."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

tf = pytest.importorskip("tensorflow")

import penstock  # noqa: E402
from penstock import Unischema, UnischemaField, codecs  # noqa: E402
from penstock.errors import PlanError, SchemaError, UnsupportedType  # noqa: E402
from penstock.schema.transform import TransformSpec  # noqa: E402
from penstock.tensorflow import loader  # noqa: E402
from tests.frameworks.make_tf import everything, numbers  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return everything(tmp_path_factory.mktemp("tf") / "everything")


def write(path: Path, **columns: Any) -> str:
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path / "a.parquet", row_group_size=4)
    return str(path)


def only(batches: Any) -> Any:
    [batch] = list(batches)
    return batch


SPECS = {
    **{kind: (kind, [None]) for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    **{kind: (kind, [None]) for kind in ("float32", "float64", "bool")},
    "half": ("float16", [None]),
    **{name: ("string", [None]) for name in ("text", "bytes", "decimal", "null_text", "struct.b")},
    **{name: ("int64", [None]) for name in ("day", "moment", "span", "null_int", "struct.a")},
    "null_float": ("float64", [None]),
    "fixed": ("int32", [None, 2]),
}
RAGGED = {"list": ("float32", 1), "texts": ("string", 1), "nested": ("int64", 2), "null_list": ("int64", 1)}


def test_every_type_has_its_static_spec(url: str) -> None:
    with loader(url, batch_size=5) as batches:
        spec = dict(batches.element_spec)
    for name, (dtype, shape) in SPECS.items():
        assert spec.pop(name) == tf.TensorSpec(shape, tf.as_dtype(dtype)), name
    for name, (dtype, rank) in RAGGED.items():
        assert spec.pop(name) == tf.RaggedTensorSpec([None] * (rank + 1), tf.as_dtype(dtype), rank, tf.int64), name
    masks = {"null_int", "null_float", "null_text", "null_list", "list", "texts", "nested"}
    assert set(spec) == {f"{name}_valid" for name in masks}  # lists that may be empty may be null, by the footers
    assert set(spec.values()) == {tf.TensorSpec([None], tf.bool)}


def test_batches_keep_the_spec(url: str) -> None:
    with loader(url, batch_size=5, shuffle=True) as batches:
        for batch in batches:
            for name, spec in batches.element_spec.items():
                assert spec.is_compatible_with(batch[name]), name


def test_values_are_exact(url: str) -> None:
    ds = penstock.open(url)
    rows = [ds[row] for row in range(len(ds))]
    with loader(url, batch_size=100) as batches:
        batch = only(batches)
    for name in SPECS.keys() - {"text", "bytes", "decimal", "day", "moment", "span", "null_text", "struct.b"}:
        values, valid = batch[name].numpy(), batch.get(f"{name}_valid")
        for row, value in enumerate(values):
            want = rows[row][name]
            assert (valid is None or bool(valid[row])) == (want is not None)
            if want is not None:
                assert np.array_equal(value, want), name
    assert [text.decode() for text in batch["text"].numpy()] == [row["text"] for row in rows]
    assert batch["bytes"].numpy().tolist() == [row["bytes"] for row in rows]
    assert [Decimal(text.decode()) for text in batch["decimal"].numpy()] == [row["decimal"] for row in rows]
    assert batch["decimal"].numpy()[1] == b"1.50"
    for name, unit in (("day", "M8[ns]"), ("moment", "M8[ns]"), ("span", "m8[ns]")):
        assert (batch[name].numpy().view(unit) == np.array([row[name] for row in rows])).all()
    assert batch["null_text"].numpy()[2] == b""
    assert batch["null_text_valid"].numpy().tolist() == [row["null_text"] is not None for row in rows]
    assert np.isnan(batch["null_float"].numpy()[1])


def test_ragged_values_are_exact(url: str) -> None:
    ds = penstock.open(url)
    rows = [ds[row] for row in range(len(ds))]
    with loader(url, batch_size=100) as batches:
        batch = only(batches)
    assert batch["list"].to_list() == [row["list"].tolist() for row in rows]
    assert batch["nested"].to_list() == [[inner.tolist() for inner in row["nested"]] for row in rows]
    assert [[t.decode() for t in row] for row in batch["texts"].to_list()] == [row["texts"].tolist() for row in rows]
    assert batch["null_list"].to_list() == [
        [] if row["null_list"] is None else row["null_list"].tolist() for row in rows
    ]
    assert batch["null_list_valid"].numpy().tolist() == [row["null_list"] is not None for row in rows]


def test_pad_makes_dense_tensors(url: str) -> None:
    with loader(url, batch_size=100, columns=["list", "null_list"], pad=-1) as batches:
        assert batches.element_spec == {
            "list": tf.TensorSpec([None, None], tf.float32),
            "null_list": tf.TensorSpec([None, None], tf.int64),
        }
        batch = only(batches)
    assert batch["list"].numpy()[:3].tolist() == [[-1, -1, -1], [0, -1, -1], [0, 1, -1]]
    assert batch["null_list"].numpy()[2:4].tolist() == [[2], [-1]]


# -- nulls ------------------------------------------------------------------------------------------------------------


def test_a_nullable_column_without_nulls_has_no_mask(tmp_path: Path) -> None:
    url = write(tmp_path / "a", x=pa.array([1, 2, 3]), y=pa.array([[1], [2, 3], [4]]))
    with loader(url, batch_size=2) as batches:
        assert list(batches.element_spec) == ["x", "y"]


def test_masks_may_be_named_or_refused(tmp_path: Path) -> None:
    url = write(tmp_path / "a", x=pa.array([1, None, 3]), y=pa.array([1, 2, 3]))
    with loader(url, batch_size=3, nulls=["x", "y"]) as batches:
        batch = only(batches)
        assert list(batch) == ["x", "x_valid", "y", "y_valid"]
        assert batch["x_valid"].numpy().tolist() == [True, False, True]
        assert batch["y_valid"].numpy().all()
    for nulls in ("error", ["y"]):
        with loader(url, batch_size=3, nulls=nulls) as batches:
            assert "x_valid" not in batches.element_spec
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"column 'x' has nulls; name it in nulls="):
                list(batches)


def test_the_mask_of_an_array_has_its_shape(tmp_path: Path) -> None:
    url = write(tmp_path / "a", x=pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2)))
    with loader(url, batch_size=3) as batches:
        batch = only(batches)
    assert batch["x"].numpy().tolist() == [[1, 2], [0, 0], [3, 0]]
    assert batch["x_valid"].numpy().tolist() == [[True, True], [False, False], [True, False]]


def test_a_mask_does_not_hide_a_column(tmp_path: Path) -> None:
    url = write(tmp_path / "a", x=pa.array([1, None]), x_valid=pa.array([5, 6]))
    with pytest.raises(PlanError, match="'x_valid', which the dataset has"):
        loader(url, batch_size=2)
    with loader(url, batch_size=2, columns=["x"]) as batches:
        assert len(batches) == 1


def test_a_null_inside_a_list_is_an_error_and_pad_the_cure(tmp_path: Path) -> None:
    url = write(tmp_path / "a", x=pa.array([[1, None], [2]]), t=pa.array([["a", None], ["b"]]))
    for name in ("x", "t"):
        with (
            loader(url, batch_size=2, columns=[name]) as batches,
            pytest.raises(tf.errors.InvalidArgumentError, match=f"column '{name}' has a null inside"),
        ):
            list(batches)
    with loader(url, batch_size=2, columns=["x"], pad=0) as batches:
        assert only(batches)["x"].numpy().tolist() == [[1, 0], [2, 0]]


def test_a_padded_field_of_a_transform_is_dense(tmp_path: Path) -> None:
    url = write(tmp_path / "a", n=pa.array([1, 3]))
    fields = [("x", np.float32, (None, 2), False)]
    spec = TransformSpec(lambda row: {"x": np.ones((row["n"], 2), np.float32)}, fields, selected_fields=["x"])
    with loader(url, batch_size=2, transform=spec, pad=0) as batches:
        assert batches.element_spec["x"].shape.as_list() == [None, None, 2]
        assert only(batches)["x"].numpy()[0].tolist() == [[1, 1], [0, 0], [0, 0]]


def test_a_null_partition_has_a_mask(tmp_path: Path) -> None:
    for part, value in (("p=1", 1), ("p=__HIVE_DEFAULT_PARTITION__", 2)):
        write(tmp_path / "a" / part, x=pa.array([value]))
    with loader(tmp_path / "a", batch_size=2) as batches:
        batch = only(batches)
    assert sorted(zip(batch["x"].numpy(), batch["p_valid"].numpy(), strict=True)) == [(1, True), (2, False)]


def test_a_column_of_nulls_is_a_column_of_empty_strings(tmp_path: Path) -> None:
    with loader(write(tmp_path / "a", x=pa.nulls(3), y=pa.array([1, 2, 3])), batch_size=3) as batches:
        batch = only(batches)
    assert batch["x"].numpy().tolist() == [b"", b"", b""]
    assert not batch["x_valid"].numpy().any()


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_what_has_no_tensor_form_is_refused_at_once_with_a_cure(tmp_path: Path) -> None:
    table = {
        "m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "s": pa.array([[{"a": 1}]]),
    }
    for name, column in table.items():
        url = write(tmp_path / name, **{name: column, "x": pa.array([1])})
        with pytest.raises(UnsupportedType, match=f"column '{name}' has no tensor form.*columns=.*transform"):
            loader(url, batch_size=1)
        with loader(url, batch_size=1, columns=["x"]) as batches:
            assert len(batches) == 1
        with loader(url, batch_size=1, transform=lambda batch, n=name: {"n": np.array([len(batch[n])])}) as batches:
            assert only(batches)["n"].numpy().tolist() == [1]


def test_times_that_nanoseconds_cannot_tell_are_an_error_not_another_time(tmp_path: Path) -> None:
    days = pa.array([datetime.date(1, 1, 1), datetime.date(9999, 12, 31)])
    with (
        loader(write(tmp_path / "a", day=days), batch_size=2) as batches,
        pytest.raises(tf.errors.InvalidArgumentError, match="column 'day' holds 0001-01-01 to 9999-12-31"),
    ):
        list(batches)


# -- codecs -----------------------------------------------------------------------------------------------------------

SCHEMA = Unischema(
    "Cells",
    [
        UnischemaField("id", np.int32, (), codecs.ScalarCodec(), False),
        UnischemaField("fixed", np.float32, (2, 3), codecs.NdarrayCodec(), False),
        UnischemaField("free", np.float32, (None, 3), codecs.NdarrayCodec(), False),
        UnischemaField("freer", np.uint8, (None, None, 3), codecs.NdarrayCodec(), True),
        UnischemaField("last", np.int16, (2, None), codecs.CompressedNdarrayCodec(), False),
        UnischemaField("words", np.str_, (2,), codecs.NdarrayCodec(), False),
        UnischemaField("money", Decimal, (), codecs.ScalarCodec(pa.decimal128(10, 2)), False),
        UnischemaField("photo", np.uint8, (4, 5, 3), codecs.CompressedImageCodec("png"), True),
    ],
)


def cells(path: Path, rows: int = 10) -> str:
    rng = np.random.default_rng(0)
    penstock.write(
        [
            {
                "id": np.int32(row),
                "fixed": np.full((2, 3), row, np.float32),
                "free": np.full((row % 3, 3), row, np.float32),
                "freer": None if row == 4 else rng.integers(0, 256, (row % 3, row % 4, 3), dtype=np.uint8),
                "last": np.full((2, row % 3), row, np.int16),
                "words": np.array([f"a{row}", "ü"]),
                "money": Decimal(f"{row}.25"),
                "photo": None if row == 3 else np.full((4, 5, 3), row, np.uint8),
            }
            for row in range(rows)
        ],
        path,
        schema=SCHEMA,
    )
    return str(path)


def test_cells_of_codecs(tmp_path: Path) -> None:
    url = cells(tmp_path / "cells")
    ds = penstock.open(url)
    with loader(ds, batch_size=10) as batches:
        spec = batches.element_spec
        batch = only(batches)
    assert spec["fixed"] == tf.TensorSpec([None, 2, 3], tf.float32)
    assert spec["free"] == tf.RaggedTensorSpec([None, None, 3], tf.float32, 1, tf.int64)
    assert spec["freer"] == tf.RaggedTensorSpec([None, None, None, 3], tf.uint8, 2, tf.int64)
    assert spec["last"] == tf.RaggedTensorSpec([None, None, None], tf.int16, 2, tf.int64)
    assert spec["words"] == tf.TensorSpec([None, 2], tf.string)
    assert spec["photo_valid"] == tf.TensorSpec([None, 4, 5, 3], tf.bool)
    for row in range(10):
        want = ds[row]
        for name in ("fixed", "photo"):
            if want[name] is not None:
                assert (batch[name][row].numpy() == want[name]).all()
        for name in ("free", "freer", "last"):
            value = batch[name][row]
            got = value.to_list() if hasattr(value, "to_list") else value.numpy().tolist()
            assert got == ([] if want[name] is None else want[name].tolist())
        assert [word.decode() for word in batch["words"][row].numpy()] == want["words"].tolist()
        assert Decimal(batch["money"][row].numpy().decode()) == want["money"]
    assert batch["freer_valid"].numpy().tolist() == [row != 4 for row in range(10)]
    assert batch["photo_valid"].numpy()[:, 0, 0, 0].tolist() == [row != 3 for row in range(10)]


# -- transforms -------------------------------------------------------------------------------------------------------


def test_a_transform_is_asked_once_for_its_spec(tmp_path: Path) -> None:
    url = numbers(tmp_path / "n")
    sizes = []

    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        sizes.append(len(batch["x"]))
        size = len(batch["x"])
        return {
            "image": batch["image"].astype(np.float32) / 255,
            "pairs": np.stack([batch["x"], batch["x"]], axis=1),
            "even": batch["x"] % 2 == 0,
            "word": np.array(["w"] * size),
            "ragged": [np.arange(row % 3) for row in batch["x"]],
            "masked": np.ma.masked_array(batch["x"], batch["x"] % 2 == 0),
        }

    with loader(url, batch_size=32, transform=transform, pool="serial") as batches:
        assert sizes == [8]  # a small batch, before the first
        assert batches.element_spec == {
            "image": tf.TensorSpec([None, 4, 3], tf.float32),
            "pairs": tf.TensorSpec([None, 2], tf.int64),
            "even": tf.TensorSpec([None], tf.bool),
            "word": tf.TensorSpec([None], tf.string),
            "ragged": tf.RaggedTensorSpec([None, None], tf.int64, 1, tf.int64),
            "masked": tf.TensorSpec([None], tf.int64),
            "masked_valid": tf.TensorSpec([None], tf.bool),
        }
        batch = next(iter(batches))
    assert batch["ragged"].to_list()[:4] == [[], [0], [0, 1], []]
    assert batch["masked_valid"].numpy()[:3].tolist() == [False, True, False]
    assert batch["word"].numpy()[0] == b"w"


def test_a_transform_that_changes_its_mind_is_told(tmp_path: Path) -> None:
    url = numbers(tmp_path / "n")

    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        late = batch["x"][0] >= 50
        return {"x": batch["x"].astype(np.int32 if late else np.int64)}

    with (
        loader(url, batch_size=10, transform=transform) as batches,
        pytest.raises(tf.errors.OpError, match="column 'x' came as int32, where the element spec says int64"),
    ):
        list(batches)

    def drops(batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": batch["x"]} if batch["x"][0] >= 50 else {"x": batch["x"]}

    with (
        loader(url, batch_size=10, transform=drops) as batches,
        pytest.raises(tf.errors.OpError, match="without the column 'x', only 'y'"),
    ):
        list(batches)


def test_an_element_spec_is_taken_as_it_is(tmp_path: Path) -> None:
    url = numbers(tmp_path / "n")
    calls = []

    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        size = len(batch["x"])
        return {"grid": np.zeros((size, size, 2), np.float32), "list": [np.arange(2)] * size, "x": batch["x"]}

    spec = {
        "grid": tf.TensorSpec([None, None, 2], tf.float32),
        "list": tf.RaggedTensorSpec([None, None], tf.int64, 1),
        "x": tf.TensorSpec([None], tf.int64),
        "x_valid": tf.TensorSpec([None], tf.bool),
    }
    with loader(url, batch_size=30, transform=transform, element_spec=spec, pool="serial") as batches:
        assert not calls
        assert batches.element_spec["grid"] == spec["grid"]
        assert [batch["grid"].shape.as_list() for batch in batches] == [[30, 30, 2]] * 3 + [[10, 10, 2]]
    with pytest.raises(PlanError, match=r"must be a tf\.TensorSpec"):
        loader(url, batch_size=30, element_spec={"x": tf.int64})


def test_a_transform_spec_says_its_spec_itself(tmp_path: Path) -> None:
    url = numbers(tmp_path / "n")
    calls = []

    def half(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        return {"x": row["x"], "half": np.float32(row["x"] / 2), "tail": np.arange(row["x"] % 3)}

    spec = TransformSpec(
        half,
        edit_fields=[("half", np.float32, (), False), ("tail", np.int64, (None,), False)],
        removed_fields=["image", "text"],
    )
    with loader(url, batch_size=30, transform=spec, pool="serial") as batches:
        assert not calls
        assert batches.element_spec["half"] == tf.TensorSpec([None], tf.float32)
        batch = next(iter(batches))
    assert batch["half"].numpy()[:3].tolist() == [0, 0.5, 1]
    assert batch["tail"].to_list()[:3] == [[], [0], [0, 1]]


def test_windows_have_an_axis_of_time(tmp_path: Path) -> None:
    url = write(
        tmp_path / "w",
        t=pa.array(range(8)),
        v=pa.array([[float(row)] * 2 for row in range(8)], pa.list_(pa.float32(), 2)),
        s=pa.array([str(row) for row in range(8)]),
        r=pa.array([list(range(row % 3)) for row in range(8)]),
    )
    window = penstock.Window(3, by="t", max_gap=1)
    with loader(url, batch_size=4, window=window) as batches:
        assert batches.element_spec["v"] == tf.TensorSpec([None, 3, 2], tf.float32)
        assert batches.element_spec["s"] == tf.TensorSpec([None, 3], tf.string)
        assert batches.element_spec["r"] == tf.RaggedTensorSpec([None, None, None], tf.int64, 2, tf.int64)
        batch = next(iter(batches))
    assert batch["t"].numpy().tolist()[0] == [0, 1, 2]
    assert batch["s"].numpy().tolist()[1] == [b"1", b"2", b"3"]
    assert batch["r"].to_list()[0] == [[], [0], [0, 1]]
    chosen = penstock.Window(3, by="t", max_gap=1, columns={0: ["t", "v"], 2: ["v"]})
    with loader(url, batch_size=4, window=chosen) as batches:
        assert batches.element_spec["t"].shape.as_list() == [None, 1]
        assert batches.element_spec["v"].shape.as_list() == [None, 2, 2]
        list(batches)


def test_a_null_where_the_schema_allows_none_is_an_error(tmp_path: Path) -> None:
    schema = Unischema("S", [UnischemaField("x", np.int64, (), None, False)])
    ds = penstock.open(write(tmp_path / "a", x=pa.array([1, None])), schema=schema)
    with loader(ds, batch_size=2) as batches, pytest.raises(tf.errors.OpError, match="column 'x' has nulls"):
        list(batches)


def test_errors_are_ours_before_tensorflow_wraps_them() -> None:
    from penstock.tensorflow._forms import Form

    with pytest.raises(SchemaError, match="'x' has nulls"):
        Form("x", np.dtype(np.int64)).arrays(np.ma.masked_array([1, 2], [True, False]))
