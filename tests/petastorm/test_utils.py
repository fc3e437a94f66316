"""Petastorm's helpers: one row decoded, a value stored beside a dataset, a function in another process."""

from __future__ import annotations

import os
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from penstock.errors import DecodeError
from penstock.petastorm.unischema import Unischema, UnischemaField, encode_row
from penstock.petastorm.utils import DecodeFieldError, add_to_dataset_metadata, decode_row, run_in_subprocess

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = Unischema(
    "Rows",
    [
        UnischemaField("id", np.int32, (), ScalarCodec("int32"), False),
        UnischemaField("array", np.float32, (2,), NdarrayCodec(), False),
        UnischemaField("image", np.uint8, (2, 2, 3), CompressedImageCodec("png"), True),
        UnischemaField("plain", np.int16, (), None, False),
        UnischemaField("price", Decimal, (), None, False),
        UnischemaField("list", np.int64, (None,), None, False),
        UnischemaField("any", None, (), None, True),
    ],
)
ROW: dict[str, Any] = {
    "id": np.int32(3),
    "array": np.array([1, 2], np.float32),
    "image": np.arange(12, dtype=np.uint8).reshape(2, 2, 3),
    "plain": np.int16(4),
    "price": Decimal("1.50"),
    "list": np.array([1, 2, 3]),
    "any": {"a": 1},
}


def test_a_row_is_decoded_as_it_was() -> None:
    cells = encode_row(SCHEMA, ROW)
    found = decode_row(cells, SCHEMA)
    assert list(found) == list(ROW)
    for name, value in ROW.items():
        np.testing.assert_array_equal(found[name], value)
        assert type(found[name]) is type(value)
    assert found["array"].dtype == np.float32
    assert type(decode_row({"price": "1.5"}, SCHEMA)["price"]) is Decimal
    assert decode_row({"list": [1, 2]}, SCHEMA)["list"].dtype == np.int64


def test_null_stays_none_and_what_the_schema_lacks_is_left_out() -> None:
    assert decode_row({"other": 1, "image": None}, SCHEMA) == {"image": None}


def test_a_cell_that_cannot_be_decoded_names_its_field() -> None:
    with pytest.raises(DecodeFieldError, match="'array' with NdarrayCodec") as caught:
        decode_row({"array": b"nonsense"}, SCHEMA)
    assert caught.value.column == "array"
    assert caught.value.__cause__ is not None
    assert isinstance(caught.value, RuntimeError)  # as Petastorm's is
    with pytest.raises(DecodeFieldError, match="'plain' with no codec"):
        decode_row({"plain": "x"}, SCHEMA)


def test_the_error_of_petastorm_is_the_one_that_the_engine_raises() -> None:
    assert DecodeFieldError is DecodeError


def test_a_value_is_stored_beside_the_dataset(tmp_path: Path) -> None:
    penstock.write({"x": np.arange(3)}, tmp_path / "data")
    url = f"file://{tmp_path}/data"
    before = pq.read_metadata(tmp_path / "data" / "_common_metadata").metadata
    add_to_dataset_metadata(url, "mine", "one")
    add_to_dataset_metadata(penstock.open(url), b"other", b"\xff\x00")
    add_to_dataset_metadata(pq.ParquetDataset(tmp_path / "data"), "mine", "two")
    after = pq.read_metadata(tmp_path / "data" / "_common_metadata").metadata
    assert after[b"mine"] == b"two"
    assert after[b"other"] == b"\xff\x00"
    assert {key: after[key] for key in before if key != b"ARROW:schema"} == {
        key: value for key, value in before.items() if key != b"ARROW:schema"
    }
    assert penstock.open(url)[2]["x"] == 2


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(TypeError, match="a dataset is a URL"):
        add_to_dataset_metadata(3, "a", "b")


def _pid(add: int, *, times: int) -> tuple[int, int]:
    return os.getpid(), add * times


def _fail() -> None:
    raise KeyError("from there")


def test_a_function_runs_in_another_process() -> None:
    pid, value = run_in_subprocess(_pid, 3, times=4)
    assert pid != os.getpid()
    assert value == 12
    with pytest.raises(KeyError, match="from there"):
        run_in_subprocess(_fail)
