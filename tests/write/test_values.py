"""A value is stored as it is or refused: never cut, wrapped, made infinite, or read back as another."""

import datetime
import enum
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.codecs import NdarrayCodec, ScalarCodec
from penstock.codecs.scalar import SparkType
from penstock.errors import ColumnNotFound, PlanError, SchemaError
from penstock.schema.unischema import Unischema, UnischemaField


def schema(*args: Any, codec: Any = None, nullable: bool = False) -> Unischema:
    return Unischema("S", [UnischemaField("x", *args, codec, nullable)])


def stored(url: Path) -> list[Any]:
    return list(pq.read_table(url)["x"].to_pylist())


LOSSES: list[tuple[Unischema, Any]] = [
    (schema(np.int32, ()), 1.5),
    (schema(np.int32, ()), "7"),
    (schema(np.int32, ()), float("nan")),
    (schema(np.uint8, ()), 300),
    (schema(np.int32, (None,)), np.array([1.7, 1.0])),
    (schema(np.int32, (None,)), [1, 1.7]),
    (schema(np.int32, (2,)), [1, 1.7]),
    (schema(np.uint8, (None,)), [1, 300]),
    (schema(np.uint8, (None,)), np.array([1, 300])),
    (schema(np.float16, ()), 1e6),
    (schema(np.float16, (None,)), [1.0, 1e6]),
    (schema(np.float32, ()), 1e300),
    (schema(np.float32, (), codec=ScalarCodec()), -1e300),
    (schema(np.float32, (None,)), [1.0, 1e300]),
    (schema(np.float16, (), codec=ScalarCodec()), 1e6),
    (schema(np.int64, (), codec=ScalarCodec(SparkType("IntegerType"))), 2**40),
    (schema(np.float64, (), codec=ScalarCodec(SparkType("FloatType"))), 1e300),
    (schema(np.int32, ()), Fraction(3, 2)),
    (schema(np.int32, ()), np.complex128(1 + 2j)),
    (schema(np.int32, ()), np.timedelta64(5, "ns")),
    (schema(np.int32, ()), datetime.date(2024, 1, 1)),
    (schema(np.float64, ()), np.complex128(1 + 2j)),
    (schema(np.float64, ()), Decimal("1e400")),
    (schema(np.float64, ()), 2**53 + 1),
    (schema(np.float64, (), codec=ScalarCodec()), np.int64(-(2**53) - 1)),
    (schema(np.int64, (None,)), np.array([5], "m8[ns]")),
    (schema(np.int64, (None,)), [np.timedelta64(5, "ns")]),
    (schema(np.int64, (None,)), {1.5}),
    (schema(np.int64, (None,)), b"ab"),
    (schema(np.int64, (None,)), {0: 1}),
]


@pytest.mark.parametrize(("form", "value"), LOSSES, ids=str)
@pytest.mark.parametrize("given", ["rows", "columns"])
def test_a_number_that_its_column_cannot_hold_is_refused(
    tmp_path: Path, form: Unischema, value: Any, given: str
) -> None:
    good = [1, 2] if form.fields["x"].shape else 1
    rows = [{"x": good}, {"x": value}]
    data: Any = rows if given == "rows" else {"x": [row["x"] for row in rows]}
    with pytest.raises(SchemaError, match=r"row 1, field 'x'"):
        penstock.write(data, tmp_path / "d", form)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("dtype", "kind", "value"),
    [(np.int64, "IntegerType", 2**40), (np.float64, "FloatType", 1e300), (np.int64, "ShortType", -(2**15) - 1)],
)
def test_an_array_of_numbers_is_looked_at_where_its_column_is_narrower(
    tmp_path: Path, dtype: Any, kind: str, value: Any
) -> None:
    form = schema(dtype, (), codec=ScalarCodec(SparkType(kind)))
    with pytest.raises(SchemaError, match=r"row 2, field 'x'"):
        penstock.write({"x": np.array([1, 2, value], dtype)}, tmp_path / "d", form)


def test_lists_in_arrow_are_looked_at_too(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([[1], None, [2, 300]], pa.list_(pa.int16()))})
    with pytest.raises(SchemaError, match=r"row 2, field 'x': 300 is not within 0 to 255"):
        penstock.write(table, tmp_path / "d", schema(np.uint8, (None,), nullable=True))


