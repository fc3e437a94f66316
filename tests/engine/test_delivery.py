"""Streams of deliveries: what was taken is not received before its place is acknowledged, whoever stands between."""

from __future__ import annotations

import gc
import itertools
import json
import os
import pickle
import threading

import pytest

import penstock
from penstock.errors import LoaderClosed, PlanError
from penstock.testing import assert_resumes_exactly
from tests.engine.make import dataset
from tests.engine.mixes import three_sets

FILES = [[5, 1, 8], [3], [2, 13, 1, 4], [7, 7]]
"""51 rows."""


@pytest.fixture
def loader():
    with dataset(FILES) as ds, ds.loader(batch_size=5, shuffle=True) as made:
        yield made


@pytest.fixture
def sets(tmp_path):
    return three_sets(tmp_path)


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def ours():
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock")]


# -- acknowledging ----------------------------------------------------------------------------------------------------


def test_taking_moves_nothing_and_acknowledging_does(loader):
    stream, start = loader.stream(), loader.state_dict()
    taken = [stream.take() for _ in range(4)]
    assert loader.state_dict() == start
    stream.received(taken[1].place)
    assert loader.state_dict()["position"] == 10
    stream.received(taken[0].place)  # older: ignored
    assert loader.state_dict()["position"] == 10
    stream.received(taken[3].place)
    assert (loader.state_dict()["position"], loader.batches_left, len(loader)) == (20, 7, 11)
    assert loader.stats()["batches"] == 4


def test_a_stream_ends_with_none_every_time_and_its_end_is_the_next_pass(loader):
    stream = loader.stream()
    while (delivery := stream.take()) is not None:
        stream.received(delivery.place)
    assert stream.take() is None
    assert loader.state_of(stream.end) == loader.state_of(loader.place_at(1)) == loader.state_dict()
    stream.received(stream.end)
    assert (loader.pass_number, len(loader)) == (1, 11)


def test_the_end_of_a_pass_without_batches_is_acknowledged_too():
    with dataset([[3]]) as ds, ds.loader(batch_size=5, drop_last=True) as loader:
        assert ids(loader) == []
        assert loader.pass_number == 1


def test_a_superseded_stream_moves_nothing(loader):
    stream = loader.stream()
    delivery = stream.take()
    other = loader.stream()
    state = loader.state_dict()
    for call in (stream.take, lambda: stream.received(delivery.place)):
        with pytest.raises(LoaderClosed, match="another one was made"):
            call()
    assert loader.state_dict() == state
    assert other.take() is not None


def test_places_are_cheap_values_that_pickle(loader):
    stream = loader.stream()
    places = [stream.take().place for _ in range(5)]
    assert sorted(places, key=lambda place: place.key) == places
    for place in places:
        again = pickle.loads(pickle.dumps(place))
        assert loader.state_of(again) == loader.state_of(place)
        assert json.loads(json.dumps(loader.state_of(place))) == loader.state_of(place)
        assert loader.count(again) == loader.count(place)


def test_a_stream_begins_at_any_place(loader):
    whole = ids(loader)
    loader.go_to(loader.place_at(0))
    for steps in range(len(whole)):
        place = loader.place_after(loader.place_at(0), steps)
        assert ids(loader.stream(start=place)) == whole[steps:]
    assert loader.place_after(loader.place_at(0), len(whole)) is None


def test_a_consumer_that_counts_by_itself_is_asked_before_a_state(loader):
    stream, taken = loader.stream(), []
    stream.before_state(lambda: stream.received(taken[-1].place) if taken else None)
    taken.extend(stream.take() for _ in range(3))
    assert loader.state_dict()["position"] == 15
    assert loader.stats()["rows"] == 15


# -- streams in front of others ---------------------------------------------------------------------------------------


def test_three_batches_prefetched_are_not_received(loader):
    whole = ids(loader)
    loader.go_to(loader.place_at(0))
    stream = loader.stream().map(lambda delivery: delivery.batch["id"].tolist(), ahead=3)
    first = stream.take()
    while stream.ready() < 3:
        pass
    stream.received(first.place)
    state = loader.state_dict()
    assert (first.batch, state["position"]) == (whole[0], 5)
    loader.load_state_dict(state)
    assert ids(loader) == whole[1:]


def test_mapped_streams_resume_exactly():
    def make():
        class Doubled:
            """A loader as a framework makes one: two maps, each ahead of the consumer."""

            def __init__(self, native):
                self.native, self.state_dict = native, native.state_dict
                self.load_state_dict, self.close = native.load_state_dict, native.close

            def __len__(self):
                return len(self.native)

            def __iter__(self):
                stream = self.native.stream().map(lambda delivery: delivery.batch, ahead=1)
                return iter(stream.map(lambda delivery: {"id": delivery.batch["id"] * 2}, ahead=2))

        return Doubled(ds.loader(batch_size=7, shuffle=True, epochs=2))

    with dataset(FILES) as ds:
        assert_resumes_exactly(make)


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_comes_at_its_place_after_all_earlier_deliveries(loader, ahead):
    def fails(delivery):
        if delivery.origin.first == 15:
            raise ValueError("no good")
        return delivery.batch

    batches, got = iter(loader.stream().map(fails, ahead=ahead)), []
    with pytest.raises(ValueError, match="no good"):
        got.extend(batch["id"].tolist() for batch in batches)
    assert len(got) == 3
    assert loader.state_dict()["position"] == 15
    with pytest.raises(LoaderClosed):
        next(batches)


