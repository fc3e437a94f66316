"""`penstock.Writer`: rows and batches as they come, committed by the end of the block or not at all."""

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from penstock.errors import DatasetExists, PlanError, SchemaError
from penstock.schema.petastorm_dump import ROW_GROUPS_PER_FILE_KEY
from penstock.schema.petastorm_pickle import load_unischema
from penstock.schema.stored import PETASTORM_SCHEMA_KEY
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.testing import assert_same, random_rows

SCHEMA = Unischema(
    "Frames",
    [
        UnischemaField("id", np.int64, (), ScalarCodec(), False),
        UnischemaField("image", np.uint8, (8, 6, 3), CompressedImageCodec("png"), True),
        UnischemaField("array", np.float32, (3,), NdarrayCodec(), True),
    ],
)
IDS = Unischema("Ids", [UnischemaField("id", np.int64, (), ScalarCodec(), False)])


def read(root: Path) -> list[int]:
    return [i for path in sorted(root.rglob("*.parquet")) for i in pq.read_table(path)["id"].to_pylist()]


def test_rows_columns_and_tables_come_in_any_turn(tmp_path: Path) -> None:
    with penstock.Writer(tmp_path / "d", IDS) as writer:
        writer.append({"id": 0})
        writer.extend({"id": np.arange(1, 4)})
        writer.extend([{"id": 4}, {"id": 5}])
        writer.append({"id": 6})
        writer.extend(pa.table({"id": [7, 8]}))
        writer.extend(pa.table({"id": range(9, 12)}).to_batches(2))
        assert writer.rows == 12
    assert (writer.rows, writer.written.rows, writer.written.files) == (12, 12, 1)
    assert read(tmp_path / "d") == list(range(12))


def test_values_come_back(tmp_path: Path) -> None:
    rows = list(random_rows(SCHEMA, 300, seed=4))
    with penstock.Writer(tmp_path / "d", SCHEMA, row_group_bytes=20_000, workers=4) as writer:
        for row in rows:
            writer.append(row)
    dataset = penstock.open(tmp_path / "d")
    for index in range(0, 300, 7):
        for name, value in rows[index].items():
            assert (dataset[index][name] is None) == (value is None)
            if value is not None:
                assert_same(np.asarray(dataset[index][name]), np.asarray(value))


def test_a_row_and_its_arrays_may_be_used_again(tmp_path: Path) -> None:
    image, array, row = np.zeros((8, 6, 3), np.uint8), np.zeros(3, np.float32), {}
    column = np.zeros(5, np.int64)
    with penstock.Writer(tmp_path / "d", SCHEMA) as writer:
        for index in range(50):
            image[:], array[:] = index, index
            row.update(id=index, image=image, array=array)
            writer.append(row)
        for index in range(10, 20):
            column[:] = index
            writer.extend({"id": column})
    dataset = penstock.open(tmp_path / "d")
    for index in range(50):
        assert (dataset[index]["image"] == index).all()
        assert (dataset[index]["array"] == index).all()
    assert read(tmp_path / "d")[50:] == [i for i in range(10, 20) for _ in range(5)]


def test_nothing_is_there_before_the_end(tmp_path: Path) -> None:
    with penstock.Writer(tmp_path / "d", IDS, rows_per_file=2) as writer:
        writer.extend([{"id": i} for i in range(10)])
        assert not (tmp_path / "d").exists()
        with pytest.raises(RuntimeError, match="after the `with` block"):
            _ = writer.written
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize("form", ["rows", "generator", "columns"])
def test_the_callers_thread_encodes_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    encoded: Counter[str] = Counter()

    def encode(_codec: Any, _field: Any, _value: Any) -> bytes:
        encoded[threading.current_thread().name] += 1
        time.sleep(0.002)  # like a library that lets others run meanwhile
        return b"image"

    monkeypatch.setattr(CompressedImageCodec, "encode", encode)
    schema = Unischema("Large", [UnischemaField("image", np.uint8, (1024, 1024), CompressedImageCodec("png"), False)])
    images = [np.zeros((1024, 1024), np.uint8)] * 96
    rows = [{"image": image} for image in images]
    data = {"rows": rows, "generator": iter(rows), "columns": {"image": images}}[form]
    penstock.write(data, tmp_path / "d", schema, workers=2, row_group_bytes=2 << 20)
    assert encoded.total() == 96
    assert len(encoded) == 2
    assert encoded[threading.current_thread().name] >= 24


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_commits_nothing(tmp_path: Path, error: BaseException) -> None:
    def fail() -> None:
        with penstock.Writer(tmp_path / "d", IDS, rows_per_file=2) as writer:
            writer.extend([{"id": i} for i in range(10)])
            raise error

    with pytest.raises(type(error)):
        fail()
    assert list(tmp_path.iterdir()) == []
    assert not [t for t in threading.enumerate() if t.name.startswith("penstock")]


def test_without_a_block_commit_and_abort_do_the_same(tmp_path: Path) -> None:
    writer = penstock.Writer(tmp_path / "d", IDS)
    writer.append({"id": 1})
    assert writer.commit().rows == 1
    assert "closed" in repr(writer)
    for call in (lambda: writer.append({"id": 2}), writer.commit, writer.checkpoint):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    writer.abort()
    assert read(tmp_path / "d") == [1]
    other = penstock.Writer(tmp_path / "e", IDS)
    other.append({"id": 1})
    other.abort()
    other.abort()
    assert not (tmp_path / "e").exists()


