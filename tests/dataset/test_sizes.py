"""Bytes of a row: near what Arrow holds, whatever the footer says."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.dataset import open_parquet
from penstock.dataset.files import fixed_bytes
from penstock.errors import StoreUnavailable
from penstock.testing import FaultyFileSystem, RecordingFileSystem, TransientFaults
from tests.dataset.make import write


@pytest.mark.parametrize(
    ("kind", "width"),
    [
        (pa.int8(), 1),
        (pa.float64(), 8),
        (pa.bool_(), 1 / 8),
        (pa.timestamp("ns"), 8),
        (pa.decimal128(10, 2), 16),
        (pa.binary(7), 7),
        (pa.list_(pa.float32(), 6), 24),
        (pa.null(), 0),
        (pa.string(), None),
        (pa.list_(pa.int8()), None),
        (pa.dictionary(pa.int8(), pa.string()), None),
    ],
)
def test_fixed_widths(kind, width):
    if kind != pa.null():
        assert fixed_bytes(pa.field("x", kind, nullable=False)) == width
    if width is not None:
        assert fixed_bytes(pa.field("x", kind)) == width + 1 / 8


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize("kind", ["repeated", "unique", "nulls", "lists", "large"])
def test_estimates_are_near(tmp_path, kind, dictionary, compression):
    rng = np.random.default_rng(0)
    columns = {
        "repeated": ["a word that comes often"] * 5000,
        "unique": [rng.bytes(int(n)) for n in rng.integers(10, 300, 5000)],
        "nulls": [None if i % 3 else f"{i:050}" for i in range(5000)],
        "lists": [list(range(i % 50)) for i in range(2000)],
        "large": [rng.bytes(20_000) for _ in range(1000)],
    }
    write(tmp_path / "x.parquet", {"c": columns[kind]}, use_dictionary=dictionary, compression=compression)
    source = open_parquet(tmp_path)
    table = source.read(0, ["c"])
    assert source.row_bytes() == pytest.approx(table.nbytes / table.num_rows, rel=0.2)
    assert source.row_bytes(["c"]) == source.row_bytes()
    assert source.row_bytes([]) == 0


def test_it_is_measured_once_and_fixed_columns_never(tmp_path):
    write(tmp_path / "x.parquet", {"a": list(range(1000)), "t": ["word"] * 1000})
    fs = RecordingFileSystem()
    source = open_parquet(str(tmp_path), filesystem=fs)
    fs.reads.clear()
    assert source.row_bytes(["a"]) == 8.125
    assert fs.reads.num_reads == 0
    first = source.row_bytes()
    reads = fs.reads.num_reads
    assert reads > 0
    assert source.row_bytes() == first
    assert fs.reads.num_reads == reads


def test_a_column_of_images_is_not_read_whole(tmp_path):
    rng = np.random.default_rng(0)
    cells = [rng.bytes(20_000) for _ in range(3000)]  # pyarrow puts the first 1,024 into a dictionary
    write(tmp_path / "x.parquet", {"c": cells}, compression="none")
    fs = RecordingFileSystem()
    source = open_parquet(str(tmp_path), filesystem=fs)
    fs.reads.clear()
    assert source.row_bytes() == pytest.approx(20_004, rel=0.05)
    assert fs.reads.num_bytes < 25e6


def test_partition_columns_count(tmp_path):
    write(tmp_path / "k=1" / "t=abcd" / "x.parquet", {"a": [1, 2, 3]})
    write(tmp_path / "k=2" / "t=ef" / "x.parquet", {"a": [1]})
    source = open_parquet(tmp_path)
    assert source.row_bytes(["k"]) == 8
    assert source.row_bytes(["t"]) == 4 + 3.5


def text_file(folder):
    pq.write_table(pa.table({"text": ["abc" * 200] * 2000}), folder / "a.parquet", row_group_size=50)
    return str(folder)


def test_requests_that_fail_at_times_change_nothing(tmp_path, pauses):
    expected = open_parquet(text_file(tmp_path)).row_bytes()
    faults = TransientFaults(0.2, seed=2)
    assert open_parquet(str(tmp_path), filesystem=FaultyFileSystem(fault=faults)).row_bytes() == expected
    assert faults.num_raised == len(pauses) > 0


@pytest.mark.parametrize("error", [OSError("no details"), TimeoutError("slow")], ids=["unknown", "time-out"])
def test_a_store_that_fails_is_an_error_and_no_guess(tmp_path, pauses, error):
    # A guess on one rank would give it another order than the others, unnoticed.
    faults = iter([])
    source = open_parquet(text_file(tmp_path), filesystem=FaultyFileSystem(fault=lambda _: next(faults, None)))
    faults = itertools.repeat(error)
    with pytest.raises(StoreUnavailable, match=r"a\.parquet is unavailable after 8 attempts .*(no details|slow)"):
        source.row_bytes()