@pytest.mark.parametrize(
    ("form", "value", "expected"),
    [
        (schema(np.int32, ()), 2.0, 2),
        (schema(np.int32, ()), np.int64(7), 7),
        (schema(np.float32, ()), float("inf"), float("inf")),
        (schema(np.float16, ()), float("-inf"), float("-inf")),
        (schema(np.float32, ()), 3, 3.0),
        (schema(np.float32, (None,)), [1, None, 2.5], [1.0, None, 2.5]),
        (schema(np.int32, (None,)), [], []),
        (schema(np.int32, (None,)), np.array([1.0, 2.0]), [1, 2]),
        (schema(np.str_, (None,)), ["a", None], ["a", None]),
        (schema(np.bool_, (None,)), [True, False], [True, False]),
        (schema(np.timedelta64, ()), np.timedelta64(5, "s"), datetime.timedelta(seconds=5)),
        (schema(np.float64, ()), 2**60, float(2**60)),
        (schema(np.float64, ()), np.int64(-(2**53)), -float(2**53)),
        (schema(np.float32, ()), 2**24 + 2, float(2**24 + 2)),
        (schema(np.float32, (), codec=ScalarCodec()), 2**24 + 1, float(2**24)),
        (schema(np.int64, (None,)), [2**53 + 1, 1.0], [2**53 + 1, 1]),
        (schema(np.int32, (None,)), range(3), [0, 1, 2]),
        (schema(np.int32, (None,)), pa.array([1, None]), [1, None]),
        (schema(np.int64, (None, None)), [np.array([[1, 2]])[0], [3]], [[1, 2], [3]]),
        (schema(np.uint8, (None,)), b"ab", [97, 98]),
    ],
    ids=str,
)
def test_what_fits_is_taken(tmp_path: Path, form: Unischema, value: Any, expected: Any) -> None:
    penstock.write([{"x": value}], tmp_path / "d", form)
    assert stored(tmp_path / "d") == [expected]


# --- flags and text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [None, ScalarCodec()], ids=str)
@pytest.mark.parametrize("given", ["rows", "columns", "list"])
@pytest.mark.parametrize(
    "value",
    ["False", "", b"0", 2, -1, 0.5, 1.0, float("nan"), np.int64(2), np.float64(1), np.timedelta64(1, "ns")],
    ids=repr,
)
def test_only_flags_are_flags(tmp_path: Path, value: Any, given: str, codec: Any) -> None:
    if given == "list":
        data, form = [{"x": [True]}, {"x": [value]}], schema(np.bool_, (None,))
    else:
        form = schema(np.bool_, (), codec=codec)
        data = [{"x": True}, {"x": value}] if given == "rows" else {"x": [True, value]}  # type: ignore[assignment]
    with pytest.raises(SchemaError, match=r"row 1, field 'x'.*bool"):
        penstock.write(data, tmp_path / "d", form)


@pytest.mark.parametrize("codec", [None, ScalarCodec()], ids=str)
def test_flags_are_taken(tmp_path: Path, codec: Any) -> None:
    values = [True, np.False_, 1, 0, np.int8(1), np.array(0)]
    expected = [True, False, True, False, True, False]
    penstock.write([{"x": value} for value in values], tmp_path / "d", schema(np.bool_, (), codec=codec))
    assert stored(tmp_path / "d") == expected
    lists = [values[:5], np.array([1, 0]), np.array([True]), [None, 1]]
    penstock.write([{"x": value} for value in lists], tmp_path / "lists", schema(np.bool_, (None,)))
    assert stored(tmp_path / "lists") == [expected[:5], [True, False], [True], [None, True]]


class Colour(str, enum.Enum):  # noqa: UP042 - its str() is the name, which a StrEnum's is not
    RED = "red"


@pytest.mark.parametrize("codec", [None, ScalarCodec()], ids=str)
def test_text_of_an_enum_is_its_value(tmp_path: Path, codec: Any) -> None:
    penstock.write([{"x": Colour.RED}, {"x": np.str_("blue")}], tmp_path / "d", schema(np.str_, (), codec=codec))
    assert stored(tmp_path / "d") == ["red", "blue"]
    penstock.write([{"x": [Colour.RED]}], tmp_path / "lists", schema(np.str_, (None,)))
    assert stored(tmp_path / "lists") == [["red"]]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("abc", "got str but the field is a list"),
        (b"abc", "got bytes but the field is a list"),
        (5, "got int but the field is a list"),
        ([b"a"], r"list of str, got bytes in it: b'a'"),
        (np.array([b"a"]), "list of str, got bytes_ in it"),
        ([1], "list of str, got int in it: 1"),
        ([["a"], [2]], "list of str, got int in it: 2"),
    ],
    ids=repr,
)
def test_a_list_of_text_is_no_text(tmp_path: Path, value: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=rf"row 1, field 'x'.*{words}"):
        penstock.write([{"x": ["a"]}, {"x": value}], tmp_path / "d", schema(np.str_, (None,)))


# --- masks and nulls --------------------------------------------------------------------------------------------------


