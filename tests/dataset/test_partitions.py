"""Folder names become typed columns."""

import datetime
import os
import re
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

import penstock
from penstock.dataset.catalog import DataFile, Root
from penstock.dataset.partitions import cast_partition, find_partitions, keys_of, other_value
from penstock.doctor import rewrite
from penstock.errors import BadFile, SchemaError


def found_in(paths):
    return find_partitions([DataFile(Root(LocalFileSystem(), "/data"), path, None) for path in paths])


def column(*values: str, name: str = "k"):
    return found_in([f"{name}={value}/x.parquet" for value in values])[name]


def test_keys_are_decoded():
    assert keys_of("a=1/b%3Dc=x%20y%2Fz/noequals/=v/e=/f.parquet") == {"a": "1", "b=c": "x y/z", "e": ""}
    assert keys_of("a=1=2/f") == {"a": "1=2"}
    assert keys_of("f=1") == {}


def test_whole_numbers_are_int64():
    found = column("3", "-1", "0", str(2**63 - 1))
    assert found.field == pa.field("k", pa.int64(), nullable=False)
    assert found.values.type == pa.int64()
    assert found.values.to_pylist() == [3, -1, 0, 2**63 - 1]


@pytest.mark.parametrize(
    "odd", ["x", "1.5", "", "1_000", "+1", " 1", str(2**63), "2024-01-01", "\u0663", "01", "-01", "-0"]
)
def test_anything_else_is_a_string(odd):
    found = column("1", odd)
    assert found.field.type == pa.string()
    assert found.values.to_pylist() == ["1", odd]


def test_a_leading_zero_anywhere_makes_the_column_text():
    assert column("01", "1").values.to_pylist() == ["01", "1"]
    assert column("1", "02", "__HIVE_DEFAULT_PARTITION__").values.to_pylist() == ["1", "02", None]
    assert cast_partition(column("01", "2"), pa.int64()).values.to_pylist() == [1, 2]


def test_null_partitions():
    found = column("1", "__HIVE_DEFAULT_PARTITION__")
    assert found.field == pa.field("k", pa.int64(), nullable=True)
    assert found.values.to_pylist() == [1, None]
    assert column("__HIVE_DEFAULT_PARTITION__").field.type == pa.string()


def test_a_file_without_the_key_is_null():
    found = found_in(["x.parquet", "k=1/x.parquet", "k=1/j=a/x.parquet"])
    assert list(found) == ["k", "j"]
    assert found["k"].values.to_pylist() == [None, 1, 1]
    assert found["j"].values.to_pylist() == [None, None, "a"]


def test_constants():
    found = found_in(["k=1/j=a/x", "k=2/j=__HIVE_DEFAULT_PARTITION__/x"])
    assert found["k"].constant(1, 3).equals(pa.array([2, 2, 2], pa.int64()))
    assert found["j"].constant(0, 2).equals(pa.array(["a", "a"]))
    assert found["j"].constant(1, 2).equals(pa.array([None, None], pa.string()))
    assert len(found["k"].constant(0, 0)) == 0


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("7", pa.int16(), 7),
        ("7", pa.string(), "7"),
        ("1.5", pa.float32(), 1.5),
        ("true", pa.bool_(), True),
        ("2024-02-01", pa.date32(), datetime.date(2024, 2, 1)),
        ("2024-02-01 10:00:00", pa.timestamp("us"), datetime.datetime(2024, 2, 1, 10)),
        ("2024-02-01 10:00:00", pa.timestamp("us", "UTC"), datetime.datetime(2024, 2, 1, 10, tzinfo=datetime.UTC)),
        ("2024-02-01 10:00:00+02", pa.timestamp("s", "UTC"), datetime.datetime(2024, 2, 1, 8, tzinfo=datetime.UTC)),
        ("2024-02-01", pa.timestamp("ms", "UTC"), datetime.datetime(2024, 2, 1, tzinfo=datetime.UTC)),
        ("3.25", pa.decimal128(10, 2), Decimal("3.25")),
    ],
)
def test_a_schema_decides_the_type(text, kind, value):
    found = cast_partition(column(text, "__HIVE_DEFAULT_PARTITION__"), kind)
    assert found.field.type == kind
    assert found.values.to_pylist() == [value, None]
    assert found.constant(0, 2).type == kind
    assert found.constant(0, 2).to_pylist() == [value, value]
    assert found.constant(1, 1).to_pylist() == [None]


