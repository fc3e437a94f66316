"""A dataset in a worker process knows its files as they were opened: their content, and when they are written again."""

from __future__ import annotations

import os
import pickle

import pytest

pytest.importorskip("torch")
from penstock.torch.ship import Shipped

import penstock
from penstock.errors import BadFile, FileChanged
from tests.dataset.make import ids, write
from tests.dataset.test_verify import damage, needs_checksums, write_checked


def write_plain(path, start):
    """Write ten rows whose file has the same size wherever they start."""
    return write(path, ids(start, start + 10), rows_per_group=5, compression="none", use_dictionary=False)


def shipped(ds):
    """Return the dataset as another process gets it."""
    return pickle.loads(pickle.dumps(Shipped(ds))).dataset


def test_states_of_workers_need_no_footers(tmp_path, monkeypatch):
    for number in range(3):
        write_plain(tmp_path / f"part-{number}.parquet", 10 * number)
    ds = penstock.open(tmp_path)
    there = shipped(ds)
    monkeypatch.setattr(there.source, "_files", None)  # nothing can be read
    assert there.loader(batch_size=4).state_dict() == ds.loader(batch_size=4).state_dict()


@pytest.mark.parametrize("read_before", [False, True])
def test_a_file_written_again_since_it_was_opened_is_noticed_in_workers(tmp_path, read_before):
    path = write_plain(tmp_path / "part-0.parquet", 0)
    ds = penstock.open(tmp_path)
    there = shipped(ds)
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
    there = shipped(ds)
    damage(path, group=0)
    ds.take([0])  # verified before
    with pytest.raises(BadFile, match="CRC checksum"):
        there.take([0])
