"""Times in rows: NumPy's in any unit, Python's with and without a zone, into columns with and without one."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, ScalarCodec
from penstock.codecs.scalar import SparkType
from penstock.errors import SchemaError

SCHEMA = Unischema(
    "Times",
    [
        UnischemaField("instant", np.datetime64, (), ScalarCodec(SparkType("TimestampType")), True),
        UnischemaField("plain", np.datetime64, (), None, True),
    ],
)


def test_times_of_any_unit_and_zone_are_stored_as_the_instants_they_are(tmp_path):
    half = np.datetime64("2024-01-01T00:00:00.5")
    east = datetime.timezone(datetime.timedelta(hours=2))
    rows = [
        {"instant": half, "plain": half},
        {"instant": None, "plain": None},
        {"instant": datetime.datetime(2024, 1, 1, 2, tzinfo=east), "plain": np.datetime64("2024-01-01")},
    ]
    penstock.write(rows, tmp_path / "d", SCHEMA)
    ds = penstock.open(tmp_path / "d")
    assert ds[0] == {"instant": half, "plain": half}
    assert ds[1] == {"instant": None, "plain": None}
    assert ds[2] == {"instant": np.datetime64("2024-01-01"), "plain": np.datetime64("2024-01-01")}


def test_a_time_with_more_digits_than_the_column_has_is_refused(tmp_path):
    with pytest.raises(SchemaError, match=r"row 0, field 'instant'.*timestamp\[us"):
        penstock.write([{"instant": np.datetime64("2024-01-01T00:00:00.123456789")}], tmp_path / "d", SCHEMA)


# --- lists, and what has another unit than its column -----------------------------------------------------------------

DAY = datetime.datetime(2020, 1, 1)


def listed(kind, shape=(None,)):
    return Unischema("S", [UnischemaField("x", kind, shape, None, True)])


def stored(url):
    return pq.read_table(url)["x"].to_pylist()


@pytest.mark.parametrize("given", ["rows", "columns", "generator"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array(["2020-01-01", "NaT"], "M8[ns]"), [DAY, None]),
        (np.array(["2020-01-01"], "M8[D]"), [DAY]),
        (np.array(["2020"], "M8[Y]"), [DAY]),
        ([np.datetime64("2020-01-01", "ns"), np.datetime64("2020-01-01", "s"), None], [DAY, DAY, None]),
        ([DAY, DAY.date(), np.datetime64("NaT")], [DAY, DAY, None]),
        (np.array([DAY, None], object), [DAY, None]),
        (np.array([], "M8[ns]"), []),
    ],
    ids=repr,
)
def test_lists_of_times_of_any_unit(tmp_path, value, expected, given):
    data = {"rows": [{"x": value}], "columns": {"x": [value]}, "generator": iter([{"x": value}])}[given]
    penstock.write(data, tmp_path / "d", listed(np.datetime64))
    assert stored(tmp_path / "d") == [expected]


def test_arrays_of_times_of_a_fixed_shape(tmp_path):
    value = np.array([["2020-01-01", "NaT"], ["2021-01-01", "2022-01-01"]], "M8[ns]")
    penstock.write([{"x": value}], tmp_path / "d", listed(np.datetime64, (2, 2)))
    assert stored(tmp_path / "d") == [[[DAY, None], [DAY.replace(year=2021), DAY.replace(year=2022)]]]
    penstock.write([{"x": np.array([5000, 7000], "m8[ns]")}], tmp_path / "e", listed(np.timedelta64, (2,)))
    assert stored(tmp_path / "e") == [[datetime.timedelta(microseconds=n) for n in (5, 7)]]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (np.datetime64, np.array([1], "M8[ns]")),
        (np.datetime64, [np.datetime64(1, "ns")]),
        (np.datetime64, np.array([2**62], "M8[s]")),
        (np.timedelta64, np.array([5], "m8[ns]")),
        (np.timedelta64, np.array([1], "m8[Y]")),
        (np.timedelta64, [np.timedelta64(5)]),
        (np.datetime64, np.array([5], "m8[us]")),
        (np.datetime64, np.array([5])),
        (np.datetime64, [5]),
        (np.datetime64, ["2020-01-01"]),
    ],
    ids=repr,
)
def test_lists_of_times_that_would_change_are_refused(tmp_path, kind, value):
    with pytest.raises(SchemaError, match=r"row 1, field 'x': .*(timestamp|duration)\[us\]"):
        penstock.write([{"x": None}, {"x": value}], tmp_path / "d", listed(kind))


@pytest.mark.parametrize("value", [5, 5.0, "2020-01-01", np.int64(5), np.timedelta64(5, "s")], ids=repr)
def test_a_number_is_no_time(tmp_path, value):
    with pytest.raises(SchemaError, match=r"row 0, field 'plain': .*is not a time, but the column is timestamp\[us\]"):
        penstock.write([{"plain": value}], tmp_path / "d", SCHEMA)


def test_digits_finer_than_the_column_say_what_to_do(tmp_path):
    field = UnischemaField("x", np.dtype("datetime64[ns]"), (), None, False)
    fine = np.datetime64("2024-01-01T00:00:00.000000001")
    with pytest.raises(SchemaError, match=r"finer digits.*ScalarCodec\(pa.timestamp\('ns'\)\)"):
        penstock.write([{"x": fine}], tmp_path / "d", Unischema("S", [field]))
    for number, codec in enumerate((ScalarCodec(pa.timestamp("ns")), ScalarCodec("datetime64[ns]"))):
        penstock.write([{"x": fine}], tmp_path / str(number), Unischema("S", [field._replace(codec=codec)]))
        assert penstock.open(tmp_path / str(number))[0]["x"] == fine


def test_a_time_too_far_for_the_unit_is_refused(tmp_path):
    form = Unischema("S", [UnischemaField("x", np.datetime64, (), ScalarCodec(pa.timestamp("ns")), False)])
    for number, far in enumerate(
        (np.datetime64("9999-01-01"), datetime.datetime(9999, 1, 1), datetime.date(9999, 1, 1))
    ):
        with pytest.raises(SchemaError, match=r"row 0, field 'x': 9999.*timestamp\[ns\]"):
            penstock.write([{"x": far}], tmp_path / str(number), form)


def test_days_have_no_hours(tmp_path):
    form = Unischema("S", [UnischemaField("x", np.datetime64, (), ScalarCodec(SparkType("DateType")), False)])
    days = [DAY, DAY.date(), np.datetime64("2020-01-01T00:00:00", "ns")]
    penstock.write([{"x": day} for day in days], tmp_path / "d", form)
    assert stored(tmp_path / "d") == [DAY.date()] * 3
    for number, when in enumerate(
        (DAY.replace(hour=5), np.datetime64("2020-01-01T05"), DAY.replace(tzinfo=datetime.UTC))
    ):
        with pytest.raises(SchemaError, match=r"row 0, field 'x': .*date32"):
            penstock.write([{"x": when}], tmp_path / str(number), form)


def test_times_of_pandas(tmp_path):
    pd = pytest.importorskip("pandas")
    penstock.write([{"plain": pd.Timestamp("2020-01-01")}, {"plain": pd.NaT}, {"plain": pd.NA}], tmp_path / "d", SCHEMA)
    assert pq.read_table(tmp_path / "d")["plain"].to_pylist() == [DAY, None, None]
    penstock.write([{"x": [pd.Timestamp("2020-01-01"), pd.NaT]}], tmp_path / "lists", listed(np.datetime64))
    assert stored(tmp_path / "lists") == [[DAY, None]]
    with pytest.raises(SchemaError, match=r"row 0, field 'plain': .*finer digits"):
        penstock.write([{"plain": pd.Timestamp("2020-01-01T00:00:00.000000001")}], tmp_path / "e", SCHEMA)
    form = Unischema("S", [UnischemaField("x", np.uint8, (2, 2), CompressedImageCodec("png"), False)])
    with pytest.raises(SchemaError, match="row 0, field 'x': missing value, but the field is not nullable"):
        penstock.write([{"x": pd.NA}], tmp_path / "e", form)
