"""Times in rows: NumPy's in any unit, Python's with and without a zone, into columns with and without one."""

import datetime

import numpy as np
import pytest

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import ScalarCodec
from penstock.codecs.sparktypes import SparkType
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
