"""`WeightedSamplingReader`: Petastorm's rules on real readers, with a seed, a length, a reset and a state."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import StateMismatch
from penstock.petastorm.ngram import NGram
from penstock.petastorm.reader import make_batch_reader, make_reader
from penstock.petastorm.weighted_sampling_reader import WeightedSamplingReader
from penstock.plan.draws import Draws
from penstock.testing import assert_resumes_exactly, make_parquet
from tests.depth import depth

SIZES = (23, 31, 12)


def url(folder, start, size, **more):
    def columns(rows):
        return {"id": pa.array(rows + start), "half": pa.array(rows / 2), **more}

    return make_parquet(folder, [(5, size - 5)], columns=columns).as_uri()


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weighted")
    return [url(folder / str(i), 1000 * i, size) for i, size in enumerate(SIZES)]


def readers(urls, factory=make_reader, **options):
    return [factory(one, **{"seed": 1, "workers_count": 1} | options) for one in urls]


def make(urls, probabilities=(0.5, 0.3, 0.2), seed=7, **options):
    return WeightedSamplingReader(readers(urls, **options), probabilities[: len(urls)], seed=seed)


def ids(items):
    return [int(item.id) for item in items]


def alone(url, **options):
    with make_reader(url, seed=1, **options) as reader:
        return ids(reader)


def sources(items):
    return [number // 1000 for number in ids(items)]


# -- what comes -------------------------------------------------------------------------------------------------------


def test_each_item_is_the_next_one_of_the_reader_drawn(urls):
    with make(urls) as reader:
        got = ids(reader)
    for index, one in enumerate(urls):
        mine = [number for number in got if number // 1000 == index]
        assert mine == alone(one)[: len(mine)]


def test_it_ends_when_an_exhausted_reader_is_drawn(urls):
    with make(urls) as reader:
        assert not reader.last_row_consumed
        got = sources(reader)
        assert reader.last_row_consumed
    drawn = Draws((0.5, 0.3, 0.2), 7).block(0, pass_number=0, among=[True] * 3).tolist()
    assert got == drawn[: len(got)]
    last = drawn[len(got)]
    assert got.count(last) == SIZES[last]


def test_batches_are_mixed_too(urls):
    with make(urls, factory=make_batch_reader) as reader:
        assert reader.batched_output
        assert reader.is_batched_reader
        batches = list(reader)
        assert len(batches) > 1
        assert all(isinstance(batch.id, np.ndarray) for batch in batches)


def test_windows_are_mixed_too(urls):
    ngram = NGram({0: ["id", "half"], 1: ["id"]}, 1, "id")
    with make(urls, schema_fields=ngram) as reader:
        assert sorted(reader.ngram.fields) == [0, 1]
        window = next(reader)
        assert window[1].id == window[0].id + 1
        assert len(list(reader)) == len(list(make(urls, schema_fields=ngram))) - 1


def test_the_same_seed_gives_the_same_items_and_the_global_generator_is_left_alone(urls):
    np.random.seed(3)  # noqa: NPY002 -- what Petastorm drew from
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    with make(urls) as one, make(urls) as two, make(urls, seed=8) as three, make(urls, seed=None) as four:
        first = ids(one)
        assert first == ids(two)
        assert first != ids(three)
        assert four.state_dict()["seed"] != make(urls, seed=None).state_dict()["seed"]
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_probabilities_are_normalised_and_zero_is_never_drawn(urls):
    with make(urls, (5, 3, 2)) as one, make(urls, (0.5, 0.3, 0.2)) as two, make(urls, (1, 0, 1)) as three:
        assert ids(one) == ids(two)
        assert 1 not in sources(three)


def test_shares_follow_the_probabilities(urls):
    with make(urls, (0.6, 0.1, 0.3), num_epochs=None) as reader:
        got = sources(itertools.islice(reader, 3000))
    assert np.allclose([got.count(index) / 3000 for index in range(3)], (0.6, 0.1, 0.3), atol=0.04)


def test_fields_come_in_the_order_of_the_first_reader(urls, tmp_path):
    other = make_parquet(
        tmp_path / "turned", [(4,)], columns=lambda r: {"half": pa.array(r / 4), "id": pa.array(r + 5000)}
    )
    both = [make_reader(urls[0], seed=1), make_reader(other.as_uri(), seed=1)]
    assert list(both[0].schema.fields) != list(both[1].schema.fields)
    with WeightedSamplingReader(both, [1, 1], seed=0) as reader:
        rows = list(reader)
    assert {row._fields for row in rows} == {tuple(reader.schema.fields)}
    assert {float(row.half) for row in rows if row.id >= 5000} <= {0, 0.25, 0.5, 0.75}


# -- length, reset ----------------------------------------------------------------------------------------------------


def test_the_length_is_exact_at_every_item(urls):
    with make(urls) as reader:
        total = len(reader)
        assert [len(reader) for _ in reader] == [*range(total - 1, -1, -1)]
        assert len(reader) == 0
        reader.reset()
        assert len(reader) == len(list(reader))


def test_endless_readers_have_no_length(urls):
    with make(urls, num_epochs=None) as reader:
        assert reader.num_epochs is None
        with pytest.raises(TypeError, match="num_epochs=None"):
            len(reader)


def test_it_stays_ended_until_reset(urls):
    with make(urls) as reader:
        first = ids(reader)
        assert list(reader) == []
        with pytest.raises(StopIteration):
            reader.next()
        reader.reset()
        assert not reader.last_row_consumed
        second = ids(reader)
    for index in range(3):
        mine = [number for number in second if number // 1000 == index]
        epochs = alone(urls[index], num_epochs=2)
        assert mine == epochs[SIZES[index] :][: len(mine)]
    assert [number // 1000 for number in second] != [number // 1000 for number in first]


def test_reset_in_mid_pass_starts_the_next_one(urls):
    with make(urls) as one, make(urls) as two:
        list(itertools.islice(one, 15))
        one.reset()
        list(two)
        two.reset()
        assert ids(one) == ids(two)


def test_a_for_loop_after_break_goes_on(urls):
    with make(urls) as reader, make(urls) as whole:
        got = ids(itertools.islice(reader, 5))
        got += ids(reader)
        assert got == ids(whole)


def test_an_endless_reader_goes_on_after_reset(urls):
    both = [make_reader(urls[0], seed=1), make_reader(urls[1], seed=1, num_epochs=None)]
    with WeightedSamplingReader(both, [1, 1], seed=5) as reader:
        got = ids(reader)
        reader.reset()
        got += ids(reader)
    endless = [number for number in got if number >= 1000]
    assert endless == alone(urls[1], num_epochs=4)[: len(endless)]


# -- state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", [make_reader, make_batch_reader])
def test_resumes_exactly(urls, factory):
    tried = assert_resumes_exactly(
        lambda: make(urls, factory=factory, reader_pool_type="dummy"), passes=1, every=depth(9, 1)
    )
    assert tried > 1


def test_a_state_taken_after_the_last_item_is_at_the_end(urls):
    with make(urls) as reader:
        for _ in range(len(reader)):
            next(reader)
        state = json.loads(json.dumps(reader.state_dict()))
        assert list(reader) == []
        reader.reset()
        second = ids(reader)
    with make(urls) as reader:
        reader.load_state_dict(state)
        assert (len(reader), list(reader), reader.last_row_consumed) == (0, [], True)
    assert second


def test_a_drawn_seed_is_taken_from_the_state(urls):
    with make(urls, seed=None) as reader:
        list(itertools.islice(reader, 9))
        state = reader.state_dict()
        rest = ids(reader)
    with make(urls, seed=None) as reader:
        reader.load_state_dict(state)
        assert ids(reader) == rest
        assert reader.state_dict()["seed"] == state["seed"]


def test_a_state_of_something_else_is_refused_and_changes_nothing(urls):
    with make(urls) as reader, make(urls[::-1]) as turned, make(urls[:2]) as fewer, make(urls, seed=8) as seeded:
        list(itertools.islice(reader, 9))
        before = reader.state_dict()
        for other, match in [
            (turned, "reader 0: "),
            (fewer, "2 readers, there are 3"),
            (seeded, "seed of the state is 8"),
        ]:
            with pytest.raises(StateMismatch, match=match):
                reader.load_state_dict(other.state_dict())
            assert reader.state_dict() == before
        with pytest.raises(StateMismatch, match="readers"):
            reader.load_state_dict("nothing")


# -- the surface of a reader ------------------------------------------------------------------------------------------


def test_it_looks_like_a_reader(urls):
    with make(urls) as reader:
        assert iter(reader) is reader
        assert list(reader.schema.fields) == ["id", "half"]
        assert reader.ngram is None
        assert (reader.batched_output, reader.num_epochs, reader.stopped) == (False, 1, False)
        next(reader)
        assert reader.diagnostics["draws"] == 1
        assert [one["rows"] > 0 for one in reader.diagnostics["readers"]].count(True) == 1
    assert reader.stopped
    with pytest.raises(RuntimeError, match="stopped"):
        next(reader)


def test_leaving_stops_every_reader_also_where_one_fails(urls):
    three = readers(urls)

    def fail():
        raise OSError("no good")

    three[1].stop = fail
    with pytest.raises(OSError, match="no good"), WeightedSamplingReader(three, [1, 1, 1], seed=0):
        pass
    assert [one.stopped for one in three] == [True, False, True]
    del three[1].stop
    three[1].stop()


class Plain:
    """A reader of others: no length, no state, no diagnostics; what Petastorm's own has."""

    batched_output, ngram, last_row_consumed = False, None, False

    def __init__(self, schema, rows):
        self.schema, self._all, self._rows = schema, rows, iter(rows)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._rows)

    def reset(self):
        self._rows = iter(self._all)

    def stop(self):
        pass

    join = stop


