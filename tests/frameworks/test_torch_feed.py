"""Threads that work ahead: in order, errors in their place, nothing left however a feed ends, alone or two in a row."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

pytest.importorskip("torch")

from penstock.errors import LoaderClosed
from penstock.torch.feed import Feed
from tests.depth import depth


class Numbers:
    """A source: 0, 1, ... up to `end`, or an error there."""

    def __init__(self, end, error=None):
        self.numbers, self.error = iter(range(end)), error
        self.taken, self.stopped = 0, threading.Event()

    def take(self):
        for number in self.numbers:
            self.taken += 1
            return number
        if self.error is not None:
            raise self.error
        raise StopIteration

    def stop(self):
        self.stopped.set()


def alone(source, depth=2, **how):
    return Feed(source, lambda number: number * 10, depth, **how)


def in_a_row(source, depth=2, **how):
    return Feed(Feed(source, lambda number: number * 2, 1), lambda number: number * 5, depth, **how)


@pytest.fixture(params=[alone, in_a_row])
def make(request):
    yield request.param
    deadline = time.monotonic() + 5
    while (left := [t for t in threading.enumerate() if t.name == "penstock-feed"]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


def drain(feed):
    got = []
    while True:
        try:
            got.append(feed.take())
        except StopIteration:
            return got


def test_everything_comes_in_order_and_the_thread_ends(make):
    assert drain(make(Numbers(7))) == [0, 10, 20, 30, 40, 50, 60]
    assert drain(make(Numbers(0))) == []


def test_an_error_stands_where_its_number_would(make):
    feed = make(Numbers(2, KeyError("third")))
    assert [feed.take(), feed.take()] == [0, 10]
    with pytest.raises(KeyError, match="third"):
        feed.take()
    feed.stop()


def test_it_works_ahead_by_its_depth_and_no_further(make):
    source = Numbers(100)
    feed = make(source, 3)
    feed.take()
    time.sleep(0.2)
    assert source.taken <= 1 + 3 + (2 if make is in_a_row else 0) + 1
    feed.stop()
    assert source.stopped.is_set()
    with pytest.raises(LoaderClosed, match="was closed"):
        drain(feed)


def test_stopping_ends_a_wait_in_the_source(make):
    class Endless(Numbers):
        def take(self):
            self.stopped.wait()
            raise StopIteration

    source = Endless(0)
    feed = make(source)
    closing = threading.Timer(0.05, feed.stop)
    closing.start()
    with pytest.raises((LoaderClosed, StopIteration)):
        feed.take()
    closing.join()


def test_the_consumer_receives_before_the_thread_goes_on():
    source, seen = Numbers(3), []
    feed = alone(source, 1, receive=lambda number: seen.append((number, threading.current_thread())) or number + 1)
    assert drain(feed) == [1, 11, 21]
    assert seen == [(number, threading.current_thread()) for number in (0, 10, 20)]


def test_what_waits_is_settled_by_the_thread_and_an_error_of_that_arrives():
    settled = threading.Event()
    feed = alone(Numbers(3), 1, settle=lambda number: settled.set())
    feed.take()
    assert settled.wait(5)
    feed.stop()

    def fails(number):
        raise RuntimeError("the device is gone")

    feed = alone(Numbers(9), 1, settle=fails)
    with pytest.raises(RuntimeError, match="the device is gone"):
        drain(feed)
    feed.stop()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer signals here")
def test_a_signal_handler_may_stop_it_at_any_moment(make):
    feed = make(Numbers(1 << 60))
    before = signal.signal(signal.SIGALRM, lambda *_: feed.stop())
    try:
        for number in range(depth(20, 200)):
            signal.setitimer(signal.ITIMER_REAL, 0.001 + number / 20_000)
            with pytest.raises(LoaderClosed):
                drain(feed)
            feed = make(Numbers(1 << 60))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_ctrl_c_just_after_a_wait_has_let_go_of_its_lock(make):
    class Endless(Numbers):
        def take(self):
            self.stopped.wait()
            raise StopIteration

    feed = make(Endless(0))
    let_go = feed._cond._release_save

    def interrupted():
        let_go()
        raise KeyboardInterrupt

    feed._cond._release_save = interrupted
    with pytest.raises(KeyboardInterrupt):
        feed.take()
    feed._cond._release_save = let_go
    feed.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused():
    feed = alone(Numbers(9))
    feed.take()
    pid = os.fork()
    if not pid:
        try:
            feed.take()
        except LoaderClosed:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    feed.stop()
