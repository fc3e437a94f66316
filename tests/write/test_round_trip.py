"""What `penstock.write` wrote, `penstock.open` reads: rows, batches, partitions, an own codec, exact resumption."""

import datetime
import decimal
import itertools
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.testing import assert_resumes_exactly, assert_same, make_parquet, mixed, random_rows

SCHEMA = Unischema(
    "Frames",
    [
        UnischemaField("id", np.int32, (), ScalarCodec(), False),
        UnischemaField("tiny", np.uint8, (), ScalarCodec(), True),
        UnischemaField("name", np.str_, (), ScalarCodec(), True),
        UnischemaField("money", decimal.Decimal, (), ScalarCodec(pa.decimal128(10, 2)), True),
        UnischemaField("array", np.float32, (None, 3), NdarrayCodec(), True),
        UnischemaField("fixed", np.float64, (2, 3), NdarrayCodec(), False),
        UnischemaField("zipped", np.int64, (4,), CompressedNdarrayCodec(), False),
        UnischemaField("image", np.uint8, (6, 5, 3), CompressedImageCodec("png"), True),
    ],
)


def equal(got: Any, wanted: Any) -> None:
    assert (got is None) == (wanted is None)
    if wanted is not None:
        assert_same(np.asarray(got), np.asarray(wanted))


def test_rows_come_back_one_by_one(tmp_path: Path) -> None:
    rows = list(random_rows(SCHEMA, 40, seed=1))
    penstock.write(iter(rows), tmp_path / "d", SCHEMA, rows_per_file=15, row_group_bytes=5_000)
    dataset = penstock.open(tmp_path / "d")
    assert len(dataset) == 40
    assert list(dataset.schema.fields) == list(SCHEMA.fields)
    for index, row in enumerate(rows):
        got = dataset[index]
        for name, value in row.items():
            equal(got[name], value)


@pytest.mark.parametrize("codec", [NdarrayCodec(), CompressedNdarrayCodec(), None], ids=str)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)], ids=str)
def test_arrays_with_an_axis_of_0_come_back(tmp_path: Path, shape: Any, codec: Any) -> None:
    fields = [UnischemaField("id", np.int64, (), None, False), UnischemaField("x", np.float32, shape, codec, False)]
    rows = {"id": np.arange(5), "x": np.zeros((5, *shape), np.float32)}
    penstock.write(rows, tmp_path / "d", Unischema("S", fields))
    dataset = penstock.open(tmp_path / "d")
    assert_same(dataset[2]["x"], np.zeros(shape, np.float32))
    pools = ("thread", "process") if shape == (3, 0) else ("thread",)
    for shuffle, pool in itertools.product((False, True), pools):
        with dataset.loader(batch_size=2, shuffle=shuffle, pool=pool, workers=1) as loader:
            assert [batch["x"].shape for batch in loader] == [(2, *shape), (2, *shape), (1, *shape)]


@pytest.mark.parametrize("kind", [pa.list_(pa.int8(), 0), pa.list_(pa.list_(pa.int8(), 0), 2)], ids=str)
def test_lists_that_could_never_be_read_are_refused_before_anything_is_written(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(penstock.errors.SchemaError, match=r"column 'x' is fixed_size_list.*size 0"):
        penstock.write(pa.table({"x": pa.nulls(3, kind)}), tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_every_file_describes_itself(tmp_path: Path) -> None:
    rows = list(random_rows(SCHEMA, 20, seed=2))
    penstock.write(rows, tmp_path / "d", SCHEMA, rows_per_file=10)
    dataset = penstock.open(tmp_path / "d" / "part-000001.parquet")
    equal(dataset[3]["image"], rows[13]["image"])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (np.int32, [3, 1, 2]),
        (np.uint8, [0, 255, 7]),
        (np.str_, ["a/b", "50%", "\u00e9 x"]),
        (np.str_, ["1", "2", "3"]),
        (np.str_, ["007", None, "x"]),
        (np.bool_, [True, False, True]),
        (np.float64, [0.1, -2.5, 1e300]),
        (np.int64, [-5, None, 2**62]),
    ],
)
def test_partition_values_keep_their_type(tmp_path: Path, kind: Any, values: list[Any]) -> None:
    schema = Unischema(
        "S",
        [
            UnischemaField("id", np.int64, (), ScalarCodec(), False),
            UnischemaField("key", kind, (), ScalarCodec(), None in values),
        ],
    )
    rows = [{"id": i, "key": values[i % 3]} for i in range(12)]
    penstock.write(rows, tmp_path / "d", schema, partition_by="key")
    dataset = penstock.open(tmp_path / "d")
    got = {int(dataset[i]["id"]): dataset[i]["key"] for i in range(12)}
    for i in range(12):
        equal(got[i], rows[i]["key"] if rows[i]["key"] is None else kind(rows[i]["key"]))


