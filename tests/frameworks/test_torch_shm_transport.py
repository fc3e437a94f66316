"""Batches travel in blocks of shared memory that are used again, and never while anybody looks at them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

import penstock  # noqa: E402
from penstock.testing import make_parquet  # noqa: E402
from penstock.torch import Batches  # noqa: E402
from penstock.torch.shm_transport import Receiver, Sender  # noqa: E402

BATCH = {
    "image": torch.arange(60_000).view(3, 100, 200),
    "label": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "empty": torch.empty(0, 5),
    "half": torch.ones(9_000, dtype=torch.bfloat16),
    "ragged": [torch.arange(9_000), None, torch.arange(2)],
    "pairs": [("k", torch.ones(1))],
    "text": ["a", None],
    "turned": torch.arange(12_000).view(3, 4_000).t(),
}


def same(one, other):
    if isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(other, list | tuple):
        return type(one) is type(other) and all(map(same, one, other))
    return one == other


def is_taken(sender, number=0):
    return bool(sender._blocks[number][0])


def test_a_batch_arrives_as_it_was():
    got = Receiver().unpack(Sender().pack(BATCH), 0)
    assert list(got) == list(BATCH)
    for name, values in BATCH.items():
        assert same(got[name], values), name


def test_a_block_is_used_again_when_the_last_tensor_of_its_batch_is_gone():
    sender, receiver = Sender(), Receiver()
    got = receiver.unpack(sender.pack(BATCH), 0)
    assert is_taken(sender)
    row = got["image"][1]
    label = got["label"]
    del got
    assert is_taken(sender), "a view of one row still looks at it"
    second = receiver.unpack(sender.pack(BATCH), 0)
    assert len(sender._blocks) == 2
    assert row[0, 0] == 20_000
    del row
    assert not is_taken(sender)
    assert label.tolist() == [1, 2, 3], "small tensors do not keep a block"
    third = receiver.unpack(sender.pack({**BATCH, "image": BATCH["image"] + 1}), 0)
    assert len(sender._blocks) == 2
    assert same(second["image"], BATCH["image"])
    assert same(third["image"], BATCH["image"] + 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_that_drops_its_copy_frees_no_block():
    sender, receiver = Sender(), Receiver()
    got = receiver.unpack(sender.pack(BATCH), 0)
    pid = os.fork()
    if not pid:
        del got
        os._exit(0)
    os.waitpid(pid, 0)
    sender.pack({**BATCH, "image": BATCH["image"] + 1})
    assert same(got["image"], BATCH["image"])


def test_larger_batches_get_larger_blocks():
    sender, receiver = Sender(), Receiver()
    for size in (10_000, 20_000, 80_000, 10_000):
        got = receiver.unpack(sender.pack({"x": torch.arange(size)}), 0)
        assert same(got["x"], torch.arange(size))
        del got
    assert len(sender._blocks) == 1


def test_who_keeps_every_batch_gets_them_torchs_way():
    sender, receiver = Sender(), Receiver()
    kept = [receiver.unpack(sender.pack({"x": torch.arange(10_000) + i}), 0) for i in range(40)]
    assert len(sender._blocks) == 16
    assert all(same(batch["x"], torch.arange(10_000) + i) for i, batch in enumerate(kept))


def test_blocks_of_workers_that_are_gone_are_let_go():
    sender, receiver = Sender(), Receiver()
    for number in range(5):
        parcel = sender.pack(BATCH)
        receiver.unpack(parcel._replace(sender=(number, 0)), number)
    assert len(receiver._blocks) <= 2


@pytest.mark.parametrize("keep", [True, False])
def test_nothing_is_overwritten_on_the_way_through_a_data_loader(tmp_path, keep):
    ids = torch.arange(2_000)
    columns = {"id": ids.numpy(), "x": (ids[:, None] * torch.ones(1, 300, dtype=torch.int64)).numpy()}
    penstock.write(columns, tmp_path / "data")
    batches = DataLoader(Batches(tmp_path / "data", batch_size=20, shuffle=True), batch_size=None, num_workers=2)
    kept = []
    for _ in range(2):
        for batch in batches:
            assert torch.equal(batch["x"][:, 7], batch["id"])
            kept.append(batch if keep else batch["id"])
    if keep:
        assert all(torch.equal(batch["x"].float().mean(1), batch["id"].float()) for batch in kept)
    assert sum(map(len, kept if not keep else [batch["id"] for batch in kept])) == 4_000


def test_a_collate_fn_may_change_batches_on_the_way(tmp_path):
    data = make_parquet(tmp_path / "data")
    made = DataLoader(Batches(data, batch_size=51), batch_size=None, num_workers=1, collate_fn=doubled)
    assert next(iter(made))["double"].tolist() == [2 * i for i in range(51)]


def doubled(batch):
    batch["double"] = batch["id"] * 2
    return batch


EXIT = """
import threading, time
import numpy as np, torch
from penstock.torch.shm_transport import Sender

sender, begun = Sender(), threading.Event()
batches = [{"x": torch.from_numpy(np.zeros(1 << 18))} for _ in range(4000)]

def feed():
    while batches:
        begun.set()
        sender.pickled(batches.pop())
        with sender._lock:
            sender._blocks.clear()

threading.Thread(target=feed, daemon=True).start()
begun.wait()
time.sleep(0.2)
"""


def test_a_process_may_exit_while_a_batch_is_packed():
    ended = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
