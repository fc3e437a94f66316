"""A dataset as a value: it pickles for other processes, iterates its rows, and hands out what faces need."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import threading

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.codecs import NdarrayCodec
from penstock.errors import BadFile, FileChanged
from penstock.predicates import in_lambda, in_set
from penstock.schema import Unischema, UnischemaField
from penstock.source import Selection
from tests.dataset.make import ids, write, write_ids
from tests.dataset.test_verify import damage, needs_checksums, write_checked


def write_plain(path, start):
    """Write ten rows whose file has the same size wherever they start."""
    return write(path, ids(start, start + 10), rows_per_group=5, compression="none", use_dictionary=False)


def pickled(ds):
    """Return the dataset as another process gets it."""
    return pickle.loads(pickle.dumps(ds))


def ids_of(ds):
    return [row["id"] for row in ds]


def test_a_pickled_dataset_is_the_same(tmp_path):
    write_ids(tmp_path)
    ds = penstock.open(tmp_path, columns=["id"]).where([("id", ">", 3)])
    there = pickled(ds)
    assert (there.columns, len(there), there.fingerprint) == (ds.columns, len(ds), ds.fingerprint)
    options = {"batch_size": 7, "shuffle": True, "seed": 5, "rank": 0, "world": 1}
    for ours, theirs in zip(ds.loader(**options), there.loader(**options), strict=True):
        np.testing.assert_array_equal(ours["id"], theirs["id"])


def test_a_filter_on_delivery_and_undecoded_columns_travel_too(tmp_path):
    schema = Unischema("S", [UnischemaField("x", np.int64, ()), UnischemaField("a", np.float32, (2,), NdarrayCodec())])
    penstock.write(({"x": i, "a": np.full(2, i, np.float32)} for i in range(6)), tmp_path / "d", schema)
    ds = penstock.open(tmp_path / "d").where(in_set([1, 4], "x"), exact=False).without_decoding(["a"])
    there = pickled(ds)
    assert there.filters_late
    assert not penstock.open(tmp_path / "d").filters_late
    assert there.schema.fields["a"].shape == (2,)
    rows = list(there)
    assert [row["x"] for row in rows] == [1, 4]
    assert all(bytes(row["a"]).startswith(b"\x93NUMPY") for row in rows)


def _first_id(ds, results):
    results.put([row["id"] for row in itertools.islice(ds, 3)])


def test_a_spawned_process_gets_a_dataset_as_an_argument(tmp_path):
    write_ids(tmp_path)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_first_id, args=(penstock.open(tmp_path), results))
    process.start()
    try:
        assert results.get(timeout=120) == [0, 1, 2]
    finally:
        process.join()


class TestIteration:
    def test_rows_are_those_of_getitem(self, tmp_path):
        columns = {"i": [1, None, 3], "t": ["a", None, "c"], "l": [[1, 2], None, []], "f": [0.5, 1.5, None]}
        write(tmp_path / "a.parquet", pa.table(columns), rows_per_group=2)
        ds = penstock.open(tmp_path)
        for number, row in enumerate(ds):
            assert list(row) == list(ds.columns)
            for name, value in row.items():
                wanted = ds[number][name]
                assert (value is None) == (wanted is None), (number, name)
                np.testing.assert_array_equal(value, wanted)
        assert number == 2

    def test_only_selected_rows_in_stored_order(self, tmp_path):
        ds = penstock.open(write_ids(tmp_path))
        assert ids_of(ds) == list(range(30))
        assert ids_of(ds.where([("id", "in", [25, 3, 11])])) == [3, 11, 25]
        assert ids_of(ds.where([("id", "<", 0)])) == []
        assert ids_of(ds.where(in_lambda(["id"], lambda i: i % 10 == 1), exact=False)) == [1, 11, 21]

    def test_it_leaves_no_threads_when_it_is_given_up(self, tmp_path):
        ds = penstock.open(write_ids(tmp_path))
        before = set(threading.enumerate())
        rows = iter(ds)
        assert next(rows)["id"] == 0
        rows.close()
        assert {thread for thread in threading.enumerate() if thread.is_alive()} <= before

    def test_ranks_of_the_environment_do_not_divide_it(self, tmp_path, monkeypatch):
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert len(list(penstock.open(write_ids(tmp_path)))) == 30


def test_other_rows_of_the_source_can_be_selected(tmp_path):
    ds = penstock.open(write_ids(tmp_path))
    counts = np.where(np.arange(len(ds.chunks)) == 1, ds.source.facts.chunk_rows, 0)
    assert ids_of(ds.with_selection(Selection(counts))) == [4, 5, 6, 7]
    assert ds.selection.total == 30


def test_states_of_workers_need_no_footers(tmp_path, monkeypatch):
    for number in range(3):
        write_plain(tmp_path / f"part-{number}.parquet", 10 * number)
    ds = penstock.open(tmp_path)
    there = pickled(ds)
    monkeypatch.setattr(there.source, "entries", None)  # nothing can be read
    assert there.loader(batch_size=4).state_dict() == ds.loader(batch_size=4).state_dict()


@pytest.mark.parametrize("read_before", [False, True])
def test_a_file_written_again_since_it_was_opened_is_noticed_in_workers(tmp_path, read_before):
    path = write_plain(tmp_path / "part-0.parquet", 0)
    ds = penstock.open(tmp_path)
    there = pickled(ds)
    if read_before:
        assert there[0]["id"] == 0
    write_plain(path, 500)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 10**9))
    with pytest.raises(FileChanged, match="the file has changed: it was written again"):
        there.take([0])


@needs_checksums
def test_workers_verify_for_themselves(tmp_path):
    path = write_checked(tmp_path / "a.parquet")
    ds = penstock.open(path)
    ds.take([0])
    there = pickled(ds)
    damage(path, group=0)
    ds.take([0])  # verified before
    with pytest.raises(BadFile, match="CRC checksum"):
        there.take([0])
