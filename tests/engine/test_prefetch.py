"""Threads that work ahead of the consumer: in order, errors in their place, and nothing left however a stream ends.

Every case with one thread and with two in a row.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import threading
import time

import pytest

from penstock.engine.delivery import Delivery, Stream
from penstock.engine.prefetch import Prefetched
from penstock.errors import LoaderClosed
from penstock.halt import OwnThread
from tests.depth import depth


class Numbers(Stream):
    """A stream of 0, 1, ... up to `end`, or an error there; it records what happens to it."""

    length = None

    def __init__(self, end, error=None):
        self.numbers, self.error = iter(range(end)), error
        self.taken, self.stopped = 0, threading.Event()
        self.acknowledged, self.handed_over, self.waiting, self.is_ahead = [], 0, [], False

    @property
    def end(self):
        return -1

    def take(self):
        for number in self.numbers:
            self.taken += 1
            return Delivery(number, number, None, 1)
        if self.error is not None:
            raise self.error
        return None

    def received(self, place, waited_s=0.0):
        self.acknowledged.append(place)
        self.is_over = self.is_over or place == self.end

    def ready(self):
        return 0

    def stop(self):
        self.stopped.set()

    def before_state(self, function):
        raise NotImplementedError("not asked for here")

    def note_hand_over(self, seconds):
        self.handed_over += 1

    def note_waiting(self, waiting):
        self.waiting.append(waiting)

    def note_ahead(self, front):
        self.is_ahead = True


class Endless(Numbers):
    """A stream whose next delivery never comes."""

    def take(self):
        self.stopped.wait()


def alone(source, ahead=2):
    return Prefetched(source, lambda one: one.batch * 10, ahead)


def in_a_row(source, ahead=2):
    return Prefetched(source.map(lambda one: one.batch * 2, ahead=1), lambda one: one.batch * 5, ahead)


@pytest.fixture(params=[alone, in_a_row])
def make(request):
    yield request.param
    deadline = time.monotonic() + 5
    while (left := [t for t in threading.enumerate() if t.name == "penstock-feed"]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


def test_everything_comes_in_order_and_the_thread_ends(make):
    source = Numbers(7)
    assert list(make(source)) == [0, 10, 20, 30, 40, 50, 60]
    assert source.acknowledged == [0, 1, 2, 3, 4, 5, 6, -1]
    assert source.is_ahead
    assert list(make(Numbers(0))) == []


def test_after_the_end_none_comes_every_time(make):
    stream = make(Numbers(1))
    assert stream.take().batch == 0
    assert [stream.take(), stream.take()] == [None, None]


def test_what_was_made_ahead_is_not_acknowledged(make):
    source = Numbers(9)
    running = iter(make(source, 3))
    next(running)
    next(running)
    deadline = time.monotonic() + 5
    while source.taken < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert source.taken >= 5
    assert source.acknowledged == [0, 1]
    del running


def test_an_error_comes_where_its_number_would(make):
    stream = make(Numbers(2, KeyError("third")))
    assert [stream.take().batch, stream.take().batch] == [0, 10]
    with pytest.raises(KeyError, match="third"):
        stream.take()
    stream.stop()


def in_time(function):
    """Return what a call raises; it fails where the call does not return."""
    raised = []

    def call():
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    if thread.is_alive():
        faulthandler.dump_traceback(all_threads=True)
    assert not thread.is_alive()
    return raised[0] if raised else None


def fails_at_one(number):
    if number == 1:
        raise ValueError("one")
    return number


@pytest.mark.parametrize(
    "make",
    [
        lambda source: source.map(lambda one: fails_at_one(one.batch), ahead=2),
        lambda source: source.map(lambda one: fails_at_one(one.batch), ahead=2).map(lambda one: one, ahead=1),
        lambda source: Prefetched(source, lambda one: one.batch, 2).when_taken(fails_at_one),
        lambda source: source.map(lambda one: fails_at_one(one.batch)),
    ],
    ids=["function", "in a row", "when taken", "not ahead"],
)
def test_an_error_stops_the_stream_so_that_nothing_comes_after_the_gap(make):
    source = Numbers(9)
    stream = make(source)
    assert stream.take().place == 0
    with pytest.raises(ValueError, match="one"):
        stream.take()
    assert source.stopped.is_set()
    if isinstance(stream, Prefetched):
        for _ in range(2):
            assert isinstance(in_time(stream.take), LoaderClosed)


class Waiting(threading.Condition):
    """A condition that says when a thread ahead waits for it."""

    waits = threading.Event()

    def wait(self, timeout=None):
        if isinstance(threading.current_thread(), OwnThread):
            self.waits.set()
        return super().wait(timeout)


def test_a_thread_without_room_waits_and_does_not_spin(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Condition", Waiting)
        stream = alone(Numbers(9), 2)
    Waiting.waits.clear()
    stream.take()
    assert Waiting.waits.wait(10)
    stream.stop()


def test_it_works_ahead_by_its_depth_and_no_further(make):
    source = Numbers(100)
    stream = make(source, 3)
    stream.take()
    time.sleep(0.2)
    assert source.taken <= 1 + 3 + (2 if make is in_a_row else 0) + 1
    assert stream.ready() <= 3
    stream.stop()
    assert source.stopped.is_set()
    with pytest.raises(LoaderClosed, match="ended this one"):
        list(stream)


def test_dropping_it_ends_the_threads_and_the_source(make):
    source = Numbers(1 << 60)
    running = iter(make(source))
    next(running)
    del running
    gc.collect()
    assert source.stopped.is_set()


class Locked(Numbers):
    """A stream that needs a lock to say that it was stopped, as that of an engine does."""

    def __init__(self, end):
        super().__init__(end)
        self.lock = threading.Lock()

    def take(self):
        if (taken := super().take()) is not None:
            return taken
        self.stopped.wait()
        with self.lock:
            raise LoaderClosed("stopped")


def test_a_collection_in_a_thread_of_the_engine_waits_for_no_thread_in_front_of_it(make, monkeypatch):
    monkeypatch.setattr("penstock.engine.prefetch.EXIT_WAIT_S", None)
    source = Locked(1)
    held = [make(source)]
    held[0].take()

    def collects():
        with source.lock:
            held.clear()  # as a collection does: it finalizes a stream whose thread will want this lock

    worker = OwnThread(target=collects, daemon=True)
    worker.start()
    worker.join(20)
    if worker.is_alive():
        faulthandler.dump_traceback(all_threads=True)
    assert not worker.is_alive()
    assert source.stopped.is_set()


def test_a_finalizer_does_not_wait_without_limit_for_a_running_call(monkeypatch):
    monkeypatch.setattr("penstock.engine.prefetch.EXIT_WAIT_S", 0.0)
    begun, go_on = threading.Event(), threading.Event()

    def blocks(delivery):
        if delivery.batch:
            begun.set()
            go_on.wait()

    held = [Numbers(9).map(blocks, ahead=1)]
    held[0].take()
    assert begun.wait(5)
    try:
        in_time(held.clear)
    finally:
        go_on.set()


def test_stopping_ends_a_wait_in_the_source(make):
    stream = make(Endless(0))
    closing = threading.Timer(0.05, stream.stop)
    closing.start()
    with contextlib.suppress(LoaderClosed):  # or the end of the source, if that comes first
        assert stream.take() is None
    closing.join()


def test_the_wait_of_the_consumer_and_the_work_of_the_thread_are_noted(make):
    source = Numbers(3)
    assert len(list(make(source))) == 3
    assert source.waiting == [True, False] * 4
    assert source.handed_over == (6 if make is in_a_row else 3)


def test_the_consumer_finishes_a_batch_before_the_thread_makes_another():
    source, seen = Numbers(4), []

    def finish(number):
        time.sleep(0.05)
        seen.append((number, source.taken, threading.current_thread()))
        return number + 1

    stream = alone(source, 1).when_taken(finish)
    assert [stream.take().batch for _ in range(3)] == [1, 11, 21]
    assert [number for number, _, _ in seen] == [0, 10, 20]
    assert {thread for _, _, thread in seen} == {threading.current_thread()}
    assert all(taken <= number // 10 + 2 for number, taken, _ in seen)
    stream.stop()

    def fails(number):
        raise RuntimeError("out of memory")

    stream = alone(Numbers(4), 1).when_taken(fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        list(stream)


class Recorded(Numbers):
    """Numbers that record the order in which they are taken and acknowledged."""

    def __init__(self, end):
        super().__init__(end)
        self.events = []

    def take(self):
        self.events.append("take")
        return super().take()

    def received(self, place, waited_s=0.0):
        time.sleep(0.02)  # time for a thread that was woken too early to take
        self.events.append(f"received {place}")
        super().received(place, waited_s)


def test_a_loop_acknowledges_a_batch_before_the_thread_makes_another():
    source, settled, finished = Recorded(20), [threading.Event() for _ in range(20)], []

    def finish(number):
        finished.append(len(source.events))
        return number

    running = iter(alone(source, 1).when_idle(lambda number: settled[number // 10].set()).when_taken(finish))
    next(running)
    for number in range(1, 8):
        assert settled[number].wait(5)  # it is ready, and the thread has nothing to do
        before = len(source.events)
        assert next(running) == number * 10
        assert finished[-1] == before
        assert source.events[before] == f"received {number}"
    del running


def test_taking_without_acknowledging_makes_room_for_another():
    source = Recorded(20)
    stream = alone(source, 1)
    for number in range(8):
        assert stream.take().batch == number * 10
    assert source.acknowledged == []
    stream.stop()


def test_an_idle_thread_settles_what_waits_and_an_error_of_that_arrives():
    settled = threading.Event()
    stream = alone(Numbers(3), 1).when_idle(lambda number: settled.set())
    stream.take()
    assert settled.wait(5)
    stream.stop()

    def fails(number):
        raise RuntimeError("the device is gone")

    stream = alone(Numbers(9), 1).when_idle(fails)
    with pytest.raises(RuntimeError, match="the device is gone"):
        list(stream)
    stream.stop()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer signals here")
def test_a_signal_handler_may_stop_it_at_any_moment(make):
    stream = make(Numbers(1 << 60))
    before = signal.signal(signal.SIGALRM, lambda *_: stream.stop())
    try:
        for number in range(depth(20, 200)):
            signal.setitimer(signal.ITIMER_REAL, 0.001 + number / 20_000)
            with pytest.raises(LoaderClosed):
                list(stream)
            stream = make(Numbers(1 << 60))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Interrupted(threading.Condition):
    """A condition whose waits are interrupted as soon as they have released the lock, in the main thread."""

    def __init__(self, lock=None):
        super().__init__(lock)
        release = self._release_save

        def interrupted():
            kept = release()
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return kept

        self._release_save = interrupted


def test_ctrl_c_just_after_a_wait_has_released_its_lock(make, monkeypatch):
    source = Endless(0)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Condition", Interrupted)
        stream = make(source)
    with pytest.raises(KeyboardInterrupt):
        stream.take()
    stream.stop()
    assert source.stopped.is_set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused():
    stream = alone(Numbers(9))
    stream.take()
    pid = os.fork()
    if not pid:
        try:
            stream.take()
        except LoaderClosed:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    stream.stop()