def test_dropping_the_outermost_stream_ends_all_threads(loader):
    stream = loader.stream().map(lambda delivery: delivery, ahead=2).map(lambda delivery: delivery, ahead=1)
    stream.take()
    assert ours()
    del stream
    gc.collect()
    assert not ours()


def test_a_stopped_stream_with_a_thread_ahead_says_why(loader):
    stream = loader.stream().map(lambda delivery: delivery.batch, ahead=2)
    stream.take()
    running = iter(loader)
    with pytest.raises(LoaderClosed, match="another one was made of the same loader"):
        stream.take()
    del running


def test_closing_waits_for_the_thread_ahead(loader):
    go_on = threading.Event()

    def blocks(delivery):
        if delivery.origin.first:
            threading.Timer(0.2, go_on.set).start()
            go_on.wait()
        return delivery.batch

    stream = loader.stream().map(blocks, ahead=1)
    stream.take()
    loader.close()
    assert not ours()


def test_a_stream_whose_transform_fails_has_no_threads_left():
    def fails(batch):
        raise ValueError("no")

    with dataset(FILES) as ds, ds.loader(batch_size=5, transform=fails) as loader:
        stream = loader.stream()
        with pytest.raises(penstock.errors.TransformError):
            stream.take()
        assert not ours()


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_forked_child_is_told(loader, ahead):
    stream = loader.stream().map(lambda delivery: 1, ahead=ahead)
    stream.take()
    child = os.fork()
    if not child:
        try:
            stream.take()
        except LoaderClosed:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# -- mixes ------------------------------------------------------------------------------------------------------------


def of_mixes(sets, *, stop="all", seed=3, **options):
    """A mix of a loader and a mix of two, whose loaders end at different times."""
    loaders = [ds.loader(**{"batch_size": 4, "shuffle": True, "workers": 1} | options) for ds in sets]
    inner = penstock.mix([(loaders[0], 1), (loaders[1], 2)], seed=seed + 1, stop="all")
    return penstock.mix([(inner, 2), (loaders[2], 1)], seed=seed, stop=stop)


def test_a_mix_of_mixes_gives_every_row_once_and_resumes_exactly(sets):
    with of_mixes(sets) as mix:
        rows = sorted(itertools.chain.from_iterable(ids(mix)))
        assert rows == sorted([*range(23), *range(1000, 1017), *range(2000, 2040)])
        assert mix.pass_number == 1
    assert_resumes_exactly(lambda: of_mixes(sets))
    assert_resumes_exactly(lambda: of_mixes(sets, stop="first", epochs=2))


def test_a_loader_inside_two_mixes_is_refused(sets):
    one = sets[0].loader(batch_size=4)
    with pytest.raises(PlanError, match="share a loader"):
        penstock.mix([(penstock.mix([(one, 1)]), 1), (one, 1)])


@pytest.mark.parametrize("every", [(0, 2), (1, 2), (2, 3)])
def test_strided_mixes_share_a_pass(sets, every):
    first, step = every
    with of_mixes(sets) as mix:
        whole = ids(mix)
    with of_mixes(sets) as mix:
        stream = mix.stream(every=every)
        assert stream.length == len(whole[first::step])
        assert ids(stream) == whole[first::step]


def test_places_of_a_mix_can_be_counted_ahead(sets):
    with of_mixes(sets) as mix:
        whole = ids(mix)
    for steps in (0, 1, 5, len(whole) - 1):
        with of_mixes(sets) as mix:
            place = mix.place_after(mix.place_at(0), steps)
            assert mix.count(place) == len(whole) - steps
            assert ids(mix.stream(start=place)) == whole[steps:]
    with of_mixes(sets) as mix:
        assert mix.place_after(mix.place_at(0), len(whole)) is None


@pytest.mark.parametrize("stop", ["first", "all"])
@pytest.mark.parametrize("nested", [False, True])
def test_counted_places_of_a_mix_are_those_of_its_deliveries(sets, stop, nested):
    # Also of loaders that are through before the mix is: they go on with their next pass.
    def made():
        options = {"batch_size": 4, "shuffle": True, "rank": 0, "world": 1}
        a, b, c = (ds.loader(**options) for ds in sets)
        inner = penstock.mix([(a, 1), (b, 2)], stop=stop) if nested else a
        return penstock.mix([(inner, 1), (c, 1)], stop="all")

    with made() as mix:
        stream, start = mix.stream(), mix.place_at(0)
        places = []
        while (delivery := stream.take()) is not None:
            places.append(delivery.place)
        for number, place in enumerate(places[:-1], 1):
            assert mix.state_of(mix.place_after(start, number)) == mix.state_of(place), number
        assert mix.place_after(start, len(places)) is None
        assert mix.state_of(mix.pass_end(start)) == mix.state_of(places[-1])


def test_a_stopped_stream_of_a_mix_begins_no_other_loader(sets):
    for seed in range(8):  # some of them draw two loaders one after the other
        a, b, _ = (ds.loader(batch_size=4, rank=0, world=1) for ds in sets)
        with penstock.mix([(a, 1), (b, 1)], seed=seed) as mix:
            stream = mix.stream()
            stream.take()
            stream.stop()
            with pytest.raises(LoaderClosed):
                stream.take()


def test_what_is_prefetched_of_a_mix_is_not_received(sets):
    with of_mixes(sets) as mix:
        whole = ids(mix)
    with of_mixes(sets) as mix:
        stream = mix.stream().map(lambda delivery: delivery.batch["id"].tolist(), ahead=3)
        first = stream.take()
        while stream.ready() < 3:
            pass
        stream.received(first.place)
        state = mix.state_dict()
    with of_mixes(sets) as mix:
        mix.load_state_dict(state)
        assert ids(mix) == whole[1:]
