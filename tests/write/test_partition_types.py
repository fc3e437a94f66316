"""A partition column comes back with the type and values it was written with, or is refused before anything is."""

import base64
import datetime
import json
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.codecs import ScalarCodec
from penstock.doctor import rewrite
from penstock.errors import MetadataError, SchemaError
from penstock.schema.stored import SCHEMA_KEY
from penstock.schema.unischema import Unischema, UnischemaField

NOON = datetime.datetime(2024, 2, 29, 12, 30, 15)
OLD = datetime.datetime(1900, 1, 1)
TINY = datetime.timedelta(microseconds=123_000)
TEXTS = ["01", "1", "a b", "x/y=z%", "%41", "S\u00e3o \U0001f600", "..", "null", "nan", " ", "a\nb\x00", "a+b", "'\"\\"]
KEPT: dict[str, pa.Array] = {
    **{str(t): pa.array([1, 0, 2**7 - 1, None], t) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(t): pa.array([1, 0, 2**8 - 1, None], t) for t in (pa.uint8(), pa.uint16(), pa.uint32())},
    "uint64": pa.array([0, 2**64 - 1, 1], pa.uint64()),
    "int64 limits": pa.array([-(2**63), 2**63 - 1, None]),
    "float16": pa.array(np.array([0.0, -0.0, 1.5, np.inf, np.nan, 0.1], np.float16)),
    "float32": pa.array([0.0, -0.0, 0.1, 1e-45, 3.4e38, math.inf, math.nan, None], pa.float32()),
    "float64": pa.array([0.0, -0.0, 0.1, 5e-324, 1e22, -math.inf, math.nan, None]),
    "bool": pa.array([True, False, None]),
    "string": pa.array([*TEXTS, None]),
    "large_string": pa.array([*TEXTS, None], pa.large_string()),
    "dictionary": pa.array([*TEXTS, None, "1"]).dictionary_encode(),
    "small dictionary": pa.DictionaryArray.from_arrays(
        pa.array([1, None, 0, 1], pa.int8()), pa.array(["a", "b"], pa.large_string()), ordered=True
    ),
    "numbers dictionary": pa.array([7, None, 300, 7], pa.int16()).dictionary_encode(),
    "date32": pa.array([datetime.date(2024, 2, 29), datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
    "date64": pa.array([datetime.date(2024, 2, 29), datetime.date(1900, 1, 1), None], pa.date64()),
    **{
        f"{unit} {zone}": pa.array([NOON, NOON + whole * TINY, OLD, None], pa.timestamp(unit, zone))
        for unit, whole in (("s", 0), ("ms", 1), ("us", 1), ("ns", 1))
        for zone in (None, "UTC", "Europe/Berlin", "+05:30")
    },
    "microseconds": pa.array([NOON.replace(microsecond=1), NOON], pa.timestamp("us")),
    "decimal128": pa.array([Decimal("1.50"), Decimal("0.00"), Decimal("-99999999.99"), None], pa.decimal128(10, 2)),
    "small decimals": pa.array([Decimal("0E-10"), Decimal("1E-10"), Decimal("-1E-9")], pa.decimal128(20, 10)),
    "whole decimals": pa.array([Decimal("0"), Decimal("12"), Decimal("-7")], pa.decimal128(5, 0)),
    "decimal256": pa.array([Decimal("1" * 50 + ".25"), Decimal("0.00"), None], pa.decimal256(60, 2)),
}  # fmt: skip
REFUSED: dict[str, Any] = {
    "null": pa.nulls(2),
    "binary": pa.array([b"a", b"b"]),
    "large_binary": pa.array([b"a", b"b"], pa.large_binary()),
    "fixed_size_binary": pa.array([b"ab", b"cd"], pa.binary(2)),
    "binary dictionary": pa.array([b"a", b"b"]).dictionary_encode(),
    "time32": pa.array([1, 2], pa.time32("ms")),
    "time64": pa.array([1, 2], pa.time64("ns")),
    "duration": pa.array([1, 2], pa.duration("us")),
    "list": pa.array([[1], [2]]),
    "fixed_size_list": pa.array([[1], [2]], pa.list_(pa.int8(), 1)),
    "large_list": pa.array([[1], [2]], pa.large_list(pa.int8())),
    "map": pa.array([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int8())),
}
if hasattr(pa, "uuid"):
    ids = pa.array([uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes], pa.binary(16))
    REFUSED["uuid"] = pa.ExtensionArray.from_storage(pa.uuid(), ids)
if hasattr(pa, "decimal32"):
    REFUSED["decimal32"] = pa.array([Decimal("1.5")] * 2, pa.decimal32(5, 1))
    REFUSED["decimal64"] = pa.array([Decimal("1.5")] * 2, pa.decimal64(5, 1))


def table_of(column: pa.Array) -> pa.Table:
    return pa.table({"id": np.arange(len(column)), "k": column})


def read(url: Any, **options: Any) -> pa.Table:
    source = penstock.open(url, **options).source
    tables = [source.read(chunk, ["id", "k"]) for chunk in range(len(source.facts.chunk_rows))]
    return pa.concat_tables(tables).sort_by("id")


def exact(column: pa.Array | pa.ChunkedArray) -> list[str]:
    """Return the values so that 0.0 and -0.0 differ, and nan equals itself."""
    return [repr(value) for value in column.to_pylist()]


@pytest.mark.parametrize("name", KEPT)
def test_type_and_values_come_back(tmp_path: Path, name: str) -> None:
    table = table_of(KEPT[name])
    penstock.write(table, tmp_path / "d", partition_by="k")
    got = read(tmp_path / "d")
    assert got.column("k").type == table.column("k").type
    assert exact(got.column("k")) == exact(table.column("k"))


@pytest.mark.parametrize("name", [name for name in KEPT if not name.startswith(("float16", "date64", "s "))])
def test_batches_are_those_of_the_column_in_files(tmp_path: Path, name: str) -> None:
    """But for types that Parquet files do not have."""
    table = table_of(KEPT[name])
    penstock.write(table, tmp_path / "folders", partition_by="k")
    penstock.write(table, tmp_path / "files")
    batches = []
    for place in ("folders", "files"):
        with penstock.open(tmp_path / place).loader(batch_size=table.num_rows) as loader:
            [batch] = loader
        order = np.argsort(batch["id"])
        batches.append({key: value[order] for key, value in batch.items()})
    for key, value in batches[1].items():
        assert batches[0][key].dtype == value.dtype
        assert list(map(repr, batches[0][key].tolist())) == list(map(repr, value.tolist()))


@pytest.mark.parametrize("name", REFUSED)
def test_other_types_are_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(SchemaError, match=r"partition_by: column 'k' is stored as .*folder name.*cast it"):
        penstock.write(table_of(REFUSED[name]), tmp_path / "d", partition_by="k")
    assert list(tmp_path.iterdir()) == []


def test_every_type_is_kept_or_refused() -> None:
    """A new type of pyarrow's must be put on one of the lists; views, unions and runs are not taken by `write`."""
    known = {column.type.id for column in (*KEPT.values(), *REFUSED.values())}
    missing = {
        "BINARY_VIEW", "STRING_VIEW", "LIST_VIEW", "LARGE_LIST_VIEW", "RUN_END_ENCODED", "SPARSE_UNION", "DENSE_UNION",
        "STRUCT", "EXTENSION", "INTERVAL_MONTHS", "INTERVAL_DAY_TIME", "INTERVAL_MONTH_DAY_NANO", "MAX_ID",
    }  # fmt: skip
    types = {name.removeprefix("Type_"): getattr(pa.lib, name) for name in dir(pa.lib) if name.startswith("Type_")}
    assert [name for name, number in types.items() if number not in known and name not in missing] == []


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array(["a", ""]), "has the value ''.*None"),
        (pa.array(["a", "__HIVE_DEFAULT_PARTITION__"]), "reads back as null"),
        (pa.array(["a", "x" * 300]), "longer than 255 bytes"),
        (pa.array([1, 2], pa.timestamp("ns")), "nanoseconds"),
        (pa.array([10**8, 1], pa.int32()).cast(pa.date32()), "outside the years 1 to 9999"),
        (pa.array([2**60, 1]).cast(pa.timestamp("us")), "outside the years 1 to 9999"),
    ],
)
def test_values_that_a_folder_name_does_not_keep_are_refused(tmp_path: Path, column: pa.Array, message: str) -> None:
    with pytest.raises(SchemaError, match=f"partition_by: column 'k' {message}|partition_by: column 'k' .*{message}"):
        penstock.write(table_of(column), tmp_path / "d", partition_by="k")
    assert list(tmp_path.iterdir()) == []