@pytest.mark.parametrize(
    ("folder", "values", "wrong"),
    [
        ("1", pa.array([1, 1, 1], pa.int8()), None),
        ("01", pa.array([1, 1]), None),
        ("1", pa.array([1, 1, 2]), "folder k=1, and holds 2 in row 12"),
        ("1", pa.array([1, None]), "folder k=1, and holds None in row 11"),
        ("01", pa.array(["01", "1"]), "folder k=01, and holds '1' in row 11"),
        ("x", pa.array([1]), "folder k=x, and the column is int64"),
        ("x", pa.array([[1]]), "folder k=x, and the column is list"),
        ("a%20b", pa.array(["a b"]).dictionary_encode(), None),
        ("a", pa.array(["a", "b"]).dictionary_encode(), "holds 'b' in row 11"),
        ("__HIVE_DEFAULT_PARTITION__", pa.array([None, None], pa.int64()), None),
        ("__HIVE_DEFAULT_PARTITION__", pa.array([None, 7]), "holds 7 in row 11"),
        ("nan", pa.array([float("nan")]), None),
        ("1.5", pa.array([1.5], pa.float32()), None),
        ("2024-02-01", pa.array([datetime.date(2024, 2, 1)]), None),
        ("2024-02-01", pa.array([datetime.date(2024, 2, 2)]), r"holds datetime.date\(2024, 2, 2\)"),
        ("1", pa.array([], pa.string()), None),
    ],
)
def test_a_column_that_repeats_a_folder_is_compared_with_it(folder, values, wrong):
    found = other_value(pa.chunked_array([values]), "k", f"j=1/k={folder}/x.parquet", 10)
    assert found is None if wrong is None else re.search(wrong, found)
    assert other_value(pa.chunked_array([values]), "other", f"k={folder}/x.parquet") is None


def test_a_file_in_the_folder_of_another_value_is_an_error_when_that_column_is_read(tmp_path):
    for folder, value in (("1", 1), ("2", 1)):
        (tmp_path / "d" / f"k={folder}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [1, 2], "k": [value, value]}), tmp_path / "d" / f"k={folder}" / "a.parquet")
    ds = penstock.open(tmp_path / "d")
    message = r"k=2/a.parquet, row group 0, column 'k': it is in the folder k=2, and holds 1 in row 0.*columns="
    with pytest.raises(BadFile, match=message):
        ds.take([0, 2])
    with pytest.raises(BadFile, match="folder k=2"):
        penstock.open(tmp_path / "d", filters=[("k", "=", 1)])
    with pytest.raises(BadFile, match="folder k=2"):
        rewrite(tmp_path / "d", tmp_path / "new")
    assert penstock.open(tmp_path / "d", columns=["id"]).take([0, 2])["id"].tolist() == [1, 1]


def test_a_value_that_does_not_fit_is_named():
    with pytest.raises(SchemaError, match=r"k=abc .* int32"):
        cast_partition(column("1", "abc"), pa.int32())


@pytest.mark.parametrize(("text", "kind"), [("1e400", "float64"), ("-1e39", "float32"), ("1e5", "float16")])
def test_a_number_beyond_all_floats_is_not_infinite(text, kind):
    with pytest.raises(SchemaError, match=f"k={text} .*larger than any"):
        cast_partition(column("1", text), pa.type_for_alias(kind))
    assert cast_partition(column("1.5", "-inf"), pa.type_for_alias(kind)).values.to_pylist() == [1.5, -np.inf]


def test_numbers_and_text_import_no_pandas(tmp_path):
    (tmp_path / "pandas.py").write_text("raise SystemExit('pandas was imported')")
    code = (
        "from penstock.dataset.catalog import DataFile\n"
        "from penstock.dataset.partitions import find_partitions\n"
        "paths = ['k=1/t=a/x', 'k=2/t=__HIVE_DEFAULT_PARTITION__/x']\n"
        "found = find_partitions([DataFile(None, path, None) for path in paths])\n"
        "print([found[name].constant(file, 2).to_pylist() for name in 'kt' for file in (0, 1)])\n"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": paths}, capture_output=True)
    assert (done.returncode, done.stdout.decode().strip()) == (0, "[[1, 1], [2, 2], ['a', 'a'], [None, None]]")
