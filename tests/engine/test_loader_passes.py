"""Iterators of one loader: who ends whom and says so, several threads on one of them, and errors on the way out."""

from __future__ import annotations

import gc
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import LoaderClosed, PenstockWarning, PlanError, users_level
from tests.engine.make import dataset

FILES = [[5, 1, 8], [3], [2, 13, 1, 4], [7, 7]]
"""51 rows."""


@pytest.fixture
def loader():
    with dataset(FILES) as ds, ds.loader(batch_size=5) as made:
        yield made


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def test_a_second_iterator_ends_the_first_which_says_so(loader):
    outer = iter(loader)
    next(outer)
    assert len(ids(loader)) == 11
    with pytest.raises(LoaderClosed, match="another one was made of the same loader"):
        next(outer)


def test_nested_loops_over_one_loader_are_an_error_and_not_a_short_epoch(loader):
    def nested():
        for _ in loader:
            for _ in loader:
                break

    with pytest.raises(LoaderClosed, match="make a loader for each"):
        nested()


def test_a_state_loaded_in_the_loop_ends_it_aloud(loader):
    running = iter(loader)
    next(running)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(LoaderClosed, match="a state was loaded"):
        next(running)
    assert len(ids(loader)) == 10


def test_break_and_what_nobody_holds_any_more_stay_silent(loader):
    for _ in range(3):
        for _ in loader:
            break
        iter(loader)
        gc.collect()
    assert len(ids(loader)) == 11


def test_an_iterator_at_its_end_stays_there(loader):
    first = iter(loader)
    assert len(ids(first)) == 11
    second = iter(loader)
    assert next(first, None) is None
    assert len(ids(second)) == 11
    loader.close()
    assert next(second, None) is None


def test_what_fails_on_the_way_out_was_not_delivered(loader):
    def fails(delivery):
        if delivery.origin.first:
            raise PlanError("no")
        return delivery.num_rows

    running = iter(loader.stream().map(fails))
    assert next(running) == 5
    state = loader.state_dict()
    with pytest.raises(PlanError, match="no"):
        next(running)
    assert loader.state_dict() == state
    with pytest.raises(LoaderClosed, match="has failed"):
        next(running)
    loader.load_state_dict(state)
    assert ids(loader)[0] == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("epochs", [1, 2, None])
def test_the_pass_number_moves_on_with_the_last_batch_as_the_state_does(epochs):
    with dataset(FILES) as ds, ds.loader(batch_size=5, epochs=epochs, shuffle=True) as loader:
        length, numbers = 11 * (epochs or 1), []
        running = iter(loader)
        for _ in range(length):
            numbers.append(loader.pass_number)
            next(running)
        assert numbers == [0] * length
        assert loader.pass_number == 1
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (epochs or 1, 0)
        with ds.loader(batch_size=3, epochs=epochs, shuffle=True) as other:
            other.load_state_dict(state)
            assert other.pass_number == 1
        if epochs is not None:
            assert next(running, None) is None
            assert loader.pass_number == 1


def test_break_leaves_the_pass_number_and_the_next_loop_raises_it(loader):
    for _ in loader:
        break
    assert loader.pass_number == 0
    running = iter(loader)
    assert loader.pass_number == 1
    next(running)
    assert loader.pass_number == 1


def test_a_loop_until_a_number_of_passes_ends_with_every_remainder_and_also_without_rows():
    for rows, world in (([[1]], 3), ([[7]], 3), ([[0]], 1), ([[5, 2]], 2)):
        with dataset(rows) as ds:
            for rank in range(world):
                for remainder in ("drop", "pad", "uneven"):
                    with ds.loader(batch_size=2, rank=rank, world=world, remainder=remainder) as loader:
                        loops = 0
                        while loader.pass_number < 3:
                            ids(loader)
                            loops += 1
                            assert loops == loader.pass_number


@pytest.mark.parametrize("workers", [1, 3])
def test_several_threads_get_every_batch_once_and_all_of_them_the_end(workers):
    with dataset(FILES) as ds, ds.loader(batch_size=2, workers=workers, shuffle=True) as loader:
        for _ in range(20):
            running, start = iter(loader), threading.Barrier(4)

            def drain(running=running, start=start):
                start.wait()
                return [row for batch in running for row in batch["id"].tolist()]

            with ThreadPoolExecutor(4) as pool:
                got = [task.result() for task in [pool.submit(drain) for _ in range(4)]]
            assert sorted(row for rows in got for row in rows) == list(range(51))


def test_a_warning_names_the_line_of_the_user():
    with dataset(FILES) as ds, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ds.loader(batch_size=4, shuffle=True, shuffle_bytes=100).close()
    assert {one.filename for one in seen if issubclass(one.category, PenstockWarning)} == {__file__}
    assert users_level() == 1