def test_a_value_of_a_dictionary_that_no_row_has_is_no_obstacle(tmp_path: Path) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), pa.array(["a", "", None]))
    penstock.write(table_of(column), tmp_path / "d", partition_by="k")
    assert read(tmp_path / "d").column("k").to_pylist() == ["a", "a"]


def test_rows_of_one_folder_keep_their_order(tmp_path: Path) -> None:
    nans = np.array([0x7FF8000000000000, 0x7FF8000000000001] * 2, np.uint64).view(np.float64)
    penstock.write(table_of(pa.array(nans)), tmp_path / "d", partition_by="k")
    [file] = (tmp_path / "d" / "k=nan").iterdir()
    assert pq.read_table(file, partitioning=None)["id"].to_pylist() == [0, 1, 2, 3]


def test_filters_compare_with_the_type(tmp_path: Path) -> None:
    for name, wanted in [
        ("date32", datetime.date(2024, 2, 29)),
        ("decimal128", Decimal("1.50")),
        ("dictionary", "01"),
        ("bool", True),
        ("us UTC", NOON.replace(tzinfo=datetime.UTC)),
    ]:
        table = table_of(KEPT[name])
        penstock.write(table, tmp_path / name, partition_by="k")
        got = penstock.open(tmp_path / name, filters=[("k", "=", wanted)])
        matches = [row["id"] for row in table.to_pylist() if row["k"] == wanted]
        assert got.take(np.arange(len(got)))["id"].tolist() == matches


