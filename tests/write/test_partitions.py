"""Partition columns become folders that any reader of Hive partitions understands."""

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from penstock.codecs import NdarrayCodec, ScalarCodec
from penstock.errors import ColumnNotFound, SchemaError
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.write import files as files_module
from penstock.write import options, write

SCHEMA = Unischema(
    "S",
    [
        UnischemaField("id", np.int64, (), ScalarCodec(), False),
        UnischemaField("day", np.int32, (), ScalarCodec(), False),
        UnischemaField("city", np.str_, (), ScalarCodec(), True),
    ],
)
CITIES = ["S\u00e3o Paulo", None, "a/b=c%", "Bern"]


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": i, "day": i % 3, "city": CITIES[i % 4]} for i in range(count)]


def folders(root: Path) -> set[str]:
    return {path.parent.relative_to(root).as_posix() for path in root.rglob("*.parquet")}


def test_folders_hold_the_values(tmp_path: Path) -> None:
    written = write(rows(24), tmp_path / "d", SCHEMA, partition_by=["day", "city"])
    assert (written.rows, written.files) == (24, 12)
    names = {"São Paulo", "__HIVE_DEFAULT_PARTITION__", "a%2Fb%3Dc%25", "Bern"}
    assert folders(tmp_path / "d") == {f"day={day}/city={city}" for day in range(3) for city in names}
    file = next((tmp_path / "d").rglob("*.parquet"))
    assert pq.read_schema(file).names == ["id"]


def test_pyarrow_reads_them_back(tmp_path: Path) -> None:
    write(rows(100), tmp_path / "d", SCHEMA, partition_by=["day", "city"])
    kind = pads.partitioning(pa.schema([("day", pa.int32()), ("city", pa.string())]), flavor="hive")
    got = pads.dataset(tmp_path / "d", format="parquet", partitioning=kind).to_table().to_pylist()
    assert sorted(got, key=lambda row: row["id"]) == rows(100)


def test_one_column_may_be_given_by_name_and_order_is_kept(tmp_path: Path) -> None:
    write(rows(30), tmp_path / "d", SCHEMA, partition_by="day")
    assert pq.read_table(tmp_path / "d" / "day=1" / "part-000000.parquet", partitioning=None)["id"].to_pylist() == [
        i for i in range(30) if i % 3 == 1
    ]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (pa.array([True, False, None]), {"true", "false", "__HIVE_DEFAULT_PARTITION__"}),
        (pa.array([1.5, -2.0, 0.1]), {"1.5", "-2.0", "0.1"}),
        (pa.array([datetime.date(2024, 2, 29)] * 3), {"2024-02-29"}),
        (pa.array([decimal.Decimal("1.50")] * 3), {"1.50"}),
        (pa.array(["x", "x", "y"]).dictionary_encode(), {"x", "y"}),
    ],
)
def test_values_of_many_types(tmp_path: Path, values: pa.Array, names: set[str]) -> None:
    write(pa.table({"id": [1, 2, 3], "key": values}), tmp_path / "d", partition_by="key")
    assert folders(tmp_path / "d") == {f"key={name}" for name in names}


def test_row_groups_and_files_are_cut_in_each_folder(tmp_path: Path) -> None:
    write(rows(30), tmp_path / "d", SCHEMA, partition_by="day", rows_per_file=4)
    counts = [pq.read_metadata(path).num_rows for path in sorted((tmp_path / "d" / "day=0").iterdir())]
    assert counts == [4, 4, 2]


def test_many_partitions_stay_within_memory_and_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "OPEN_FILES", 3)
    monkeypatch.setattr(files_module, "BUFFERED_GROUPS", 1)
    monkeypatch.setattr(options, "BATCH_ROWS", 7)
    data = [{"id": i, "day": i % 20, "city": None} for i in range(400)]
    write(iter(data), tmp_path / "d", SCHEMA, partition_by="day", row_group_bytes=100)
    got = pads.dataset(tmp_path / "d", format="parquet", partitioning="hive").to_table(["id", "day"]).to_pylist()
    assert sorted((row["id"], row["day"]) for row in got) == [(i, i % 20) for i in range(400)]
    for day in range(20):
        paths = sorted((tmp_path / "d" / f"day={day}").iterdir())
        stored = [i for path in paths for i in pq.read_table(path, partitioning=None)["id"].to_pylist()]
        assert stored == [i for i in range(400) if i % 20 == day]


def test_without_rows_the_columns_stay_in_the_file(tmp_path: Path) -> None:
    write([], tmp_path / "d", SCHEMA, partition_by="day")
    assert folders(tmp_path / "d") == {"."}
    assert pq.read_schema(tmp_path / "d" / "part-000000.parquet").names == ["id", "day", "city"]


def test_columns_that_cannot_be_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ColumnNotFound, match="no column 'dya'; did you mean 'day'"):
        write(rows(3), tmp_path / "d", SCHEMA, partition_by="dya")
    with pytest.raises(SchemaError, match="names every column"):
        write(rows(3), tmp_path / "d", SCHEMA, partition_by=["id", "day", "city"])
    arrays = Unischema("S", [*SCHEMA.fields.values(), UnischemaField("x", np.int8, (2,), NdarrayCodec(), False)])
    with pytest.raises(SchemaError, match="column 'x' is stored as binary"):
        write([], tmp_path / "d", arrays, partition_by="x")
    with pytest.raises(SchemaError, match=r"column '.x'.*hidden"):
        write({".x": np.arange(3), "y": np.arange(3)}, tmp_path / "d", partition_by=".x")
    with pytest.raises(SchemaError, match=r"column 'city' has the value ''.*None"):
        write([{"id": 1, "day": 1, "city": ""}], tmp_path / "d", SCHEMA, partition_by="city")
    assert list(tmp_path.iterdir()) == []