def test_readers_without_a_length_are_taken_as_well(urls):
    with make_reader(urls[0], seed=1) as one, make_reader(urls[1], seed=1) as two:
        plain = [Plain(one.schema, list(one)), Plain(two.schema, list(two))]
    with WeightedSamplingReader(plain, [0.5, 0.3], seed=7) as reader, make(urls[:2]) as real:
        with pytest.raises(TypeError, match="no length"):
            len(reader)
        assert ids(reader) == ids(real)
        assert reader.last_row_consumed
        assert list(reader) == []
        reader.reset()
        real.reset()
        assert [number // 1000 for number in ids(reader)] == [number // 1000 for number in ids(real)]


# -- mistakes ---------------------------------------------------------------------------------------------------------


def test_mistakes_are_value_errors_that_say_what(urls, tmp_path):
    one, two = readers(urls[:2])
    with pytest.raises(ValueError, match="two readers or more; got 1"):
        WeightedSamplingReader([one], [1])
    with pytest.raises(ValueError, match="2 readers and 3 probabilities"):
        WeightedSamplingReader([one, two], [1, 1, 1])
    with pytest.raises(ValueError, match="given twice"):
        WeightedSamplingReader([one, one], [1, 1])
    for wrong in ([1, -1], [0, 0], [1, float("nan")], ["a", 1]):
        with pytest.raises(ValueError, match="weights must be"):
            WeightedSamplingReader([one, two], wrong)
    with pytest.raises(ValueError, match="seed must be"):
        WeightedSamplingReader([one, two], [1, 1], seed=-1)
    with pytest.raises(ValueError, match="False for reader 0, True for reader 1"):
        WeightedSamplingReader([one, make_batch_reader(urls[1])], [1, 1])
    with pytest.raises(ValueError, match=r"only reader 0 has \['half'\], only reader 1 has \[\]"):
        WeightedSamplingReader([one, make_reader(urls[1], schema_fields=["id"])], [1, 1])
    windows = make_reader(urls[1], schema_fields=NGram({0: ["id", "half"], 1: ["id"]}, 1, "id"))
    with pytest.raises(ValueError, match="the same ngram"):
        WeightedSamplingReader([one, windows], [1, 1])
