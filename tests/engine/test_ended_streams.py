"""Streams that have ended: each says why, and how to go on behind the last batch that was received."""

from __future__ import annotations

import os

import pytest

import penstock
from penstock.errors import LoaderClosed, StoreUnavailable
from penstock.testing import FaultySource, MemorySource

ROWS = 100


@pytest.fixture
def ds():
    return penstock.open(MemorySource({"id": range(ROWS)}, [10] * 10))


def make(ds):
    return ds.loader(batch_size=10, rank=0, world=1)


def make_mix(ds):
    return penstock.mix([(make(ds), 1.0), (make(ds), 1.0)], stop="all")


def ids(batches):
    return [int(row) for batch in batches for row in batch["id"]]


def fails_at(number):
    """A function for `map` that fails at one of the batches."""

    def function(delivery):
        if delivery.batch["id"][0] == number:
            raise ZeroDivisionError("mine")
        return delivery.batch

    return function


# -- after an error ---------------------------------------------------------------------------------------------------


def test_after_an_error_the_message_says_how_to_go_on_and_it_does():
    faults = {5: StoreUnavailable("no answer", url="u", attempts=1)}
    failing = FaultySource(MemorySource({"id": range(ROWS)}, [10] * 10), faults, times=1)
    with make(penstock.open(failing)) as loader:
        iterator, seen = iter(loader), []
        with pytest.raises(StoreUnavailable):
            seen.extend(iterator)
        with pytest.raises(LoaderClosed, match=r"has failed.*begins its next pass.*load_state_dict\(loader.state_dict"):
            next(iterator)
        loader.load_state_dict(loader.state_dict())
        assert ids(seen) + ids(loader) == list(range(ROWS))
        assert loader.pass_number == 1


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("maker", [make, make_mix])
def test_a_function_that_failed_ends_the_stream_for_every_later_take(ds, maker, ahead):
    loader = maker(ds)
    stream = loader.stream().map(fails_at(30), ahead=ahead)
    taken = []
    with pytest.raises(ZeroDivisionError, match="mine"):
        taken.extend(iter(stream.take, None))
    for _ in range(2):
        with pytest.raises(LoaderClosed, match=r"has failed.*begins its next pass"):
            stream.take()
    stream.received(taken[-1].place)  # what came before the error may still be acknowledged
    assert loader.state_dict() == loader.state_of(taken[-1].place)


# -- who ended it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [None, 0, 3])
@pytest.mark.parametrize("maker", [make, make_mix])
def test_stopped_superseded_and_closed_streams_say_which(ds, maker, ahead):
    loader = maker(ds)

    def begin():
        stream = loader.stream()
        return stream if ahead is None else stream.map(lambda delivery: delivery.batch, ahead=ahead)

    for warm in (False, True):
        stream = begin()
        if warm:
            stream.take()
        stream.stop()
        with pytest.raises(LoaderClosed, match=r"stream was stopped.*begins its next pass"):
            stream.take()
    stream, _live = begin(), begin()
    with pytest.raises(LoaderClosed, match="another one was made of the same loader"):
        stream.take()
    stream = begin()
    loader.close()
    with pytest.raises(LoaderClosed, match="is closed; make another one"):
        stream.take()


# -- in a forked child ------------------------------------------------------------------------------------------------


def in_child(call):
    """What a call does in a forked child: the name of the error that it raises, or "delivered"."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            call()
            found = "delivered"
        except BaseException as error:
            found = type(error).__name__
        os.write(writing, found.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as result:
        return result.read()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("maker", [make, make_mix])
def test_streams_and_iterators_of_the_parent_raise_in_a_forked_child(ds, maker):
    loader = maker(ds)
    iterator = iter(loader)
    next(iterator)
    assert in_child(lambda: next(iterator)) == "LoaderClosed"
    stream = loader.stream()
    delivery = stream.take()
    assert in_child(stream.take) == "LoaderClosed"
    assert in_child(lambda: stream.received(delivery.place)) == "LoaderClosed"
    for works in (loader.state_dict, stream.ready, stream.stop, lambda: next(iter(loader))):
        assert in_child(works) == "delivered"
    assert stream.take() is not None  # the parent goes on


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_rows_of_the_parent_are_not_delivered_in_a_forked_child(ds):
    rows = iter(ds)
    next(rows)
    assert in_child(lambda: next(rows)) == "LoaderClosed"
    assert next(rows) == {"id": 1}
