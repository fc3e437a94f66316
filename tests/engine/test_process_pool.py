"""The process pool: any start method, batches in unnamed shared memory that stay valid, and errors that travel."""

from __future__ import annotations

import decimal
import importlib
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import penstock
from penstock.engine import process
from penstock.engine.gather import Gathered
from penstock.engine.process import Packer, ProcessStages, SharedBlock, _freeze, _revive, payload_of, unpack
from penstock.errors import PlanError, TransformError
from penstock.testing import make_parquet, mixed
from tests.engine.make import as_list, ids
from tests.house import ROOT


def same(batch):
    return batch


def in_which_process(batch):
    return {**batch, "pid": np.full(len(batch["id"]), os.getpid())}


def growing(batch):
    """Rows of more and more bytes."""
    return {**batch, "wide": np.repeat(batch["id"][:, None], 1 + 200 * int(batch["id"][0]), 1)}


def odd_columns(batch):
    count = len(batch["id"])
    fields = np.zeros(count, [("a", np.int16), ("b", np.float64, (2,))])
    fields["a"] = batch["id"]
    return {
        "id": batch["id"],
        "fields": fields,
        "fortran": np.asfortranarray(np.tile(batch["id"][:, None], (1, 3))),
        "strided": np.repeat(batch["id"], 2)[::2],
        "big": batch["id"].astype(">i4"),
        "when": batch["id"].astype("M8[us]"),
        "text": batch["id"].astype(np.str_),
        "empty": np.zeros((count, 0)),
        "flag": batch["id"] % 2 == 0,
        "masked": np.ma.masked_equal(batch["id"], 3),
        "objects": np.array([{"i": int(i)} for i in batch["id"]], object),
        "list": [[int(i)] * (int(i) % 3) for i in batch["id"]],
    }


UNGUARDED = """
import penstock
print("the script runs")
with penstock.open("data").loader(batch_size=4, pool="process", workers=1) as loader:
    print(sum(len(batch["id"]) for batch in loader))
"""


class Stubborn(Exception):
    """An exception that cannot be pickled."""

    def __init__(self, lock):
        super().__init__("no way out")
        self.lock = lock