def test_dates_are_partitions_too(tmp_path: Path) -> None:
    days = [datetime.date(2024, 2, 28 + i % 2) for i in range(6)]
    penstock.write(pa.table({"id": range(6), "day": days}), tmp_path / "d", partition_by="day")
    dataset = penstock.open(tmp_path / "d")
    assert sorted(int(dataset[i]["id"]) for i in range(6)) == list(range(6))


@pytest.mark.parametrize("data", [[], pa.table({"x": pa.array([], pa.float32())})])
def test_a_dataset_without_rows_opens(tmp_path: Path, data: Any) -> None:
    schema = Unischema("S", [UnischemaField("x", np.float32, (), ScalarCodec(), False)])
    penstock.write(data, tmp_path / "d", schema)
    assert len(penstock.open(tmp_path / "d")) == 0


def test_a_half_written_dataset_does_not_open(tmp_path: Path) -> None:
    (tmp_path / ".d.0123456789ab.writing").mkdir()
    make_parquet(tmp_path / ".d.0123456789ab.writing")
    with pytest.raises(FileNotFoundError):
        penstock.open(tmp_path / "d")
    with pytest.raises(FileNotFoundError):
        penstock.open(tmp_path)


class PackedCodec(penstock.codecs.DataframeColumnCodec):
    """An own codec, Petastorm's way."""

    def __init__(self, level: int) -> None:
        self.level = level

    def encode(self, unischema_field: Any, value: Any) -> bytes:
        return zlib.compress(value.tobytes(), self.level)

    def decode(self, unischema_field: Any, value: bytes) -> Any:
        return np.frombuffer(zlib.decompress(value), unischema_field.numpy_dtype).reshape(unischema_field.shape)


def test_an_own_codec_writes_and_reads(tmp_path: Path) -> None:
    penstock.register_codec(PackedCodec)
    schema = Unischema("S", [UnischemaField("x", np.int16, (3, 2), PackedCodec(9), False)])
    rows = list(random_rows(schema, 9))
    penstock.write(rows, tmp_path / "d", schema)
    dataset = penstock.open(tmp_path / "d")
    assert dataset.schema.fields["x"].codec.level == 9
    for index, row in enumerate(rows):
        equal(dataset[index]["x"], row["x"])


@pytest.mark.parametrize("shuffle", [False, "groups", True])
def test_loaders_of_written_data_resume_exactly(tmp_path: Path, shuffle: Any) -> None:
    penstock.write(random_rows(SCHEMA, 23), tmp_path / "d", SCHEMA, row_group_bytes=4_000)
    dataset = penstock.open(tmp_path / "d")
    tried = assert_resumes_exactly(lambda: dataset.loader(batch_size=4, shuffle=shuffle, seed=3, rank=0, world=1))
    assert tried == 2 * 6 + 1


@pytest.mark.parametrize("columns", [None, ["text", "ragged"]])
def test_loaders_of_mixed_columns_resume_exactly(tmp_path: Path, columns: list[str] | None) -> None:
    dataset = penstock.open(make_parquet(tmp_path / "d", columns=mixed), columns=columns)

    def loader() -> penstock.Loader:
        return dataset.loader(batch_size=8, shuffle=True, seed=7, epochs=2, rank=0, world=1)

    assert assert_resumes_exactly(loader, every=3) == 11
