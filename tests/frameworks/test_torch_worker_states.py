"""Workers in turn give the native pass, whatever the options, and each state is that of a native place."""

from __future__ import annotations

import itertools
import json

import pytest

torch = pytest.importorskip("torch")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from penstock.torch.worker_states import WorkerPasses, consumer_state, native_part  # noqa: E402
from tests.depth import depth  # noqa: E402
from tests.engine.make import dataset  # noqa: E402

FILES = [[5, 1, 8], [3], [2, 13, 1, 4], [7, 7]]
"""51 rows."""


@st.composite
def cases(draw):
    """Options of a loader, a number of workers and a number of batches to go before stopping."""
    world = draw(st.integers(1, 3))
    options = {
        "batch_size": draw(st.sampled_from([1, 4, 7, 20, 60])),
        "shuffle": draw(st.sampled_from([False, "groups", True])),
        "epochs": draw(st.sampled_from([1, 2, 3])),
        "drop_last": draw(st.booleans()),
        "remainder": draw(st.sampled_from(["drop", "pad", "uneven"])),
        "rank": draw(st.integers(0, world - 1)),
        "world": world,
        "pool": "serial",
    }
    if options["shuffle"] is True:
        options |= {"lanes": draw(st.integers(1, 5)), "shuffle_bytes": 500}
    return options, draw(st.integers(1, 5)), draw(st.integers(0, 30)), draw(st.integers(0, 30))


def ids(batch):
    return batch["id"].tolist()


class Workers:
    """Workers asked in turn, as a DataLoader does."""

    def __init__(self, ds, options, count, at=None, states=None):
        self.passes = []
        for index in range(count):
            native = ds.loader(**options)
            if at is not None:
                native.load_state_dict(at)
            self.passes.append(WorkerPasses(native, index, count))
        for passes, state in zip(self.passes, states or [], strict=False):
            passes.load_state_dict(state)

    def batches(self, first=0):
        """The batches of a pass, beginning with one of the workers."""
        order = [*range(first, len(self.passes)), *range(first)]
        running = [(self.passes[i], iter(self.passes[i].begin() or ())) for i in order]
        while running:
            for one in list(running):
                batch = next(one[1], None)
                if batch is None:
                    running.remove(one)
                    continue
                one[0].delivered()
                yield ids(batch)

    def states(self):
        return json.loads(json.dumps([passes.state_dict() for passes in self.passes]))


@settings(max_examples=depth(40, 400), deadline=None)
@given(case=cases())
def test_workers_in_turn_give_the_native_passes_and_resume_wherever_they_stop(case):
    options, count, before, stop = case
    with dataset(FILES) as ds:
        with ds.loader(**options) as native:
            whole = [ids(batch) for batch in native]
            following = [ids(batch) for batch in native]
        begin = min(before, max(0, len(whole) - 1))
        with ds.loader(**options) as native:
            list(itertools.islice(native, begin)) if begin else None
            at = native.state_dict()
        want = whole[begin:]
        workers = Workers(ds, options, count, at)
        stop = min(stop, len(want))
        got = list(itertools.islice(workers.batches(), stop))
        states = workers.states()
        again = Workers(ds, options, count, states=states)
        assert again.states() == states
        assert got + list(again.batches(first=stop % count)) == want
        assert list(again.batches()) == following
        if stop < len(want):
            with ds.loader(**options) as native:
                native.load_state_dict(consumer_state({"all": dict(enumerate(states))}))
                assert [ids(batch) for batch in native] == want[stop:]


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_worker_with_nothing_left_says_so(shuffle):
    with dataset(FILES) as ds:
        workers = Workers(ds, {"batch_size": 20, "shuffle": shuffle}, 2)
        assert len(list(workers.batches())) == 3
        over = [state["worker"]["over"] for state in workers.states()]
        assert over == [True, True]
        with ds.loader(batch_size=20, shuffle=shuffle) as native:
            list(native)
            assert native.state_dict() == native_part(workers.states()[0])


def test_an_endless_pass_never_ends_for_a_worker():
    with dataset(FILES) as ds:
        options = {"batch_size": 20, "shuffle": True, "epochs": None}
        with ds.loader(**options) as native:
            want = [ids(batch) for batch in itertools.islice(native, 10)]
        assert list(itertools.islice(Workers(ds, options, 3).batches(), 10)) == want


@pytest.mark.parametrize("remainder", ["drop", "uneven"])
def test_two_workers_that_stay_stream_every_second_batch_over_several_epochs(remainder):
    """Both give whole passes of three epochs, one after the other, and every state resumes all of what is left."""
    options = {"batch_size": 9, "shuffle": True, "epochs": 3, "remainder": remainder, "rank": 1, "world": 2}
    with dataset(FILES) as ds:
        with ds.loader(**options) as native:
            want = [[ids(batch) for batch in native] for _ in range(4)]
        assert len(want[0]) == 9, "an odd number in every epoch"
        workers = Workers(ds, options, 2)
        for number in range(3):
            got = []
            for batch in workers.batches():
                got.append(batch)
                states = workers.states()
                again = Workers(ds, options, 2, states=states)
                assert got + list(again.batches(first=len(got) % 2)) == want[number]
                assert list(again.batches()) == want[number + 1]
            assert got == want[number]
