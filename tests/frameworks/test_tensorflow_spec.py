"""`penstock.tensorflow.loader`: an element spec holds, numbers never wrap, and mistakes are told when it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

tf = pytest.importorskip("tensorflow")

import penstock  # noqa: E402
from penstock.errors import ColumnNotFound, PlanError, SchemaError, TransformError  # noqa: E402
from penstock.schema.transform import TransformSpec  # noqa: E402
from penstock.tensorflow import loader  # noqa: E402
from penstock.tensorflow._forms import Form  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

INTS = tf.TensorSpec([None], tf.int64)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    where = tmp_path_factory.mktemp("tf") / "numbers"
    penstock.write({"x": np.arange(500, 520), "y": np.arange(20)}, where)
    return str(where)


def only(batches: Any) -> Any:
    with batches:
        [batch] = list(batches)
    return batch


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "to"),
    [
        (np.array([1, 500]), np.int8),
        (np.array([-129]), np.int8),
        (np.array([2**63], np.uint64), np.int64),
        (np.array([1.0, 1e300]), np.float32),
        (np.array([70_000]), np.float16),
    ],
)
def test_a_number_that_does_not_fit_is_an_error_and_not_another_number(values: Any, to: Any) -> None:
    for form in (Form("x", np.dtype(to), loose=True), Form("x", np.dtype(to), ragged=1, loose=True)):
        rows = values if not form.ragged else [values]
        with pytest.raises(SchemaError, match=rf"column 'x' has .* that do not fit {np.dtype(to)}"):
            form.arrays(rows)


@pytest.mark.parametrize(
    ("values", "to"),
    [
        (np.array([-128, 127]), np.int8),
        (np.array([0.1, np.inf, -np.inf, np.nan]), np.float32),
        (np.array([True, False]), np.int8),
        (np.array([], np.int64), np.int8),
        (np.array([3, 4]), np.float32),
    ],
)
def test_numbers_that_fit_are_converted(values: Any, to: Any) -> None:
    [found] = Form("x", np.dtype(to), loose=True).arrays(values)
    assert found.dtype == to
    np.testing.assert_array_equal(found, values.astype(to))


def test_what_lies_below_a_mask_may_be_anything() -> None:
    values = np.ma.masked_array([1, 2], [False, True])  # fills with 999999
    numbers, valid = Form("x", np.dtype(np.int8), valid=True, loose=True).arrays(values)
    assert (numbers.tolist(), valid.tolist()) == ([1, 0], [True, False])


def test_rows_of_several_dtypes_do_not_wrap_into_that_of_the_first() -> None:
    [found] = Form("x", np.dtype(np.int64), loose=True).arrays([np.int8(1), np.int64(300)])
    assert found.tolist() == [1, 300]
    with pytest.raises(TransformError, match=r"column 'x' came as float64"):
        Form("x", np.dtype(np.int64), loose=True).arrays([np.int64(1), np.float64(1.5)])
    with pytest.raises(TransformError, match=r"rows of the shapes \(1,\), \(2,\)"):
        Form("x", np.dtype(np.int64), (2,), loose=True).arrays([np.zeros(2, np.int64), np.zeros(1, np.int64)])


def test_a_narrower_element_spec_is_kept_only_where_values_fit(url: str) -> None:
    spec = {"x": tf.TensorSpec([None], tf.int8)}
    with (
        loader(url, batch_size=20, columns=["x"], element_spec=spec) as batches,
        pytest.raises(tf.errors.InvalidArgumentError, match=r"'x' has int64 values from 500 to 519 that do not fit"),
    ):
        list(batches)
    wider = {"x": tf.TensorSpec([None], tf.int16)}
    assert only(loader(url, batch_size=20, columns=["x"], element_spec=wider))["x"].dtype == tf.int16


def test_edit_fields_are_kept_only_where_values_fit(url: str) -> None:
    spec = TransformSpec(
        lambda row: {"z": int(row["y"]) * 300}, edit_fields=[("z", np.int8, (), False)], selected_fields=["z"]
    )
    with (
        loader(url, batch_size=20, transform=spec) as batches,
        pytest.raises(tf.errors.InvalidArgumentError, match=r"'z' has int64 values .* edit_fields"),
    ):
        list(batches)


def test_the_other_order_of_bytes_is_turned_round(url: str) -> None:
    def swap(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": batch["x"].astype(">i8" if batch["x"][0] >= 510 else "<i8"), "y": batch["y"].astype(">f4")}

    with loader(url, batch_size=10, transform=swap) as batches:
        assert batches.element_spec["y"] == tf.TensorSpec([None], tf.float32)
        found = [(batch["x"].numpy()[0], batch["y"].numpy()[1]) for batch in batches]
    assert found == [(500, 1.0), (510, 11.0)]


# -- element_spec -----------------------------------------------------------------------------------------------------


def test_a_spec_that_names_no_column_or_not_all_is_refused(url: str) -> None:
    with pytest.raises(ColumnNotFound, match=r"element_spec names the column 'xx'; did you mean 'x'"):
        loader(url, batch_size=5, element_spec={"xx": INTS, "y": INTS})
    with pytest.raises(PlanError, match=r"element_spec says nothing of the column 'y'.*columns=\['x'\]"):
        loader(url, batch_size=5, element_spec={"x": INTS})
    for wrong in (INTS, [INTS], "x", {}):
        with pytest.raises(PlanError, match=r"element_spec must be a dict"):
            loader(url, batch_size=5, element_spec=wrong)
    assert list(only(loader(url, batch_size=20, columns=["x"], element_spec={"x": INTS}))) == ["x"]


def test_a_spec_says_which_masks_there_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([1, None])}), tmp_path / "a.parquet")
    for nulls in ("error", ["n"]):
        with pytest.raises(PlanError, match=r"nulls= does not go with element_spec=.*'<name>_valid'"):
            loader(tmp_path, batch_size=2, element_spec={"n": INTS}, nulls=nulls)
    with (
        loader(tmp_path, batch_size=2, element_spec={"n": INTS}) as batches,
        pytest.raises(tf.errors.InvalidArgumentError, match=r"column 'n' has nulls; add 'n_valid' to element_spec="),
    ):
        list(batches)
    masked = {"n": INTS, "n_valid": tf.TensorSpec([None], tf.bool)}
    assert only(loader(tmp_path, batch_size=2, element_spec=masked))["n_valid"].numpy().tolist() == [True, False]


def test_a_dtype_that_a_column_cannot_become_is_told(url: str) -> None:
    for dtype in (tf.string, tf.uint8):
        with (
            loader(url, batch_size=5, columns=["x"], element_spec={"x": tf.TensorSpec([None], dtype)}) as batches,
            pytest.raises(tf.errors.InvalidArgumentError, match=f"as int64, which does not become {dtype.name}"),
        ):
            list(batches)


def test_a_column_that_is_named_like_a_mask_is_a_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([1, 2]), "n_valid": pa.array([7, 8])}), tmp_path / "a.parquet")
    batch = only(loader(tmp_path, batch_size=2, element_spec={"n": INTS, "n_valid": INTS}))
    assert batch["n_valid"].numpy().tolist() == [7, 8]


def test_padding_is_part_of_a_spec_without_being_named(url: str) -> None:
    batch = only(loader(url, batch_size=20, remainder="pad", element_spec={"x": INTS, "y": INTS}))
    assert list(batch) == ["x", "y", "_valid"]


# -- transforms -------------------------------------------------------------------------------------------------------


def test_a_column_that_a_transform_adds_later_is_not_left_out(url: str) -> None:
    def adds(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": batch["x"], **({"late": batch["y"]} if batch["x"][0] >= 510 else {})}

    for options in ({}, {"element_spec": {"x": INTS}}):
        with loader(url, batch_size=10, transform=adds, **options) as batches:
            iterator = iter(batches)
            assert list(next(iterator)) == ["x"]
            with pytest.raises(tf.errors.OpError, match=r"TransformError: a batch came with the column 'late'"):
                next(iterator)


def test_errors_of_a_transform_and_of_a_closed_loader_are_unknown_to_tensorflow(url: str) -> None:
    def fails(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["x"][0] >= 510:
            raise ValueError("no")
        return batch

    with (
        loader(url, batch_size=10, transform=fails) as batches,
        pytest.raises(tf.errors.UnknownError, match="TransformError"),
    ):
        list(batches)
    with loader(url, batch_size=10) as batches:
        iterator = iter(batches)
        next(iterator)
    with pytest.raises(tf.errors.UnknownError, match="LoaderClosed"):
        next(iterator)


def test_a_transform_that_gives_nothing_is_told_when_the_loader_is_made(url: str) -> None:
    with pytest.raises(TransformError, match="no columns"):
        loader(url, batch_size=5, transform=lambda batch: {})


# -- nulls inside lists -----------------------------------------------------------------------------------------------


def test_pad_fills_nulls_inside_lists_of_texts(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": pa.array([["a", None], ["b"], None])}), tmp_path / "a.parquet")
    with (
        loader(tmp_path, batch_size=3) as batches,
        pytest.raises(tf.errors.InvalidArgumentError, match="give pad= a fill"),
    ):
        list(batches)
    batch = only(loader(tmp_path, batch_size=3, pad="-"))
    assert batch["t"].numpy().tolist() == [[b"a", b"-"], [b"b", b"-"], [b"-", b"-"]]


def test_pad_is_no_cure_for_lists_of_lists(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": pa.array([[[1], None]])}), tmp_path / "a.parquet")
    with (
        loader(tmp_path, batch_size=3) as batches,
        pytest.raises(tf.errors.InvalidArgumentError, match="fill it in transform=") as caught,
    ):
        list(batches)
    assert "pad=" not in caught.value.message.splitlines()[0]