def test_masked_arrays_are_nulls_where_all_is_masked(tmp_path: Path) -> None:
    whole = np.ma.array([[1, 2], [3, 4], [5, 6]], mask=[[0, 0], [1, 1], [0, 0]])
    form = schema(np.int64, (2,), codec=NdarrayCodec(), nullable=True)
    penstock.write({"x": whole}, tmp_path / "columns")
    penstock.write([{"x": row} for row in whole], tmp_path / "rows", form)
    for name in ("columns", "rows"):
        found = penstock.open(tmp_path / name).take([0, 1, 2])["x"]
        assert np.ma.getmaskarray(found).tolist() == [[False] * 2, [True] * 2, [False] * 2]


def test_a_cell_cannot_hold_a_mask(tmp_path: Path) -> None:
    whole = np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[0, 0], [0, 1]])
    with pytest.raises(SchemaError, match=r"row 1, field 'x': 1 of the array's 2 values are masked.*filled"):
        penstock.write({"x": whole}, tmp_path / "d")
    penstock.write([{"x": row} for row in whole], tmp_path / "lists", schema(np.float64, (None,)))
    assert stored(tmp_path / "lists") == [[1.0, 2.0], [3.0, None]]


@pytest.mark.parametrize("given", ["rows", "columns"])
def test_a_time_that_is_none_needs_a_field_that_may_be_null(tmp_path: Path, given: str) -> None:
    values = [np.datetime64("2024-01-01", "us"), np.datetime64("NaT", "us")]
    data: Any = [{"x": value} for value in values] if given == "rows" else {"x": values}
    with pytest.raises(SchemaError, match=r"row 1, field 'x': missing value, but the field is not nullable"):
        penstock.write(data, tmp_path / "d", schema(np.datetime64, ()))


def test_a_dict_of_structs(tmp_path: Path) -> None:
    penstock.write({"x": [{"a": 1}, None, {"a": 2}]}, tmp_path / "d")
    assert stored(tmp_path / "d") == [{"a": 1}, None, {"a": 2}]


# --- partitions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.timestamp("us", "Europe/Berlin"), datetime.datetime(2024, 1, 1, 3, tzinfo=datetime.UTC), "2024-01-01T03"),
        (pa.timestamp("ns"), datetime.datetime(2024, 1, 1, 3, 0, 0, 5), "2024-01-01T03:00:00.000005"),
    ],
    ids=str,
)
def test_partitions_by_time_are_read_back(tmp_path: Path, kind: Any, value: Any, expected: str) -> None:
    penstock.write(pa.table({"y": [1], "x": pa.array([value], kind)}), tmp_path / "d", partition_by="x")
    assert penstock.open(tmp_path / "d").take([0])["x"][0] == np.datetime64(expected)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pa.array([5], pa.duration("s")), "duration"),
        (pa.array([5], pa.time64("us")), "time64"),
        (pa.array([5], pa.timestamp("ns")), "nanoseconds"),
    ],
    ids=str,
)
def test_partitions_that_could_not_be_read_are_refused(tmp_path: Path, values: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        penstock.write(pa.table({"y": [1], "x": values}), tmp_path / "d", partition_by="x")


# --- compression ------------------------------------------------------------------------------------------------------


def codecs(url: Path) -> dict[str, str]:
    group = pq.ParquetFile(next(url.glob("*.parquet"))).metadata.row_group(0)
    return {group.column(i).path_in_schema: group.column(i).compression for i in range(group.num_columns)}


def test_compression_by_column_counts_for_lists_and_leaves_the_others_alone(tmp_path: Path) -> None:
    table = pa.table({"v": [[1, 2]], "n": [1], "s": ["a"]})
    penstock.write(table, tmp_path / "d", compression={"v": "zstd", "s": "uncompressed"})
    found = codecs(tmp_path / "d")
    assert {path.split(".")[0]: codec for path, codec in found.items()} == {
        "v": "ZSTD",
        "n": "SNAPPY",
        "s": "UNCOMPRESSED",
    }
    penstock.write(table, tmp_path / "e", compression="uncompressed")
    assert set(codecs(tmp_path / "e").values()) == {"UNCOMPRESSED"}


def test_compression_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"compression must be one of 'snappy'.*got 'foo'"):
        penstock.write({"n": [1]}, tmp_path / "d", compression="foo")
    with pytest.raises(ColumnNotFound, match=r"compression: no column 'm' in the files; there are: n$"):
        penstock.write({"n": [1]}, tmp_path / "d", compression={"m": "zstd"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [{"row_group_bytes": "16MiB"}, {"row_group_bytes": None}, {"rows_per_file": 1.5}, {"workers": 0}, {"part": True}],
    ids=str,
)
def test_options_of_the_wrong_kind_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=f"{next(iter(options))} must be a whole number"):
        penstock.write({"n": [1]}, tmp_path / "d", **options)


def test_a_part_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    penstock.write({"n": [1]}, tmp_path / "d", part=np.int64(0))
    assert penstock.commit(tmp_path / "d").rows == 1
