"""Random rows: every dtype, right class and shape, and good to be written."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import penstock
from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from penstock.codecs.scalar import SparkType
from penstock.petastorm.generator import generate_datapoint
from penstock.petastorm.unischema import Unischema, UnischemaField

if TYPE_CHECKING:
    from pathlib import Path

SCALARS: list[Any] = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
SCALARS += [np.float16, np.float32, np.float64, np.bool_, np.str_, np.bytes_, np.datetime64, Decimal]
SCHEMA = Unischema(
    "Everything",
    [UnischemaField(f"s{number}", kind, (), None, False) for number, kind in enumerate(SCALARS)]
    + [
        UnischemaField("small", np.uint16, (), ScalarCodec(SparkType("ShortType")), False),
        UnischemaField("day", np.datetime64, (), ScalarCodec(SparkType("DateType")), False),
        UnischemaField("price", Decimal, (), ScalarCodec(SparkType("DecimalType", 6, 4)), False),
        UnischemaField("image", np.uint8, (4, None, 3), CompressedImageCodec("png"), False),
        UnischemaField("array", np.float32, (None, 2), NdarrayCodec(), False),
        UnischemaField("words", np.str_, (3,), NdarrayCodec(), True),
        UnischemaField("complex", np.complex64, (2,), CompressedNdarrayCodec(), True),
    ],
)


def test_values_have_the_class_and_shape_of_their_fields() -> None:
    row = generate_datapoint(SCHEMA)
    assert list(row) == list(SCHEMA.fields)
    for name, field in SCHEMA.fields.items():
        if field.shape:
            assert row[name].dtype.type is field.numpy_dtype, name
            assert row[name].shape == tuple(13 if size is None else size for size in field.shape)
        else:
            assert isinstance(row[name], field.numpy_dtype), name


def test_rows_are_written_and_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows = [generate_datapoint(SCHEMA, rng=rng) for _ in range(20)]
    penstock.write(rows, tmp_path / "data", SCHEMA)
    dataset = penstock.open(tmp_path / "data")
    for number, row in enumerate(rows):
        for name, value in dataset[number].items():
            np.testing.assert_array_equal(value, row[name], err_msg=name)


def test_a_generator_makes_them_repeatable_and_the_global_one_is_left_alone() -> None:
    before = np.random.get_state()[1].tolist()  # noqa: NPY002 - it is what must not change
    first, again, other = (generate_datapoint(SCHEMA, rng=np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first["array"].tolist() == again["array"].tolist() != other["array"].tolist()
    assert before == np.random.get_state()[1].tolist()  # noqa: NPY002


def test_a_field_without_a_dtype_gets_a_float() -> None:
    assert isinstance(generate_datapoint(Unischema("s", [UnischemaField("x", None, ())]))["x"], float)


@pytest.mark.parametrize("shape", [(), (None,), (2, None)])
def test_free_dimensions_are_thirteen(shape: tuple[int | None, ...]) -> None:
    made = generate_datapoint(Unischema("s", [UnischemaField("x", np.int32, shape)]))["x"]
    assert np.shape(made) == tuple(13 if size is None else size for size in shape)