class Forgetful(Exception):
    """An exception that can be pickled and not read again."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def raises_stubborn(batch):
    raise Stubborn(threading.Lock())


def raises_forgetful(batch):
    raise Forgetful("this", "that")


def leaves(batch):
    sys.exit(3)


def huge(batch):
    return {
        "id": batch["id"],
        "huge": np.broadcast_to(batch["id"][:, None].astype(np.uint8), (len(batch["id"]), 50 << 20)),
    }


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    return penstock.open(make_parquet(tmp_path_factory.mktemp("data"), [[20, 20], [10]]))


def batches(ds, transform=same, **options):
    options = {"batch_size": 5, "workers": 1, **options}
    with ds.loader(pool="process", transform=transform, **options) as loader:
        return list(loader)


# -- through the loader ------------------------------------------------------------------------------------------------


def test_the_transform_runs_in_other_processes(ds):
    pids = {int(pid) for batch in batches(ds, in_which_process, workers=2, epochs=4) for pid in batch["pid"]}
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2


def test_batches_stay_valid_after_later_ones_and_after_close(ds):
    kept = batches(ds, epochs=8)  # 80 batches: more than a process has blocks
    assert ids(kept) == [*range(50)] * 8
    kept[0]["id"][:] = -1
    assert ids(kept)[5:] == ([*range(50)] * 8)[5:], "a batch is the user's own"


def test_blocks_are_used_again_once_a_batch_is_gone(ds):
    with ds.loader(batch_size=5, pool="process", workers=1, epochs=20) as loader:
        stream = loader.stream()
        for batch in stream:
            del batch
        finisher = next(iter(stream._scheduler._processes), None)
        assert finisher is None, "gone at the end of the pass"
    with ds.loader(batch_size=5, pool="process", workers=1, epochs=20) as loader:
        stream = loader.stream()
        found = iter(stream)
        for _ in range(150):
            next(found)
        assert len(stream._scheduler._processes[0]._blocks) < 8


def test_blocks_grow_with_the_batches(ds):
    kept = batches(ds, growing)
    assert all((batch["wide"] == batch["id"][:, None]).all() for batch in kept)
    assert ids(kept) == [*range(50)]


def test_a_batch_of_half_a_gigabyte(ds):
    with ds.loader(batch_size=10, pool="process", workers=1, transform=huge) as loader:
        batch = next(iter(loader))
    assert batch["huge"].nbytes == 500 << 20
    assert batch["huge"][:, -1].tolist() == [*range(10)]


def test_columns_of_every_kind_come_back_as_they_were(ds):
    found = batches(ds, odd_columns, workers=2)
    for batch in found:
        expected = odd_columns({"id": batch["id"]})
        assert list(batch) == list(expected)
        for name, values in expected.items():
            assert type(batch[name]) is type(values)
            assert getattr(batch[name], "dtype", None) == getattr(values, "dtype", None)
            assert repr(as_list(batch[name])) == repr(as_list(values))
    assert ids(found) == [*range(50)]


def test_stored_columns_with_nulls_are_the_same_as_in_threads(tmp_path):
    data = penstock.open(make_parquet(tmp_path / "data", [[30], [25]], columns=mixed))
    with data.loader(batch_size=8, shuffle=True) as loader:
        expected = list(loader)
    found = batches(data, batch_size=8, shuffle=True)
    for one, two in zip(found, expected, strict=True):
        assert list(one) == list(two)
        for name in one:
            assert type(one[name]) is type(two[name])
            assert repr(as_list(one[name])) == repr(as_list(two[name]))
    assert any(isinstance(value, decimal.Decimal) for value in found[0]["money"])


@pytest.mark.parametrize(
    ("transform", "message"),
    [(raises_stubborn, "Stubborn: no way out"), (raises_forgetful, "Forgetful: this and that")],
)
def test_an_exception_that_cannot_travel_is_told(ds, transform, message):
    with pytest.raises(TransformError, match=message) as caught:
        batches(ds, transform)
    assert "row group 0, rows 0 to 4" in str(caught.value)
    assert any("in a process of the pool" in note for note in caught.value.__cause__.__notes__)


def test_sys_exit_in_a_transform_reaches_the_user(ds):
    with pytest.raises(SystemExit) as caught:
        batches(ds, leaves)
    assert caught.value.code == 3


def test_a_transform_that_cannot_be_pickled_is_refused_with_the_cure(ds, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(PlanError, match=r"cannot be pickled: .*cloudpickle, or use pool=\"thread\""):
        ds.loader(batch_size=5, pool="process", transform=lambda batch: batch)


def test_the_start_method_is_the_users_or_spawn(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: None)
    assert process.start_method() == "spawn"
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "forkserver")
    assert process.start_method() == "forkserver"


def test_loaders_leave_the_start_method_to_the_user(ds):
    before = multiprocessing.get_start_method(allow_none=True)
    batches(ds)
    assert multiprocessing.get_start_method(allow_none=True) == before


# -- one process -------------------------------------------------------------------------------------------------------


def test_close_before_and_during_the_start_and_twice():
    never = ProcessStages(b"", "spawn")
    never.close()
    begun = ProcessStages(b"", "spawn")
    begun._process = multiprocessing.get_context("spawn").Process()  # Ctrl-C came before it was started
    begun.close()
    late = ProcessStages(payload_of(same), "spawn")
    late.close()
    late.start()  # closed by another thread in the meantime
    assert not late._process.is_alive()
    started = ProcessStages(payload_of(same), "spawn")
    started.start()
    pid = started._process.pid
    assert started._process not in multiprocessing.active_children(), "a user's fork must not end it"
    started.close()
    started.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_exceptions_travel_with_their_text():
    try:
        raise ValueError("seven")
    except ValueError as error:
        frozen = _freeze(error)
    back = _revive(*frozen)
    assert isinstance(back, ValueError)
    assert "raise ValueError" in back.__notes__[0]


# -- shared memory -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has named mappings")
@pytest.mark.parametrize("memfd", [True, False])
def test_a_block_has_no_name_and_leaves_nothing(monkeypatch, tmp_path, memfd):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(process.tempfile, "tempdir", None)
    if not memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    here, there = multiprocessing.Pipe()
    block = SharedBlock(10_000)
    block.memory[:] = np.arange(10_000, dtype=np.uint8)
    block.send(here, os.getpid())
    other = SharedBlock.receive(there)
    assert (other.memory == block.memory).all()
    other.memory[17] = 99
    assert block.memory[17] == 99, "both see the same bytes"
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(process.tempfile, "tempdir", None)


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_pool_without_memfd(ds, monkeypatch, tmp_path):
    monkeypatch.setattr(process.tempfile, "tempdir", str(tmp_path))
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(process, "start_method", lambda: "fork")  # a forked process has no memfd either
    assert ids(batches(ds)) == [*range(50)]
    assert not list(tmp_path.iterdir())


def test_packed_arrays_come_back():
    arrays = [np.arange(7), np.zeros((0, 3), np.float32), np.array(["a", "bc"]), np.ones((2, 3), bool)[:, ::2]]
    packer = Packer()
    where = [packer.add(array) for array in arrays]
    memory = np.empty(packer.num_bytes, np.uint8)
    packer.pack(memory)
    for array, one in zip(arrays, where, strict=True):
        found = unpack(memory, one)
        assert found.dtype == array.dtype
        assert found.tolist() == array.tolist()
        assert found.ctypes.data % 16 == memory.ctypes.data % 16


def test_a_type_whose_name_says_only_its_width_comes_back():
    core = "numpy.core" if np.__version__.startswith("1.") else "numpy._core"
    rational = importlib.import_module(f"{core}._rational_tests").rational  # NumPy's own, made like bfloat16
    array = np.array([rational(1, 3), rational(2, 5)], rational)
    packer = Packer()
    description = packer.add(array)
    memory = np.zeros(packer.num_bytes, np.uint8)
    packer.pack(memory)
    found = unpack(memory, pickle.loads(pickle.dumps(description)))
    assert found.dtype == array.dtype
    assert found.tolist() == array.tolist()


def test_gathered_cells_are_packed_without_the_bytes_between():
    from penstock.codecs import Cells

    cells = Cells.from_list([b"one", None, b"", b"three"])
    packer = Packer()
    form = process._pack_gathered(packer, Gathered(valid=cells.valid, cells=cells))
    memory = np.empty(packer.num_bytes, np.uint8)
    packer.pack(memory)
    found = process._unpack_gathered(memory, form).cells
    assert [None if cell is None else bytes(cell) for cell in found] == [b"one", None, b"", b"three"]


def run_unguarded(tmp_path, script):
    make_parquet(tmp_path / "data", [[9]])
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")])}
    command = [sys.executable, "script.py"]
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_script_without_a_main_guard_works_and_runs_once(tmp_path):
    done = run_unguarded(tmp_path, UNGUARDED)
    assert not done.returncode, done.stderr
    assert done.stdout.splitlines() == ["the script runs", "9"]


def test_a_script_whose_transform_is_needed_is_told_of_the_main_guard(tmp_path):
    (tmp_path / "cloudpickle.py").write_text("raise ImportError", encoding="utf-8")
    own = UNGUARDED.replace("import penstock", "import penstock\ndef same(batch): return batch\n", 1)
    done = run_unguarded(tmp_path, own.replace('pool="process"', 'pool="process", transform=same'))
    assert done.returncode == 1
    assert "put what the script does below `if __name__ == '__main__':`" in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("penstock.errors.WorkerDied")
    assert "9" not in done.stdout
