"""No hang and nothing left, however a loader ends: each moment is lived through by a program of its own (`live`).

After it no process of its session runs, its folder for temporary files is empty and /dev/shm is as before. The limit is
half a second after the longest running call; tests guard at ten times that.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import psutil
import pytest

import penstock
from penstock import halt
from penstock.engine import loader as loader_module
from penstock.engine import scheduler
from penstock.errors import BudgetError, LoaderClosed
from penstock.testing import make_parquet
from tests.depth import depth
from tests.engine.live import SLOW_S
from tests.engine.make import ids, tightest

ROOT = Path(__file__).parents[2]
EXIT_S = 0.5
LIMIT_S = depth(60, 600)
POOLS = ["thread", "process"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
    pytest.mark.timeout(depth(300, 3000)),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """400 rows in 20 row groups."""
    return make_parquet(tmp_path_factory.mktemp("data"), [[20] * 10, [20] * 10])


class Program:
    """A running `tests.engine.live`, in a session of its own."""

    def __init__(self, folder, *args):
        self.folder = folder
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self.shared = _shared_memory()
        self.process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-W", "ignore", "-m", "tests.engine.live", *map(str, args)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder)},
        )  # fmt: skip

    def line(self, word):
        """The next line of its output, which must begin with that word."""
        line = self.process.stdout.readline()
        assert line.startswith(word), (line, self.process.communicate(timeout=LIMIT_S)[1])
        return line.split()[1:]

    def end(self, code=0):
        """Wait for its end, check the exit code and that nothing is left; return when it ended and its errors."""
        with self.process:
            try:
                _, errors = self.process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGABRT)  # faulthandler prints where every thread is
                time.sleep(1)
                os.killpg(self.process.pid, signal.SIGKILL)
                pytest.fail(f"still running after {LIMIT_S:.0f} s\n{self.process.communicate()[1]}")
        ended = time.time()
        assert self.process.returncode == code, errors
        _until_gone(lambda: _session(self.process.pid), 2.0)
        _until_gone(lambda: _orphans(self.shared), 5.0)
        assert not list(self.folder.iterdir())
        return ended, errors


def _session(leader):
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(pid) == leader and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


def _shared_memory():
    with contextlib.suppress(FileNotFoundError):
        return {name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "penstock", "sem.mp"))}
    return set()


def _orphans(before):
    """Shared memory that has come since, and that no process has open: others run programs on this machine too."""
    new = _shared_memory() - before
    for pid in psutil.pids() if new else ():
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
            new -= {name for name in new if f"/dev/shm/{name}" in text}
    return new


def _until_gone(what, limit_s):
    deadline = time.monotonic() + limit_s
    while (left := what()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


# -- moments after which the program goes on --------------------------------------------------------------------------


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("moment", ["early_break", "consumer_error", "transform_error", "close_while_waiting"])
def test_the_program_goes_on_with_nothing_left(data, tmp_path, moment, pool):
    Program(tmp_path, moment, data, pool, depth(2, 20)).end()


def test_a_killed_process_is_a_clear_error(data, tmp_path):
    Program(tmp_path, "killed_worker", data, "process", depth(2, 20)).end()


@pytest.mark.parametrize("pool", POOLS)
def test_a_fork_in_mid_epoch_ends_the_child_and_not_the_parent(data, tmp_path, pool):
    Program(tmp_path, "fork_with_loader", data, pool, depth(2, 20)).end()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_start_as_the_user_has_set(data, tmp_path, method):
    for _ in range(depth(1, 20)):
        Program(tmp_path, "started_by", data, "process", method).end()


# -- moments that end the program -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("transform", ["plain", "slow"])
def test_ctrl_c_ends_the_program(data, tmp_path, pool, transform):
    moments = random.Random(5)
    for _ in range(depth(2, 20)):
        program = Program(tmp_path, "interrupted", data, pool, transform)
        program.line("READY")
        time.sleep(moments.choice([0, 0.05, 0.5, 1.0]) * moments.random())
        began = time.time()
        os.killpg(program.process.pid, signal.SIGINT)  # as a terminal does: the pool's processes get it as well
        ended, errors = program.end(code=-signal.SIGINT)
        chained = errors.count("During handling of the above exception")  # it may come inside any handler
        assert errors.count("Traceback") == 1 + chained, errors
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert ended - began < (SLOW_S if transform == "slow" else 0) + 10 * EXIT_S


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("transform", ["plain", "slow"])
@pytest.mark.parametrize("how", ["global", "cycle", "generator", "error"])
def test_exit_without_close(data, tmp_path, how, pool, transform):
    if transform == "slow" and how not in ("global", "error") and depth(0, 1) == 0:
        pytest.skip("in the soak only")
    for _ in range(depth(1, 20)):
        program = Program(tmp_path, f"exit_{'by' if how == 'error' else 'in'}_{how}", data, pool, transform)
        left = float(program.line("LEAVE")[0])
        ended, errors = program.end()
        assert not errors
        assert ended - left < SLOW_S + 10 * EXIT_S


def test_processes_end_when_their_parent_is_killed(data, tmp_path):
    for _ in range(depth(2, 20)):
        program = Program(tmp_path, "wait_for_the_end", data, "process")
        assert len(program.line("CHILDREN")) == 2
        program.process.kill()
        program.end(code=-signal.SIGKILL)


# -- in this program --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, "groups", True])
@pytest.mark.parametrize("pool", ["thread", "serial"])
def test_keeping_every_batch_never_hangs_however_small_the_budget(data, pool, shuffle):
    ds = penstock.open(data)
    options = {"batch_size": 3, "shuffle": shuffle, "shuffle_bytes": 500, "epochs": 2, "pool": pool, "workers": 2}
    for _ in range(depth(5, 50)):
        with ds.loader(memory_bytes=tightest(ds, **options), **options) as loader:
            assert sorted(ids(loader)) == sorted([*range(400)] * 2)


def test_keeping_every_batch_of_processes(data):
    ds = penstock.open(data)
    options = {"batch_size": 3, "shuffle": True, "shuffle_bytes": 500, "pool": "process", "workers": 1}
    with ds.loader(memory_bytes=tightest(ds, **options), **options) as loader:
        assert sorted(ids(loader)) == [*range(400)]


def test_serial_delivers_every_batch_of_a_single_epoch(data):
    with penstock.open(data).loader(batch_size=1, pool="serial") as loader:
        assert ids(loader) == [*range(400)]


def test_two_loaders_over_one_dataset(data):
    ds = penstock.open(data)
    first, second = (ds.loader(batch_size=7, shuffle=True, seed=seed, workers=2) for seed in (1, 2))
    seen = [(one["id"].tolist(), two["id"].tolist()) for one, two in zip(first, second, strict=True)]
    assert sorted(i for one, _ in seen for i in one) == sorted(i for _, two in seen for i in two) == [*range(400)]
    assert seen[0][0] != seen[0][1]


def test_a_loader_may_be_used_in_another_thread_than_it_was_made_in(data):
    loader = penstock.open(data).loader(batch_size=7, workers=2)
    batches = iter(loader)
    first, rest = [next(batches)], []
    thread = threading.Thread(target=lambda: rest.extend(batches))
    thread.start()
    thread.join(60)
    assert ids(first + rest) == [*range(400)]


def test_close_twice_and_use_after_close(data):
    loader = penstock.open(data).loader(batch_size=7)
    batches = iter(loader)
    kept = next(batches)
    state = loader.state_dict()
    loader.close()
    loader.close()
    assert kept["id"].tolist() == [*range(7)]
    assert loader.state_dict() == state
    for use in (lambda: next(batches), lambda: iter(loader), lambda: loader.load_state_dict(state)):
        with pytest.raises(LoaderClosed):
            use()


def test_a_new_iterator_ends_the_one_before(data):
    loader = penstock.open(data).loader(batch_size=7, workers=2)
    old = iter(loader)
    next(old)
    assert sum(1 for _ in loader) == len(loader)
    with pytest.raises(LoaderClosed, match="another one was made"):
        next(old)


def test_close_waits_for_one_batch_and_not_for_its_span(data):
    calls = []

    def counted(batch):
        calls.append(time.monotonic())
        time.sleep(0.05)
        return batch

    loader = penstock.open(data).loader(batch_size=1, workers=1, transform=counted)
    batches = iter(loader)
    for _ in range(20):  # spans are long by now
        next(batches)
    began = time.monotonic()
    loader.close()
    assert sum(one > began for one in calls) <= 1  # one may be about to begin


def test_close_from_a_transform(data):
    def closing(batch):
        loader.close()
        return batch

    loader = penstock.open(data).loader(batch_size=7, workers=2, transform=closing)
    with pytest.raises(LoaderClosed):
        list(loader)


def test_ctrl_c_just_after_a_wait_has_let_go_of_its_lock(data):
    def slow(batch):
        time.sleep(0.2)
        return batch

    loader = penstock.open(data).loader(batch_size=7, workers=2, transform=slow)
    stream = loader.stream()
    batches, scheduler = iter(stream), stream._scheduler
    next(batches)
    let_go = scheduler._cond._release_save

    def interrupted():
        state = let_go()
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return state

    scheduler._cond._release_save = interrupted
    with pytest.raises(KeyboardInterrupt):
        list(batches)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock")]
    assert sum(len(batch["id"]) for batch in loader) == 400


def test_a_signal_handler_may_close(data):
    loader = penstock.open(data).loader(batch_size=1, workers=2, epochs=None)
    before = signal.signal(signal.SIGALRM, lambda *_: loader.close())
    try:
        for number in range(depth(20, 200)):
            signal.setitimer(signal.ITIMER_REAL, 0.001 + number / 10_000)
            with pytest.raises(LoaderClosed):
                for _ in loader:
                    pass
            loader = penstock.open(data).loader(batch_size=1, workers=2, epochs=None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_span_is_halted_after_its_run_is_stopped_and_stopping_may_be_interrupted(data):
    class Halted(threading.Event):
        def set(self):
            assert run._stopped  # or the part that is built would pass for the whole span
            run.stop()  # as a signal handler may
            super().set()

    loader = penstock.open(data).loader(batch_size=7, workers=2)
    stream = loader.stream()
    next(iter(stream))
    run = stream._scheduler
    object.__setattr__(run._builder, "halted", Halted())
    loader.close()
    assert run._builder.halted.is_set()


class InterruptAt:
    """A trace function that raises KeyboardInterrupt at one line of the scheduler, counted from the beginning."""

    def __init__(self, number):
        self.left, self.modules = number, (scheduler.__file__, halt.__file__)

    def __call__(self, frame, event, _):
        if frame.f_code.co_filename not in self.modules or frame.f_code.co_name == "stop":  # finalizers call that
            return None
        if event == "line":
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
        return self

    def read(self, batches, seen):
        before = sys.gettrace()
        sys.settrace(self)
        try:
            for batch in batches:
                seen.append(batch["id"].tolist())
        finally:
            sys.settrace(before)


def test_ctrl_c_at_any_line_without_workers_is_itself_and_loses_nothing(data):
    ds = penstock.open(data)
    lines = InterruptAt(-1)
    lines.read(ds.loader(batch_size=50, pool="serial"), whole := [])
    for number in range(1, -lines.left, depth(29, 1)):
        seen = []
        with ds.loader(batch_size=50, pool="serial") as loader:
            with pytest.raises(KeyboardInterrupt):
                InterruptAt(number).read(loader, seen)
            state = loader.state_dict()
        with ds.loader(batch_size=50, pool="serial") as rest:
            rest.load_state_dict(state)
            seen += [batch["id"].tolist() for batch in rest] if len(seen) < len(whole) else []
        assert seen == whole


def test_a_batch_that_ctrl_c_takes_along_in_the_statistics_was_not_received(data, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with penstock.open(data).loader(batch_size=7) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        monkeypatch.setattr("penstock.engine.loader.Stats.delivered", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert loader.state_dict() == state


@pytest.mark.parametrize("pool", ["serial", "thread"])
def test_several_threads_take_each_batch_once(data, pool):
    def take():
        try:
            while (delivery := stream.take()) is not None:
                seen.extend(delivery.batch["id"].tolist())
        except BaseException as error:
            errors.append(error)

    def yields(batch):
        time.sleep(0.0005)
        return batch

    seen, errors = [], []
    with penstock.open(data).loader(batch_size=2, pool=pool, transform=yields) as loader:
        stream = loader.stream()
        threads = [threading.Thread(target=take, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if any(thread.is_alive() for thread in threads):
            faulthandler.dump_traceback(all_threads=True)
        assert not any(thread.is_alive() for thread in threads)
    assert not errors
    assert sorted(seen) == list(range(400))


def test_what_several_threads_take_is_noted_in_the_order_of_the_pass(data, monkeypatch):
    first, second = threading.Event(), threading.Event()

    class LatePlace(loader_module.Place):
        """The place of the first batch takes long to make, until another thread has taken the second batch."""

        def __init__(self, plan, steps, *more):
            super().__init__(plan, steps, *more)
            if plan is not None and steps == 1 and not first.is_set():
                first.set()
                second.wait(0.5)

    monkeypatch.setattr(loader_module, "Place", LatePlace)
    taken = []
    with penstock.open(data).loader(batch_size=4, rank=0, world=1) as loader:
        stream = loader.stream()
        thread = threading.Thread(target=lambda: taken.append(stream.take()), daemon=True)
        thread.start()
        assert first.wait(30)
        taken.insert(0, stream.take())
        second.set()
        thread.join(30)
        later, earlier = sorted(taken, key=lambda delivery: -delivery.place.key[1])
        stream.received(earlier.place)
        stream.received(later.place)
        left = loader.batches_left
        stream.received(earlier.place)
        assert loader.batches_left == left == 98


def test_nobody_goes_on_behind_a_batch_that_ctrl_c_took_along(data):
    def interrupted():
        take()
        raise KeyboardInterrupt

    with penstock.open(data).loader(batch_size=7, workers=2) as loader:
        stream = loader.stream()
        batches = iter(stream)
        next(batches)
        run, state = stream._scheduler, loader.state_dict()
        take, run.next = run.next, interrupted
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        run.next = take
        with pytest.raises(LoaderClosed):
            next(batches)
        assert loader.state_dict() == state


def test_batches_at_hand_that_another_thread_lets_go(data):
    class Cleared(deque):
        def popleft(self):
            scheduler._ready = deque()
            scheduler.stop()
            raise IndexError

    loader = penstock.open(data).loader(batch_size=7, workers=2)
    stream = loader.stream()
    batches, scheduler = iter(stream), stream._scheduler
    next(batches)
    scheduler._ready = Cleared([None])  # another thread stops the run just when this one wants the next batch
    with pytest.raises(LoaderClosed):
        next(batches)
    loader.close()


def test_a_failing_scheduler_is_an_error_and_no_hang(data, monkeypatch):
    from penstock.engine.residency import Residency

    monkeypatch.setattr(Residency, "read_needed", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(Residency, "read_ahead", lambda *_, **__: None)
    with pytest.raises(ZeroDivisionError):
        list(penstock.open(data).loader(batch_size=7, workers=2))


def test_too_little_memory_is_an_error_at_once(data):
    with pytest.raises(BudgetError):
        penstock.open(data).loader(batch_size=7, memory_bytes=1)
