"""Text becomes a moment exactly or not at all, and a unit that is asked for is the one that comes."""

import datetime
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs.times import from_text
from penstock.errors import DecodeError
from penstock.predicates import in_set
from tests.depth import depth


@pytest.mark.parametrize(
    ("text", "unit", "moment"),
    [
        ("2024-01-31T12:00:00.123456789", "ns", "2024-01-31T12:00:00.123456789"),
        ("2024-01-31 12:00:00.5000", "ms", "2024-01-31T12:00:00.500"),
        ("1969-12-31T23:59:59.999999", "us", "1969-12-31T23:59:59.999999"),
        ("2024-01-31", "D", "2024-01-31"),
        ("2024-01-31", "s", "2024-01-31"),
        ("2024-01", "M", "2024-01"),
        ("2024", "us", "2024-01-01"),
        ("-0001-01-01", "s", "-0001-01-01"),
        ("2024-01-31T12:00Z", "s", "2024-01-31T12:00"),
        ("2024-01-31T12:00+02:30", "s", "2024-01-31T09:30"),
        ("2024-01-31T12:00-0230", "s", "2024-01-31T14:30"),
        ("2262-04-11T23:47:16.854775807", "ns", "2262-04-11T23:47:16.854775807"),
        ("1677-09-21T00:12:43.145224193", "ns", "1677-09-21T00:12:43.145224193"),
    ],
)
def test_text_is_read_exactly(text, unit, moment):
    dtype = np.dtype(f"M8[{unit}]")
    found = from_text(text, dtype)
    assert found.dtype == dtype
    assert found == np.datetime64(moment)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("2024-01-31T12:00:00.123456789", "us"),  # digits that the unit does not have
        ("2024-01-31T12:00:00.0000000000001", "ns"),
        ("2024-01-31T12:00", "D"),
        ("2024-01-31", "M"),
        ("9999-01-01", "ns"),  # beyond the unit
        ("1677-09-21T00:12:43.145224192", "ns"),  # the number that stands for NaT
        ("2262-04-11T23:47:16.854775808", "ns"),
        ("20240101", "us"),  # to NumPy a year
        ("1700000000", "us"),
        ("now", "us"),
        ("today", "D"),
        ("", "us"),
        ("nat", "us"),
        ("2024-13-01", "us"),
        ("2024-02-30", "us"),
        ("12:00", "us"),
        ("yesterday", "us"),
    ],
)
def test_text_that_is_no_moment_of_that_unit_is_refused(text, unit):
    with pytest.raises(ValueError, match=r"."):
        from_text(text, np.dtype(f"M8[{unit}]"))


@settings(max_examples=depth(200, 5000), deadline=None)
@given(moment=st.datetimes(), unit=st.sampled_from(["D", "h", "s", "ms", "us", "ns"]))
def test_text_is_what_python_says_or_an_error(moment, unit):
    dtype = np.dtype(f"M8[{unit}]")
    exact = np.datetime64(moment, "us")
    since = moment - datetime.datetime(1970, 1, 1)
    micros = since // datetime.timedelta(microseconds=1)
    per = {"D": 86_400_000_000, "h": 3_600_000_000, "s": 1_000_000, "ms": 1000, "us": 1, "ns": 0.001}[unit]
    fits = abs(micros) < 2**63 // 1000 if unit == "ns" else micros % per == 0
    if fits:
        assert from_text(moment.isoformat(), dtype) == exact
    else:
        with pytest.raises(ValueError, match=r"."):
            from_text(moment.isoformat(), dtype)


def open_as(path, column, field):
    pq.write_table(pa.table({field.name: column}), path)
    return penstock.open(path, schema=Unischema("S", [field]))


@pytest.mark.parametrize("text", ["", "now", "20240101", "2024-01-01T00:00:00.123456789"])
def test_a_text_that_is_no_time_names_its_row(tmp_path, text):
    ds = open_as(tmp_path / "x.parquet", pa.array(["2024-01-01", text]), UnischemaField("t", np.datetime64, ()))
    with pytest.raises(DecodeError, match=r"x\.parquet, row group 0, row 1: .*does not fit datetime64\[us\]"):
        ds.take([0, 1])


@pytest.mark.parametrize("text", ["1e400", "-1e400", "9" * 400])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_text_beyond_all_floats_is_not_infinite(tmp_path, text, dtype):
    ds = open_as(tmp_path / "x.parquet", pa.array(["1", text]), UnischemaField("f", dtype, ()))
    with pytest.raises(DecodeError, match=r"row 1: .*does not fit float"):
        ds.take([0, 1])


def test_a_text_that_says_infinity_is_infinite(tmp_path):
    column = pa.array(["inf", "-Infinity", "nan", "1e-400"])
    ds = open_as(tmp_path / "x.parquet", column, UnischemaField("f", np.float32, ()))
    np.testing.assert_array_equal(ds.take(range(4))["f"], np.array([np.inf, -np.inf, np.nan, 0], np.float32))


@pytest.mark.parametrize("dtype", ["datetime64[ns]", np.dtype("M8[ms]"), "M8[s]"])
@pytest.mark.parametrize("stored", [pa.timestamp("us"), pa.timestamp("ms", tz="UTC"), pa.date32(), pa.string()])
def test_a_unit_that_the_schema_asks_for_is_the_one_that_comes(tmp_path, dtype, stored):
    days = ["2024-01-31", None, "1970-01-01"]
    column = pa.array(days).cast(pa.date32()).cast(stored)
    ds = open_as(tmp_path / "x.parquet", column, UnischemaField("t", dtype, (), None, True))
    found = ds.take(range(3))["t"]
    assert found.dtype == np.dtype(dtype)
    assert found.tolist() == np.ma.MaskedArray(np.array(["2024-01-31", "NaT", "1970-01-01"], dtype), [0, 1, 0]).tolist()
    assert len(ds.where(in_set([datetime.date(2024, 1, 31)], "t"))) == 1


def test_durations_and_lists_come_in_their_unit_too(tmp_path):
    column = pa.array([[1000, 2000]], pa.list_(pa.duration("us")))
    ds = open_as(tmp_path / "x.parquet", column, UnischemaField("t", "timedelta64[ms]", (None,)))
    assert ds[0]["t"].dtype == np.dtype("m8[ms]")
    assert ds[0]["t"].astype(int).tolist() == [1, 2]


def test_a_time_that_the_unit_cannot_hold_names_its_row(tmp_path):
    column = pa.array([0, 1], pa.timestamp("us"))
    ds = open_as(tmp_path / "x.parquet", column, UnischemaField("t", "datetime64[s]", ()))
    with pytest.raises(DecodeError, match=r"row 1: .*does not fit datetime64\[s\]"):
        ds.take([0, 1])


def test_a_field_keeps_its_unit_beside_petastorms_five_parts():
    field = UnischemaField("t", "datetime64[ns]", ())
    assert field.numpy_dtype is np.datetime64
    assert (field.unit, len(field)) == ("ns", 5)
    assert field.asked_dtype == np.dtype("M8[ns]")
    assert "datetime64[ns]" in repr(field)
    assert pickle.loads(pickle.dumps(field)) == field == field._replace(codec=None)
    assert field._replace(numpy_dtype=np.datetime64).unit is None
    assert field != UnischemaField("t", np.datetime64, ())
    assert UnischemaField("t", np.dtype("M8[10ms]"), ()).asked_dtype == np.dtype("M8[10ms]")
    assert UnischemaField("n", np.int64, ()).asked_dtype is np.int64
