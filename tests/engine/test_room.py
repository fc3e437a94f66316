"""Cells that claim more memory than there is are told before they are decoded, and the budget holds."""

from __future__ import annotations

import functools
import io
import struct
import threading
import tracemalloc
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec
from penstock.engine.scheduler import Scheduler
from penstock.errors import BudgetError, DecodeError
from penstock.predicates import in_lambda
from penstock.schema.stored import SCHEMA_KEY, schema_to_json
from tests.engine.make import ids

BUDGET = 16 << 20
LARGE = 100 << 20


@functools.cache
def npz(size):
    file = io.BytesIO()
    np.savez_compressed(file, arr=np.zeros(size, np.uint8))
    return file.getvalue()


def lying_npz(size, claim):
    cell = bytearray(npz(size))
    at = cell.index(b"arr.npy") + len(b"arr.npy") + 4
    cell[at : at + 8] = claim.to_bytes(8, "little")
    return bytes(cell)


@functools.cache
def png(height, width):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(min(height * (1 + 3 * width), LARGE)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def jpeg(height, width):
    field = UnischemaField("x", np.uint8, (16, 16, 3), CompressedImageCodec("jpeg"), False)
    cell = bytearray(field.codec.encode(field, np.zeros((16, 16, 3), np.uint8)))
    at = cell.index(b"\xff\xc0")
    cell[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(cell)


ARRAYS, IMAGES = ((None,), (64,)), ((None, None, 3), (None, 16, 3), (16, 16, 3))
BOMBS = {
    "npz": (CompressedNdarrayCodec(), ARRAYS, lambda: npz(64), lambda: npz(LARGE)),
    "lying npz": (CompressedNdarrayCodec(), ARRAYS, lambda: npz(64), lambda: lying_npz(LARGE, 999)),
    "png": (CompressedImageCodec("png"), IMAGES, lambda: png(16, 16), lambda: png(9000, 9000)),
    "png too wide": (CompressedImageCodec("png"), IMAGES, lambda: png(16, 16), lambda: png(16, 1 << 30)),
    "jpeg": (CompressedImageCodec("jpeg"), IMAGES, lambda: jpeg(16, 16), lambda: jpeg(65500, 65500)),
    "png in jpeg": (CompressedImageCodec("jpeg"), IMAGES, lambda: jpeg(16, 16), lambda: png(9000, 9000)),
}


def dataset(folder, codec, shape, cells):
    fields = [UnischemaField("id", np.int64, (), None, False), UnischemaField("x", np.uint8, shape, codec, False)]
    metadata = {SCHEMA_KEY: schema_to_json(Unischema("S", fields)).encode()}
    table = pa.table({"id": range(len(cells)), "x": pa.array(cells, pa.binary())}).replace_schema_metadata(metadata)
    pq.write_table(table, folder / "a.parquet")
    return penstock.open(folder)


@pytest.fixture
def peak():
    """Return the most bytes that Python and NumPy have held since the test began."""
    tracemalloc.start()
    base = tracemalloc.get_traced_memory()[0]
    yield lambda: tracemalloc.get_traced_memory()[1] - base
    tracemalloc.stop()


@pytest.mark.parametrize(("kind", "shape"), [(kind, shape) for kind in BOMBS for shape in BOMBS[kind][1]], ids=str)
def test_a_bomb_is_told_before_it_is_decoded(tmp_path, kind, shape, peak):
    codec, _, good, bomb = BOMBS[kind]
    ds = dataset(tmp_path, codec, shape, [good(), bomb(), good()])
    tracemalloc.reset_peak()
    with ds.loader(batch_size=2, memory_bytes=BUDGET) as loader, pytest.raises(DecodeError) as caught:
        list(loader)
    assert (caught.value.row_group, caught.value.row, caught.value.column) == (0, 1, "x")
    assert "a.parquet" in str(caught.value)
    with ds.loader(batch_size=2, memory_bytes=BUDGET, on_error="skip") as loader:
        assert ids(loader) == [0, 2]
        assert [one.row for one in loader.skipped] == [1]
    assert peak() < BUDGET


def test_without_a_loader_a_cell_may_take_what_a_loader_has_by_default(tmp_path, peak):
    ds = dataset(tmp_path, CompressedImageCodec("jpeg"), (None, None, 3), [jpeg(16, 16), jpeg(65500, 65500)])
    assert ds[0]["x"].shape == (16, 16, 3)
    with pytest.raises(DecodeError, match=r"row group 0, row 1: its header claims 12,870,750,000 bytes.*3,221,225,472"):
        ds[1]
    with pytest.raises(DecodeError, match="row 1"):
        ds.where(in_lambda(["x"], lambda values: True))
    assert peak() < BUDGET


@pytest.mark.parametrize("pool", ["thread", "serial"])
def test_a_batch_that_needs_too_much_is_a_budget_error_that_is_never_skipped(tmp_path, pool, peak):
    ds = dataset(tmp_path, CompressedNdarrayCodec(), (None,), [npz(6 << 20)] * 4)
    loader = ds.loader(batch_size=2, memory_bytes=BUDGET, pool=pool, on_error="skip")
    with loader, pytest.raises(BudgetError, match=r"column 'x'.*memory_bytes.*a\.parquet, row group 0") as caught:
        list(loader)
    assert caught.value.least > 12 << 20
    assert peak() < BUDGET
    with ds.loader(batch_size=1, memory_bytes=BUDGET, pool=pool) as loader:
        assert ids(loader) == [0, 1, 2, 3]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [1, 4])
def test_heavy_batches_wait_for_each_other(tmp_path, shuffle, workers, peak):
    ds = dataset(tmp_path, CompressedNdarrayCodec(), (None,), [npz(3 << 20)] * 24)
    with ds.loader(batch_size=2, memory_bytes=BUDGET, workers=workers, shuffle=shuffle, seed=3) as loader:
        assert sorted(i for batch in loader for i in batch["id"].tolist()) == list(range(24))  # holds one at a time
    assert peak() < 1.2 * BUDGET


def test_a_run_can_be_ended_while_batches_wait_for_room(tmp_path):
    ds = dataset(tmp_path, CompressedNdarrayCodec(), (None,), [npz(3 << 20)] * 24)
    for _ in range(3):
        with ds.loader(batch_size=2, memory_bytes=BUDGET, workers=4) as loader:
            assert len(next(iter(loader))["x"]) == 2


def test_a_budget_that_nobody_asked_for_holds_one_cell_not_one_batch(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.engine.host.default_memory", lambda: BUDGET)
    ds = dataset(tmp_path, CompressedNdarrayCodec(), (None,), [npz(12 << 20)] * 4)
    with ds.loader(batch_size=4) as loader:
        assert ids(loader) == [0, 1, 2, 3]
    ds = dataset(tmp_path, CompressedNdarrayCodec(), (None,), [npz(LARGE)])
    with ds.loader(batch_size=4) as loader, pytest.raises(DecodeError, match="memory_bytes"):
        list(loader)


@pytest.mark.timeout(60)
def test_a_batch_larger_than_the_room_is_made_when_the_consumer_comes_back_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.engine.host.default_memory", lambda: BUDGET)
    has_room, waits = Scheduler._has_room, threading.Event()

    def watched(self, number, num_bytes):
        found = has_room(self, number, num_bytes)
        if not found:
            waits.set()
        return found

    monkeypatch.setattr(Scheduler, "_has_room", watched)
    ds = dataset(tmp_path, CompressedNdarrayCodec(), (None,), [npz(12 << 20)] * 6)
    with ds.loader(batch_size=2, workers=1) as loader:
        found = []
        for batch in loader:
            found += batch["id"].tolist()
            if len(found) == 2:
                assert waits.wait(30)  # the only worker sleeps before this thread waits for its batch
    assert found == [0, 1, 2, 3, 4, 5]


def test_the_budget_error_comes_out_of_a_process_whole(tmp_path):
    ds = dataset(tmp_path, NdarrayCodec(), (None,), [NdarrayCodec().encode(FREE, np.zeros(2 << 20, np.uint8))] * 2)
    loader = ds.loader(batch_size=2, memory_bytes=40 << 20, pool="process", workers=1)
    with loader, pytest.raises(BudgetError, match="memory_bytes"):
        list(loader)


FREE = UnischemaField("x", np.uint8, (None,), NdarrayCodec(), False)