def test_a_rewrite_keeps_type_and_values(tmp_path: Path) -> None:
    table = table_of(KEPT["ms Europe/Berlin"])
    penstock.write(table, tmp_path / "d", partition_by="k")
    rewrite(tmp_path / "d", tmp_path / "same")
    rewrite(tmp_path / "d", tmp_path / "flat", partition_by=())
    for place in ("same", "flat"):
        assert read(tmp_path / place).column("k").type == table.column("k").type
        assert exact(read(tmp_path / place).column("k")) == exact(table.column("k"))


def test_single_files_know_the_type_too(tmp_path: Path) -> None:
    penstock.write(table_of(KEPT["date32"]), tmp_path / "d", partition_by="k")
    (tmp_path / "d" / "_common_metadata").unlink()
    for place in (tmp_path / "d" / "k=2024-02-29", str(tmp_path / "d" / "k=2024*" / "*.parquet")):
        assert read(place).column("k").to_pylist() == [datetime.date(2024, 2, 29)]


def test_a_schema_given_at_opening_decides(tmp_path: Path) -> None:
    penstock.write(table_of(KEPT["date32"]), tmp_path / "d", partition_by="k")
    schema = Unischema(
        "S",
        [
            UnischemaField("id", np.int64, (), ScalarCodec(), False),
            UnischemaField("k", np.str_, (), ScalarCodec(), True),
        ],
    )
    assert read(tmp_path / "d", schema=schema).column("k").to_pylist() == [
        "2024-02-29",
        "0001-01-01",
        "9999-12-31",
        None,
    ]


def test_datasets_with_other_types_do_not_mix(tmp_path: Path) -> None:
    for name, zone in (("a", None), ("b", "UTC")):
        penstock.write(table_of(pa.array([NOON], pa.timestamp("us", zone))), tmp_path / name, partition_by="k")
    with pytest.raises(
        SchemaError, match=r"'k' was written as timestamp\[us, tz=UTC\] in .*b/.* but as timestamp\[us\] in"
    ):
        penstock.open([tmp_path / "a", tmp_path / "b"])


def test_a_dataset_written_before_types_were_stored_opens_as_it_did(tmp_path: Path) -> None:
    penstock.write(table_of(KEPT["date32"]), tmp_path / "d", partition_by="k")
    for file in (tmp_path / "d").rglob("*.parquet"):
        table = pq.read_table(file, partitioning=None)
        stored = json.loads(table.schema.metadata[SCHEMA_KEY])
        del stored["partitions"]
        pq.write_table(table.replace_schema_metadata({SCHEMA_KEY: json.dumps(stored)}), file)
    assert read(tmp_path / "d").column("k").type == pa.timestamp("us")


@pytest.mark.parametrize("damage", ["?", 7, base64.b64encode(b"no schema").decode()])
def test_damaged_types_are_an_error(tmp_path: Path, damage: Any) -> None:
    (tmp_path / "k=1").mkdir()
    stored = {"version": 1, "name": "S", "fields": [], "partitions": damage}
    table = pa.table({"id": [1]}).replace_schema_metadata({SCHEMA_KEY: json.dumps(stored)})
    pq.write_table(table, tmp_path / "k=1" / "a.parquet")
    with pytest.raises(MetadataError, match="is damaged"):
        penstock.open(tmp_path)
