"""When a row is taken, all that it held may be used again: what waits for its batch is a copy, or is encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.codecs import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DataframeColumnCodec,
    NdarrayCodec,
    ScalarCodec,
)
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.write.arrays import own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = 100


def schema(kind: Any, shape: tuple[int | None, ...], codec: Any = None) -> Unischema:
    return Unischema("S", [UnischemaField("x", kind, shape, codec, True)])


def stored(url: Path) -> list[Any]:
    return list(pq.read_table(url)["x"].to_pylist())


def array(dtype: Any, shape: tuple[int, ...] = (2,)) -> tuple[Any, Callable[[int], None]]:
    values = np.zeros(shape, dtype)
    return values, lambda i: values.fill(i)


def masked() -> tuple[Any, Callable[[int], None]]:
    values = np.ma.MaskedArray(np.zeros(2, np.int32), [False, False])
    return values, lambda i: values.data.fill(i)


def listed(value: list[Any], inner: Any) -> tuple[Any, Callable[[int], None]]:
    def change(i: int) -> None:
        inner[:] = [i, i]

    return value, change


def of_bytes(view: bool) -> tuple[Any, Callable[[int], None]]:
    data = bytearray(2)

    def change(i: int) -> None:
        data[:] = bytes([i, i])

    return memoryview(data) if view else data, change


def nested() -> tuple[Any, Callable[[int], None]]:
    inner = [0, 0]
    return listed([inner], inner)


def array_in_list() -> tuple[Any, Callable[[int], None]]:
    inner = np.zeros(2, np.int32)
    return listed([inner], inner)


def flat() -> tuple[Any, Callable[[int], None]]:
    inner = [0, 0]
    return listed(inner, inner)


def twice(i: int) -> Any:
    return [i, i]


REUSED: dict[str, tuple[Callable[[], Any], Unischema, Callable[[int], Any]]] = {
    "array": (lambda: array(np.int32), schema(np.int32, (None,)), twice),
    "array of a wider dtype": (lambda: array(np.int64), schema(np.int32, (None,)), twice),
    "array of a fixed shape": (
        lambda: array(np.float32, (2, 2)),
        schema(np.float32, (2, 2)),
        lambda i: [[i, i], [i, i]],
    ),
    "array of objects": (lambda: array(object), schema(np.int32, (None,)), twice),
    "masked array": (masked, schema(np.int32, (None,)), twice),
    "list": (flat, schema(np.int32, (None,)), twice),
    "nested list": (nested, schema(np.int32, (None, None)), lambda i: [[i, i]]),
    "array in a list": (array_in_list, schema(np.int32, (None, None)), lambda i: [[i, i]]),
    "bytearray": (lambda: of_bytes(False), schema(np.bytes_, ()), lambda i: bytes([i, i])),
    "memoryview": (lambda: of_bytes(True), schema(np.bytes_, (), ScalarCodec()), lambda i: bytes([i, i])),
    "bytes as numbers": (lambda: of_bytes(False), schema(np.uint8, (None,)), twice),
}


@pytest.mark.parametrize("how", ["append", "generator", "extend rows"])
@pytest.mark.parametrize("name", REUSED)
def test_a_value_may_be_used_again(tmp_path: Path, name: str, how: str) -> None:
    make, form, expected = REUSED[name]
    value, change = make()

    def rows() -> Iterator[dict[str, Any]]:
        for i in range(ROWS):
            change(i)
            yield {"x": value}

    if how == "generator":
        penstock.write(rows(), tmp_path / "d", form)
    else:
        with penstock.Writer(tmp_path / "d", form) as writer:
            for row in rows():
                if how == "append":
                    writer.append(row)
                else:
                    writer.extend([row])
    assert stored(tmp_path / "d") == [expected(i) for i in range(ROWS)]


@penstock.register_codec
class Plus(DataframeColumnCodec):
    """Stores a list of small numbers as bytes."""

    def encode(self, unischema_field: Any, value: Any) -> Any:
        return bytes(value)


@penstock.register_codec
class Same(DataframeColumnCodec):
    """Hands back what it was given."""

    def encode(self, unischema_field: Any, value: Any) -> Any:
        return value


@pytest.mark.parametrize("codec", [Plus(), Same()], ids=str)
def test_values_of_a_users_codec_may_be_used_again(tmp_path: Path, codec: Any) -> None:
    value = bytearray(2)
    with penstock.Writer(tmp_path / "d", schema(None, (), codec)) as writer:
        for i in range(ROWS):
            value[:] = bytes([i, i])
            writer.append({"x": value})
    assert stored(tmp_path / "d") == [bytes([i, i]) for i in range(ROWS)]


@pytest.mark.parametrize("codec", [CompressedImageCodec("png"), CompressedNdarrayCodec(), NdarrayCodec()], ids=str)
@pytest.mark.parametrize("is_masked", [False, True])
def test_pixels_may_be_used_again(tmp_path: Path, codec: Any, is_masked: bool) -> None:
    pixels = np.zeros((4, 4), np.uint8)
    value = np.ma.MaskedArray(pixels, np.zeros((4, 4), bool), copy=False) if is_masked else pixels
    with penstock.Writer(tmp_path / "d", schema(np.uint8, (4, 4), codec)) as writer:
        for i in range(ROWS):
            pixels[:] = i
            writer.append({"x": value})
    found = penstock.open(tmp_path / "d").take(range(ROWS))["x"]
    assert np.asarray(found)[:, 0, 0].tolist() == list(range(ROWS))


def test_columns_given_to_extend_may_be_used_again(tmp_path: Path) -> None:
    form = schema(np.int32, (None,))
    arrays = [np.zeros(2, np.int32) for _ in range(5)]
    with penstock.Writer(tmp_path / "d", form) as writer:
        for i in range(20):
            for one in arrays:
                one[:] = i
            writer.extend({"x": arrays})
    assert stored(tmp_path / "d") == [[i, i] for i in range(20) for _ in arrays]


def test_what_waits_is_counted(tmp_path: Path) -> None:
    from penstock.write.sources import schema_layout
    from penstock.write.tasks import Hands, RowBuffer

    layout = schema_layout(schema(np.float64, (None,)), ())
    for value in (np.zeros(1000), [0.0] * 1000, [[0.0] * 500] * 2):
        form = layout if not isinstance(value[0], list) else schema_layout(schema(np.float64, (None, None)), ())
        buffer = RowBuffer(form, 0, Hands(lambda: False, True, batch_bytes=16_000))
        buffer.add({"x": value})
        assert not buffer.is_full() or isinstance(value, list)
        buffer.add({"x": value})
        assert buffer.is_full()


def test_what_cannot_change_is_not_copied() -> None:
    for value in (None, 5, 1.5, "text", b"bytes", np.int64(3), np.datetime64("2020-01-01"), range(3)):
        assert own(value) is value
    row = {"a": [1, (2, [3])], "b": np.zeros(2)}
    mine = own(row)
    row["a"][1][1].append(4)
    row["b"][:] = 1
    assert mine["a"] == [1, (2, [3])]
    assert mine["b"].tolist() == [0, 0]


def test_rows_of_a_list_are_not_copied() -> None:
    from penstock.write.sources import schema_layout
    from penstock.write.tasks import Hands, RowBuffer

    value = np.zeros(3, np.int32)
    for copy in (False, True):
        buffer = RowBuffer(schema_layout(schema(np.int32, (None,)), ()), 0, Hands(lambda: False, copy))
        buffer.add({"x": value})
        assert (buffer._cells[0][0] is value) == (not copy)
