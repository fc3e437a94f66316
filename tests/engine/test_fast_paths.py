"""Each fast path of the engine gives what its plain twin gives."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import NdarrayCodec
from penstock.engine import build, gather, inputs, row_arena
from penstock.engine.gather import BlockPool
from penstock.engine.inputs import columns_of
from penstock.engine.picks import Picks
from penstock.schema.arrow import infer_unischema
from penstock.testing import assert_same, make_parquet, mixed
from tests.depth import depth
from tests.engine.make import dataset, ids, tightest

few = settings(max_examples=depth(15, 300), deadline=None)


def narrow(rows):
    """Six narrow columns, with and without nulls and rows of several values, and a text."""
    some = rows.tolist()
    return {
        "id": pa.array(rows),
        "byte": pa.array([i % 200 for i in some], pa.uint8()),
        "maybe": pa.array([None if i % 3 == 1 else i / 4 for i in some], pa.float64()),
        "flag": pa.array([i % 2 == 0 for i in some], pa.bool_()),
        "day": pa.array([None if i % 5 == 0 else i for i in some], pa.date32()),
        "pair": pa.array([[i, None if i % 7 == 0 else -i] for i in some], pa.list_(pa.int16(), 2)),
        "text": pa.array([None if i % 4 == 1 else f"row {i}" for i in some], pa.string()),
    }


def batches_with(ds, changes, **options):
    """All batches of a loader, with some names of the engine replaced."""
    with pytest.MonkeyPatch.context() as patch:
        for where, name, value in changes:
            patch.setattr(where, name, value)
        with ds.loader(**options) as made:
            return list(made), made.stats()


NO_ARENA = [(inputs, "make_records", lambda *args, **more: None)]
ALWAYS_ARENA = [(row_arena, "_LEAST_COLUMNS", 1), (row_arena, "_MOST_WASTE", 1e9)]


@st.composite
def options(draw, ds):
    shuffle = draw(st.sampled_from([False, "groups", True, True]))
    found = {
        "batch_size": draw(st.integers(1, 9)),
        "shuffle": shuffle,
        "epochs": draw(st.integers(1, 3)),
        "workers": draw(st.sampled_from([1, 2, 5])),
        "pool": draw(st.sampled_from(["thread", "serial"])),
        "remainder": draw(st.sampled_from(["drop", "pad", "uneven"])),
    }
    if shuffle is True:
        found |= {
            "lanes": draw(st.sampled_from([1, 2, 3, 8])),
            "shuffle_bytes": draw(st.sampled_from([1, 600, 1 << 30])),
        }
    if draw(st.booleans()):
        found["memory_bytes"] = tightest(ds, **found) + draw(st.sampled_from([0, 500, 3000]))
    return found


groups = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=3)


@few
@given(data=st.data())
def test_an_arena_changes_nothing(data):
    with dataset(data.draw(groups), columns=narrow) as ds:
        how = data.draw(options(ds))
        plain, _ = batches_with(ds, NO_ARENA, **how)
        fast, _ = batches_with(ds, ALWAYS_ARENA, **how)
        assert_same(fast, plain)


def test_records_are_used_where_they_should_be(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[10] * 6], columns=narrow))
    filled = []

    def fill(self, first, parts):
        filled.append(first)
        return plain(self, first, parts)

    plain = row_arena.Records._fill
    batches, _ = batches_with(ds, [(row_arena.Records, "_fill", fill)], batch_size=7, shuffle=True, epochs=2)
    assert sorted(filled) == [0, 10, 20, 30, 40, 50]
    assert sorted(ids(batches)) == sorted([*range(60)] * 2)


@pytest.mark.parametrize("shuffle", [False, "groups"])
def test_kept_chunks_are_the_consumers_own_in_every_epoch(tmp_path, shuffle):
    ds = penstock.open(make_parquet(tmp_path, [[10] * 6], columns=narrow))
    seen = []
    with ds.loader(batch_size=7, shuffle=shuffle, epochs=3) as made:
        for batch in made:
            seen += batch["id"].tolist()
            for values in batch.values():
                if isinstance(values, np.ndarray):
                    assert values.flags.writeable
            batch["id"][:] = -1  # what the user does to a batch never comes back
        assert made.stats()["chunks_read"] == 6
    assert sorted(seen) == sorted([*range(60)] * 3)


def test_a_full_shelf_keeps_what_it_has_and_the_rest_is_read_again(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[10] * 6], columns=narrow))

    class Small(row_arena.Shelf):
        def __init__(self, limit_bytes, slack, pool):
            super().__init__(800, slack, pool)

    how = {"batch_size": 7, "epochs": 3, "workers": 2}
    plain, _ = batches_with(ds, [(inputs, "_RETAIN_SHARE", 0.0)], **how)
    fast, stats = batches_with(ds, [(inputs, "Shelf", Small)], **how)
    assert_same(fast, plain)
    assert 6 < stats["chunks_read"] < 18


def test_slots_are_used_again_and_never_twice_at_once(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[10] * 30], columns=narrow))
    how = {"batch_size": 4, "shuffle": True, "lanes": 2, "shuffle_bytes": 1, "epochs": 4}
    how["memory_bytes"] = tightest(ds, **how)
    plain, _ = batches_with(ds, NO_ARENA, **how)
    for workers in (1, 2, 5):
        fast, stats = batches_with(ds, ALWAYS_ARENA, workers=workers, **how)
        assert_same(fast, plain)
        assert stats["chunks_read"] > 30  # chunks have left and come back


@few
@given(data=st.data())
def test_gathering_several_batches_at_once_changes_nothing(data):
    with dataset(data.draw(groups), columns=narrow) as whole:
        ds = whole.select(["id", "byte", "maybe", "flag", "day", "pair"])  # a text is gathered batch by batch
        how = data.draw(options(ds))
        plain, _ = batches_with(ds, [(inputs, "_SPAN_BATCHES", 1)], **how)
        fast, _ = batches_with(ds, [(inputs, "_SPAN_BATCHES", 64)], **how)
        assert_same(fast, plain)


@few
@given(data=st.data())
def test_finished_columns_are_cut_into_the_batches_that_finishing_gives(data):
    with dataset(data.draw(groups), columns=narrow) as whole:
        ds = whole.select(["id", "byte", "flag"])  # nothing to decode, and no nulls
        how = data.draw(options(ds))
        cut = []

        def slices(self, span, columns):
            cut.append(span)
            return fast_path(self, span, columns)

        fast_path = build.Builder._slices
        fast, _ = batches_with(ds, [(build.Builder, "_slices", slices)], **how)
        plain, _ = batches_with(ds, [(build.Builder, "_ready", lambda *args: None)], **how)
        assert_same(fast, plain)
        assert bool(cut) == bool(fast and "_valid" not in fast[0])


def test_several_batches_are_gathered_at_once(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[100]]))
    calls = []

    def counted(*args, **more):
        calls.append(1)
        return gather.gather(*args, **more)

    batches, _ = batches_with(
        ds, [(inputs, "_SPAN_BATCHES", 64), (penstock.engine.build, "gather", counted)], batch_size=2, epochs=2
    )
    assert ids(batches) == [*range(100)] * 2
    assert len(calls) < 25


def test_batches_inside_one_chunk_are_views_whatever_lies_in_their_span(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[10, 10, 10]]))
    batches, _ = batches_with(ds, [(inputs, "_SPAN_BATCHES", 64)], batch_size=4)
    assert ids(batches) == [*range(30)]
    first, across, second, *_ = (batch["id"] for batch in batches[1:])
    assert np.shares_memory(first, batches[0]["id"].base)
    assert not np.shares_memory(across, first.base)
    assert not np.shares_memory(second, first.base)


@few
@given(data=st.data())
def test_keeping_chunks_for_the_next_epoch_changes_nothing(data):
    with dataset(data.draw(groups), columns=narrow) as ds:
        how = {"epochs": 3, **data.draw(options(ds))}
        plain, _ = batches_with(ds, [(inputs, "_RETAIN_SHARE", 0.0)], **how)
        fast, _ = batches_with(ds, [(inputs, "_RETAIN_SHARE", 0.6)], **how)
        assert_same(fast, plain)


@pytest.mark.parametrize("shuffle", [False, "groups", True])
def test_what_fits_is_read_once(tmp_path, shuffle):
    ds = penstock.open(make_parquet(tmp_path, columns=narrow))
    _, stats = batches_with(ds, [], batch_size=6, shuffle=shuffle, epochs=3)
    assert stats["chunks_read"] == 10
    if shuffle is not True:
        _, stats = batches_with(ds, [(inputs, "_RETAIN_SHARE", 0.0)], batch_size=6, shuffle=shuffle, epochs=3)
        assert stats["chunks_read"] == 30


@few
@given(data=st.data())
def test_views_of_chunks_change_nothing(data):
    with dataset(data.draw(groups), columns=narrow) as ds:
        how = {**data.draw(options(ds)), "shuffle": data.draw(st.sampled_from([False, "groups"]))}
        for name in ("lanes", "shuffle_bytes", "memory_bytes"):
            how.pop(name, None)
        plain, _ = batches_with(ds, [(gather.Runs, "single_run", lambda self: None)], **how)
        fast, _ = batches_with(ds, [(inputs, "_RETAIN_SHARE", 0.0)], **how)
        assert_same(fast, plain)


def test_neighbours_in_one_chunk_are_views_of_it(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[40]]))
    with ds.loader(batch_size=10, workers=1) as made:
        one, two = itertools.islice(made, 2)
        assert root(one["id"]) is root(two["id"])
        assert one["id"].flags.writeable


def root(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base


# -- gathering by itself --------------------------------------------------------------------------------------------

DTYPES = st.sampled_from([np.uint8, np.int16, np.float32, np.float64, np.bool_, "M8[us]"])
SHAPES = st.sampled_from([(), (2,), (3, 5), (65,), (40, 9), (1100,), (3, 1000)])
"""Rows of 1 byte to 24,000: taken twice, scattered by chunk, and copied one by one."""


@settings(max_examples=depth(60, 1000), deadline=None)
@given(data=st.data())
def test_picked_rows_are_those_of_plain_indexing(data):
    dtype, shape = np.dtype(data.draw(DTYPES)), data.draw(SHAPES)
    counts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    parts = [rng.integers(0, 120, (count, *shape)).astype(np.int64).astype(dtype) for count in counts]
    if data.draw(st.booleans()):
        parts = [strided(part) for part in parts]
    picks = [(c, r) for c, count in enumerate(counts) for r in range(count)]
    chosen = data.draw(st.lists(st.sampled_from(picks), max_size=20))
    part, row = (np.array([pick[k] for pick in chosen], np.int64) for k in (0, 1))
    out = np.empty((len(chosen), *shape), dtype)
    Picks([None] * len(counts), part.astype(np.intp), row).fixed(parts, out)
    assert_same(out, np.array([parts[c][r] for c, r in chosen], dtype).reshape(out.shape))


def strided(array):
    """The same values, a step apart in memory, as in records."""
    wide = np.zeros((len(array), 2, *array.shape[1:]), array.dtype)
    wide[:, 1] = array
    return wide[:, 1]


KINDS = [pa.binary(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.string())]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("per_chunk", [0, 1, 3, 20])
def test_picked_values_are_those_of_plain_indexing_however_few_are_of_a_chunk(kind, per_chunk):
    texts = [[None if k == 3 else f"{chunk} {k}" for k in range(25)] for chunk in range(6)]
    whole = [[None if text is None else [text, text] for text in chunk] for chunk in texts]
    parts = [pa.array(chunk, kind) for chunk in (whole if pa.types.is_list(kind) else texts)]
    chosen = (
        np.random.default_rng(0)
        .permutation([(c, r) for c in range(6) for r in np.random.default_rng(c).permutation(25)[:per_chunk]])
        .reshape(-1, 2)
    )
    found = [None] * len(chosen)
    for array, where in Picks([None] * 6, chosen[:, 0].astype(np.intp), chosen[:, 1]).arrays(parts):
        for at, value in zip(np.arange(len(chosen))[where].tolist(), array.to_pylist(), strict=True):
            found[at] = value
    assert found == [parts[c][r].as_py() for c, r in chosen.tolist()]


def test_picked_values_of_chunks_of_different_types_keep_their_types():
    parts = [pa.array([b"a", b"b"]), pa.array([b"c", b"d"], pa.large_binary())]
    found = Picks([None] * 2, np.array([1, 0], np.intp), np.array([0, 1])).arrays(parts)
    assert [(array.type, array.to_pylist(), where.tolist()) for array, where in found] == [
        (pa.binary(), [b"b"], [1]),
        (pa.large_binary(), [b"c"], [0]),
    ]


@settings(max_examples=depth(30, 500), deadline=None)
@given(data=st.data())
def test_runs_views_and_picks_gather_the_same_rows(data):
    table = pa.table(mixed(np.arange(40)))
    schema = infer_unischema(table.schema)
    columns = columns_of(schema.fields.values(), [field.type for field in table.schema])
    ends = sorted(data.draw(st.sets(st.integers(1, 39), min_size=1, max_size=4)) | {0, 40})
    chunks = [
        gather.make_chunk(i, table.slice(a, b - a).combine_chunks(), columns, None, skip=False)
        for i, (a, b) in enumerate(itertools.pairwise(ends))
    ]
    runs = data.draw(
        st.lists(st.tuples(st.integers(0, len(chunks) - 1), st.integers(0, 9), st.integers(1, 9)), max_size=4)
    )
    runs = [(c, a, min(a + n, chunks[c].num_rows)) for c, a, n in runs if a < chunks[c].num_rows]
    of_runs = [chunks[c] for c, _, _ in runs]
    bounds = [(a, b) for _, a, b in runs]
    part = np.repeat(np.array([c for c, _, _ in runs], np.intp), [b - a for a, b in bounds])
    row = np.array([r for a, b in bounds for r in range(a, b)], np.int64)
    found = [
        gather.gather(rows, columns, BlockPool(keep=1), None, skip=False)
        for rows in (
            gather.Runs(of_runs, bounds, views=False),
            gather.Runs(of_runs, bounds, views=True),
            Picks(chunks, part, row),
        )
    ]
    plain = table.take(np.concatenate([ends[c] + np.arange(a, b) for c, a, b in runs] or [np.arange(0)]))
    for one in found:
        assert_same([seen(x) for x in one], [seen(x) for x in found[0]])
        assert one[0].values.tolist() == plain["id"].to_pylist()
        assert list(one[3].rows) == plain["text"].to_pylist()


def seen(column):
    """What a gathered column holds, cells included; which buffers they lie in does not matter."""
    cells = None if column.cells is None else [None if c is None else c.tobytes() for c in column.cells]
    return [column.values, column.valid, column.rows, cells]


# -- cells that need no decoding ------------------------------------------------------------------------------------


def arrays(kind):
    """Rows of a fixed shape: all uniform, or with nulls, or some in Fortran order, whose header is another."""
    for i in range(30):
        value = np.full((2, 3), i, np.float32) + np.arange(6, dtype=np.float32).reshape(2, 3)
        if kind == "fortran" and i % 4 == 0:
            value = np.asfortranarray(value)
        yield {"id": np.int64(i), "array": None if kind == "nulls" and i % 5 == 0 else value}


@pytest.mark.parametrize("kind", ["uniform", "nulls", "fortran"])
@pytest.mark.parametrize("shuffle", [False, "groups", True])
def test_views_of_cells_are_what_decoding_gives(tmp_path, kind, shuffle):
    fields = [
        UnischemaField("id", np.int64, (), None, False),
        UnischemaField("array", np.float32, (2, 3), NdarrayCodec(), True),
    ]
    penstock.write(arrays(kind), tmp_path / "x", Unischema("S", fields), rows_per_file=7)
    ds = penstock.open(tmp_path / "x")
    viewed = []

    def counted(codec, field, data, offsets):
        found = penstock.codecs.base.view_column(codec, field, data, offsets)
        viewed.append(found is not None)
        return found

    how = {"batch_size": 4, "shuffle": shuffle, "epochs": 2}
    fast, _ = batches_with(ds, [(gather, "view_column", counted)], **how)
    plain, _ = batches_with(ds, [(gather, "view_column", lambda *args: None)], **how)
    assert_same(fast, plain)
    assert any(viewed) == (kind != "fortran")  # with nulls: the last file has none
    assert all(viewed) or kind == "fortran"
    for batch in fast:
        for i, value in zip(batch["id"].tolist(), batch["array"], strict=True):
            if kind != "nulls" or i % 5:
                assert np.ma.getdata(value).tolist() == [[i, i + 1, i + 2], [i + 3, i + 4, i + 5]]
