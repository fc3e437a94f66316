"""Places given back to a loader or mix: those of another one, of the future or no places at all move nothing."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import penstock
from penstock.errors import PlanError, StateMismatch
from penstock.testing import MemorySource
from tests.engine.make import dataset

FILES = [[5, 1, 8], [3], [2, 13, 1, 4], [7, 7]]
"""51 rows."""


@pytest.fixture
def ds():
    with dataset(FILES) as made:
        yield made


def make(ds, **options):
    return ds.loader(**{"batch_size": 5, "shuffle": True, "seed": 1, "rank": 0, "world": 1} | options)


def make_mix(ds, *, seed=1, loaders=2):
    return penstock.mix([(make(ds, seed=number), 1.0) for number in range(loaders)], seed=seed, stop="all")


def place_in(loader, batches=2):
    return loader.place_after(loader.place_at(0), batches)


def refuses(loader, place, error, match):
    """Whether every way in raises and leaves state and stream as they were."""
    stream = loader.stream()
    first, second = stream.take(), stream.take()
    stream.received(first.place)
    before = loader.state_dict()
    for call in (stream.received, loader.go_to, loader.state_of, lambda place: loader.stream(start=place)):
        with pytest.raises(error, match=match):
            call(place)
        assert loader.state_dict() == before
    stream.received(second.place)
    assert loader.state_dict() == loader.state_of(second.place) != before


OTHERS = {"seed": {"seed": 2}, "shuffle": {"shuffle": False}, "epochs": {"epochs": 3}}


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
def test_a_place_of_a_loader_with_other_options_is_refused(ds, options):
    refuses(make(ds), place_in(make(ds, **options)), StateMismatch, "belongs to another loader")


def test_a_place_of_other_rows_is_refused(ds):
    refuses(make(ds), place_in(make(ds.where([("id", "<", 30)]))), StateMismatch, "belongs to another loader")
    with dataset([[5, 46]]) as other:
        refuses(make(ds), place_in(make(other)), StateMismatch, "belongs to another loader")


@pytest.mark.parametrize("value", ["x", 3, {"version": 1}, (1, 2)], ids=repr)
def test_what_is_no_place_is_refused(ds, value):
    refuses(make(ds), value, TypeError, "place of a loader is wanted.*got")
    refuses(make_mix(ds), value, TypeError, "place of a mix is wanted.*got")


def test_a_delivery_instead_of_its_place_is_refused_with_the_remedy(ds):
    refuses(make(ds), make(ds).stream().take(), TypeError, "pass delivery.place")


def test_places_of_mixes_and_loaders_do_not_go_together(ds):
    loader, mix = make(ds), make_mix(ds)
    refuses(loader, place_in(mix), TypeError, "place of a loader is wanted.*got MixPlace")
    refuses(mix, place_in(loader), TypeError, "place of a mix is wanted.*got Place")
    refuses(make_mix(ds, seed=2), place_in(mix), StateMismatch, "belongs to a mix of 2 loaders with seed 1")
    refuses(make_mix(ds, loaders=3), place_in(mix), StateMismatch, "belongs to a mix of 2 loaders")


@pytest.mark.parametrize("maker", [make, make_mix])
def test_a_place_that_was_not_taken_yet_is_not_received(ds, maker):
    loader = maker(ds)
    stream, start = loader.stream(), loader.state_dict()
    taken = stream.take()
    with pytest.raises(StateMismatch, match="lies beyond"):
        stream.received(place_in(loader, 3))
    assert loader.state_dict() == start
    stream.received(place_in(loader, 1))
    assert loader.state_dict() == loader.state_of(taken.place)


@pytest.mark.parametrize("maker", [make, make_mix])
@pytest.mark.parametrize("shuffle", [True, False])
def test_pickled_places_are_equal_and_acknowledge_as_the_originals_do(ds, maker, shuffle):
    loader = maker(ds) if maker is make_mix else make(ds, shuffle=shuffle)
    stream = loader.stream()
    places = [delivery.place for delivery in iter(stream.take, None)]
    copies = [pickle.loads(pickle.dumps(place)) for place in places]
    assert copies == places
    assert len(set(copies)) == len(places)
    for place, copy in zip(places, copies, strict=True):
        stream.received(copy)
        assert loader.state_dict() == loader.state_of(place)
        stream.received(copies[0])  # older: ignored
        assert loader.state_dict() == loader.state_of(place)


def test_a_place_of_an_earlier_stream_is_ordered_among_those_of_a_later_one(ds):
    loader = make(ds)
    stream = loader.stream()
    early = [stream.take().place for _ in range(4)]
    later = loader.stream(start=early[1])
    third = later.take()
    later.received(third.place)
    later.received(early[0])
    assert loader.state_dict() == loader.state_of(third.place)
    with pytest.raises(StateMismatch, match="lies beyond"):
        later.received(early[3])


# -- wrong arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "every", [(3, 3), (-1, 3), (0, 0), 5, (0,), ("a", 2), (0, 2, 3), (0.5, 2), (True, 2)], ids=repr
)
@pytest.mark.parametrize("maker", [make, make_mix])
def test_every_takes_a_first_below_the_step(ds, maker, every):
    loader = maker(ds)
    stream = loader.stream()
    with pytest.raises(PlanError, match="every="):
        loader.stream(every=every)
    assert stream.take() is not None  # the stream before it goes on


def test_a_strided_stream_has_its_own_length_and_the_places_of_the_whole_pass(ds):
    loader = make(ds)
    stream = loader.stream(every=(1, 3))
    assert (len(loader), stream.length, loader.batches_left) == (4, 4, 11)
    stream.received(stream.take().place)
    assert (len(loader), loader.batches_left, loader.state_dict()["position"]) == (4, 9, 10)


@pytest.mark.parametrize("number", [-1, 1.5, "x", None, True], ids=repr)
@pytest.mark.parametrize("maker", [make, make_mix])
def test_numbers_of_passes_and_batches_are_checked(ds, maker, number):
    loader = maker(ds)
    with pytest.raises(PlanError, match="pass_number must be"):
        loader.place_at(number)
    with pytest.raises(PlanError, match="batches must be"):
        loader.place_after(loader.place_at(0), number)
    with pytest.raises(TypeError, match="is wanted"):
        loader.place_after(number, 1)
    with pytest.raises(PlanError, match="steps must be"):
        loader.stream().take().after(number)


def test_a_delivery_has_no_more_steps_than_its_own(ds):
    delivery = make(ds).stream().take()
    assert delivery.after(1) == delivery.place
    with pytest.raises(PlanError, match="has 1 step; got 5"):
        delivery.after(5)


@pytest.mark.parametrize("ahead", [-1, 1.5, "x", None], ids=repr)
def test_map_checks_how_far_ahead_and_what_it_calls(ds, ahead):
    loader = make(ds)
    with pytest.raises(PlanError, match="ahead must be"):
        loader.stream().map(lambda delivery: delivery.batch, ahead=ahead)
    with pytest.raises(TypeError, match="takes a function of a delivery; got 3"):
        loader.stream().map(3)


@pytest.mark.parametrize("value", ["no", "False", None, 2], ids=repr)
def test_drop_last_is_true_or_false(ds, value):
    with pytest.raises(PlanError, match="drop_last must be True or False; got"):
        make(ds, drop_last=value)
    assert len(make(ds, drop_last=1)) == len(make(ds, drop_last=True)) == 10


def test_rows_that_a_late_filter_leaves_out_do_not_change_the_steps_of_a_batch():
    rows = penstock.open(MemorySource({"id": np.arange(40)}, [20, 20]))
    late = rows.where([("id", ">", 7)], exact=False)
    stream = late.loader(batch_size=10, rank=0, world=1).stream()
    delivery = stream.take()
    assert delivery.batch["id"].tolist() == [8, 9]
    assert delivery.after(1) == delivery.place
    stream.stop()


def test_there_is_no_place_inside_a_delivery_of_a_mix():
    rows = penstock.open(MemorySource({"id": np.arange(40)}, [20, 20]))
    with penstock.mix([(rows.loader(batch_size=10, rank=0, world=1), 1)]) as mix:
        delivery = mix.stream().take()
        assert delivery.after(1) == delivery.place
        with pytest.raises(PlanError, match="one step"):
            delivery.after(0)