def test_a_refused_row_is_not_taken(tmp_path: Path) -> None:
    with penstock.Writer(tmp_path / "d", SCHEMA) as writer:
        writer.append({"id": 0})
        for bad in ({"id": None}, {"id": 1, "imag": 3}, {"id": 1, "image": np.zeros((9, 6, 3), np.uint8)}, {"id": "x"}):
            with pytest.raises(SchemaError, match="row 1"):
                writer.append(bad)
        writer.append({"id": 1})
    assert read(tmp_path / "d") == [0, 1]


def test_what_a_codec_finds_out_late_ends_the_writing(tmp_path: Path) -> None:
    def fill() -> None:
        with penstock.Writer(tmp_path / "d", IDS) as writer:
            for index in range(100_000):
                writer.append({"id": int("9" * 25) if index == 5 else index})

    with pytest.raises(SchemaError, match=r"row 5, field 'id': 9{25} does not fit"):
        fill()
    assert list(tmp_path.iterdir()) == []


class Odd:
    """No codec takes it."""


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("image", np.zeros((8, 6), np.uint8), ["shape (8, 6)", "uint8, shape (8, 6, 3)"]),
        ("array", np.zeros(3, np.float64), ["float64", "float32, shape (3,)"]),
        ("id", None, ["int64", "missing value"]),
        ("image", Odd(), ["cannot encode Odd", "uint8, shape (8, 6, 3)"]),
        ("array", Odd(), ["cannot encode Odd", "float32, shape (3,)"]),
        ("id", Odd(), ["cannot encode Odd", "int64, shape ()"]),
    ],
)
def test_errors_name_row_field_wanted_and_got(tmp_path: Path, field: str, value: Any, words: list[str]) -> None:
    def fill() -> None:
        with penstock.Writer(tmp_path / "d", SCHEMA) as writer:
            for index in range(7):
                writer.append({"id": index})
            writer.append({"id": 7, field: value})

    with pytest.raises(SchemaError) as caught:
        fill()
    for word in ("row 7", f"field '{field}'", *words):
        assert word in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_first_table_decides_where_no_schema_is_given(tmp_path: Path) -> None:
    with penstock.Writer(tmp_path / "d") as writer:
        writer.extend({"id": np.arange(3), "xy": np.zeros((3, 2), np.float32)})
        writer.append({"id": 3, "xy": np.ones(2, np.float32)})
    dataset = penstock.open(tmp_path / "d")
    assert_same(dataset[3]["xy"], np.ones(2, np.float32))
    with pytest.raises(SchemaError, match="rows need a schema"), penstock.Writer(tmp_path / "e") as writer:
        writer.append({"id": 3})
    with pytest.raises(SchemaError, match="neither rows nor a schema"), penstock.Writer(tmp_path / "e"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_one_thread_and_many_write_the_same_bytes(tmp_path: Path) -> None:
    rows = list(random_rows(SCHEMA, 200, seed=5))
    for workers in (1, 2, 8):
        penstock.write(rows, tmp_path / str(workers), SCHEMA, workers=workers, row_group_bytes=5_000, rows_per_file=90)
    for name in sorted(path.name for path in (tmp_path / "1").iterdir()):
        assert len({(tmp_path / str(workers) / name).read_bytes() for workers in (1, 2, 8)}) == 1


def test_petastorms_metadata_is_beside_ours(tmp_path: Path) -> None:
    penstock.write(random_rows(SCHEMA, 30), tmp_path / "d", SCHEMA, row_group_bytes=1000, rows_per_file=10)
    pairs = pq.read_metadata(tmp_path / "d" / "_common_metadata").metadata
    assert list(load_unischema(pairs[PETASTORM_SCHEMA_KEY]).fields) == list(SCHEMA.fields)
    groups = {path.name: pq.read_metadata(path).num_row_groups for path in (tmp_path / "d").glob("*.parquet")}
    assert json.loads(pairs[ROW_GROUPS_PER_FILE_KEY]) == groups


def test_a_schema_that_petastorm_has_not_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    schema = Unischema("S", [UnischemaField("x", np.timedelta64, (), ScalarCodec(), False)])
    with caplog.at_level("INFO", logger="penstock"):
        penstock.write([{"x": np.timedelta64(3, "us")}], tmp_path / "d", schema)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "'x'" in caplog.text
    assert PETASTORM_SCHEMA_KEY not in pq.read_metadata(tmp_path / "d" / "_common_metadata").metadata


@pytest.mark.parametrize("bad", [{"workers": 0}, {"part": -1}, {"part": "a"}, {"part": 10**6}])
def test_options_are_checked(tmp_path: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=next(iter(bad))):
        penstock.Writer(tmp_path / "d", IDS, **bad)
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_is_refused_before_any_row_is_made(tmp_path: Path) -> None:
    penstock.write([{"id": 1}], tmp_path / "d", IDS)
    with pytest.raises(DatasetExists, match="overwrite=True"):
        penstock.Writer(tmp_path / "d", IDS)
    with penstock.Writer(tmp_path / "d", IDS, overwrite=True) as writer:
        writer.append({"id": 2})
        assert read(tmp_path / "d") == [1]
    assert read(tmp_path / "d") == [2]
