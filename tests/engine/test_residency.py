"""The window: what a batch needs is there, what is needed latest leaves first, what fits is read once, and no deadlock.

`Drill` carries a run out with tasks of several imagined threads, picked and finished in any order that hypothesis
thinks of; nothing is read and no clock runs, so every failure can be repeated.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.engine.build import Room
from penstock.engine.delivery import Built, Origin
from penstock.engine.gather import Chunk
from penstock.engine.residency import NEVER, EpochWork, Residency
from penstock.engine.scheduler import Limits, Scheduler
from penstock.plan import Cursor, Order, Share, plan_epoch
from penstock.plan.order import RowGrouping
from penstock.testing import RecordingFileSystem, make_parquet
from tests.depth import depth
from tests.engine.make import tightest

ROW = 10


def make_window(counts, budget, *, share=True, ahead=1 << 40):
    sizes = np.asarray(counts, np.int64) * ROW
    return Residency(budget_bytes=budget, ahead_bytes=ahead, chunk_bytes=sizes, read_bytes=2 * sizes, share=share)


def visiting(*visits, base=0, epoch=0):
    """An epoch with these visits: (chunk, first, last)."""
    chunk, first, last = (np.array(one, np.int64) for one in zip(*visits, strict=True))
    plan = SimpleNamespace(
        visits=SimpleNamespace(chunk=chunk, first=first, last=last), cursor=SimpleNamespace(epoch=epoch)
    )
    return EpochWork(plan, base, RowGrouping(np.zeros(0, np.int64)), 1)


def chunk_of(index, rows):
    return Chunk(index, rows, rows * ROW, (SimpleNamespace(lent_base=lambda: None),), frozenset())


def load(window, read):
    window.done(read, chunk_of(read.chunk, int(window.chunk_bytes[read.chunk]) // ROW))


def test_freed_memory_goes_back_to_the_system_once_for_many_small_reads():
    window = make_window([10] * 60, budget=10 * ROW * 64)
    window.add(visiting(*((chunk, 0, 9) for chunk in range(60))))
    due = []
    for _ in range(60):
        load(window, window.read_ahead(tick=0))
        due.append(window.release_is_due())
    assert not any(due[:32])  # less than half of the budget is in use
    assert due[32:] == [number % 2 == 0 for number in range(28)]  # a 32nd of the budget is two chunks


class Drill:
    """A run whose threads are imagined: their tasks are picked and finished in an order that is given."""

    def __init__(self, counts, order, *, budget, epochs, batch_size, **more):
        self.counts = np.asarray(counts, np.int64)
        share = Share(0, 1, batch_size, "drop", drop_last=False)
        starts = (Cursor.start(epoch, order, int(self.counts.sum())) for epoch in range(epochs))
        plans = (plan_epoch(self.counts, order=order, cursor=cursor, share=share) for cursor in starts)
        self.window = make_window(self.counts, budget, share=more.get("share", True), ahead=more.get("ahead", 1 << 40))
        self.batch_size = batch_size
        self.pool = SimpleNamespace(clear=lambda: None)
        self.shelf, self.room = None, Room()
        limits = Limits(
            workers=more.get("threads", 2), span_batches=more.get("span", 2), ahead_spans=more.get("ahead_spans", 2),
            num_chunks=len(counts), views=False, last_epoch=None, positions=False, items=RowGrouping(self.counts),
            batch_items=batch_size, batch_size=batch_size,
        )  # fmt: skip
        self.run = Scheduler(plans, self.window, self, limits, [None] * 9)
        self.threads = more.get("threads", 2)
        self.seen = []
        self.reads = []

    def read(self, chunk, *, last):
        self.reads.append(chunk)
        return chunk_of(chunk, int(self.counts[chunk]))

    def build(self, span, chunks, **_):
        """Take note of the rows, each from a chunk that is in the window at this moment."""
        for index, chunk in chunks.items():
            assert self.window.chunk(span.work, index) is chunk, "a chunk left before its rows were gathered"
        index, row = span.work.plan.rows(span.lo, span.hi)
        assert set(index.tolist()) == set(chunks)
        rows = list(zip(itertools.repeat(span.work.epoch), index.tolist(), row.tolist(), strict=False))
        self.seen.extend(rows)
        return [
            Built({}, Origin(span.work.plan, step, step + 1), 0, ()) for step in range(span.first_step, span.end_step)
        ]

    def carry_out(self, choose):
        """Deliver all batches; `choose(n)` gives a number below n."""
        run, tasks = self.run, []
        run._waiting = True
        while True:
            while run._deliver in run._built:
                found = run._built.pop(run._deliver)
                if isinstance(found, BaseException):
                    raise found
                run._deliver += 1
            if run._ended and run._deliver == run._next_number and run._spans_left() is None:
                return
            task = run._pick() if len(tasks) < self.threads and choose(3) else None
            if task is None and not tasks:
                task = run._pick()
                assert task is not None, "nobody has anything to do, and the consumer waits"
            if task is not None:
                tasks.append(task)
            if tasks and (len(tasks) == self.threads or task is None or choose(2)):
                tasks.pop(choose(len(tasks)))(0)

    def check_every_row_once(self, epochs):
        rows = [(e, c, r) for e in range(epochs) for c, n in enumerate(self.counts.tolist()) for r in range(n)]
        assert sorted(self.seen) == rows


def first_of(n):
    return 0


def last_of(n):
    return n - 1


# -- the window itself -------------------------------------------------------------------------------------------------


def test_the_chunk_that_is_needed_last_leaves_first():
    window = make_window([1] * 4, budget=59)  # three residents, and not quite a fourth
    window.add(visiting((0, 0, 1), (1, 1, 2), (2, 2, 3), (3, 3, 4), (1, 10, 11), (0, 20, 21), (2, 30, 31)))
    for _ in range(3):
        load(window, window.read_ahead(tick=0))
    assert window.read_ahead(tick=0) is None, "all three are still needed"
    load(window, window.read_ahead(tick=3))
    assert {chunk for _, chunk in window.residents} == {0, 1, 3}


def test_a_read_never_takes_the_place_of_what_is_needed_before_it():
    window = make_window([1] * 3, budget=39)
    window.add(visiting((0, 0, 1), (0, 5, 6), (1, 6, 7)))
    load(window, window.read_ahead(tick=0))
    assert window.read_ahead(tick=1) is None
    assert {chunk for _, chunk in window.residents} == {0}


def test_a_chunk_at_a_lane_border_leaves_between_its_visits():
    window = make_window([1] * 3, budget=30)
    work = visiting((0, 0, 1), (1, 1, 2), (2, 2, 3), (0, 90, 91))
    window.add(work)
    load(window, window.read_needed(work, 0, end=1, force=False, tick=0))
    assert next(iter(window.residents.values())).until == 1
    assert not work.taken[3], "its second visit is taken up when its time comes"
    load(window, window.read_needed(work, 1, end=2, force=False, tick=1))
    assert {chunk for _, chunk in window.residents} == {1}


def test_nothing_leaves_in_vain():
    window = make_window([1, 1, 9], budget=100)
    work = visiting((0, 0, 1), (1, 1, 2), (2, 2, 3), (0, 80, 81), (1, 90, 91))
    window.add(work)
    for _ in range(2):
        load(window, window.read_ahead(tick=0))
    assert window.read_needed(work, 2, end=3, force=False, tick=2) is None, "270 bytes never fit"
    assert {chunk for _, chunk in window.residents} == {0, 1}
    load(window, window.read_needed(work, 2, end=3, force=True, tick=2))
    assert {chunk for _, chunk in window.residents} == {2}, "a read that is done in any case takes what room there is"


def test_prefetch_goes_only_so_far_ahead():
    window = make_window([1] * 9, budget=1 << 30, ahead=30)
    window.add(visiting(*[(i, i, i + 1) for i in range(9)]))
    reads = list(iter(lambda: window.read_ahead(tick=0), None))
    assert len(reads) == 4  # the one that is needed now, and 30 bytes ahead


def test_views_lent_out_count():
    window = make_window([1] * 3, budget=40, share=False)
    window.add(visiting((0, 0, 1), (1, 1, 2), (2, 2, 3)))
    load(window, window.read_ahead(tick=0))
    assert [chunk.index for chunk in window.leave(1)] == [0]
    window.lent_bytes += 20
    assert window.read_ahead(tick=1) is None
    window.lent_bytes -= 20
    assert window.read_ahead(tick=1) is not None


def test_next_use_looks_into_the_next_epoch():
    window = make_window([1] * 2, budget=100)
    window.add(visiting((0, 0, 5), (1, 5, 9)))
    window.add(visiting((1, 0, 5), (0, 5, 9), base=9, epoch=1))
    assert window.next_use((-1, 0), 3) == 3
    assert window.next_use((-1, 0), 5) == 14
    assert window.next_use((-1, 1), 5) == 5
    assert window.next_use((-1, 1), 14) == NEVER


# -- a run over it -----------------------------------------------------------------------------------------------------


@st.composite
def drills(draw):
    counts = draw(st.lists(st.integers(0, 12), min_size=1, max_size=14).filter(any))
    kind = draw(st.sampled_from(["natural", "groups", "lanes", "lanes"]))
    lanes = {"lanes": draw(st.integers(1, 6)), "block": draw(st.integers(1, 20))} if kind == "lanes" else {}
    return Drill(
        counts,
        Order(kind, draw(st.integers(0, 3)), **lanes),
        budget=draw(st.integers(0, 4 * ROW * sum(counts))),
        epochs=draw(st.integers(1, 3)),
        batch_size=draw(st.integers(1, 9)),
        share=draw(st.booleans()) or kind == "lanes",
        ahead=draw(st.sampled_from([0, 50, 1 << 40])),
        threads=draw(st.integers(1, 4)),
        span=draw(st.integers(1, 4)),
        ahead_spans=draw(st.integers(1, 3)),
    )


@given(drill=drills(), data=st.data())
@settings(max_examples=depth(150, 1500), deadline=None)
def test_no_order_of_events_loses_a_row_or_stands_still(drill, data):
    random = data.draw(st.randoms(use_true_random=False))
    drill.carry_out(random.randrange)
    drill.check_every_row_once(len({epoch for epoch, _, _ in drill.seen}))


@given(drill=drills(), choose=st.sampled_from([first_of, last_of]))
@settings(max_examples=depth(50, 300), deadline=None)
def test_the_bytes_of_the_window_add_up(drill, choose):
    drill.carry_out(choose)
    window = drill.window
    assert window.flight_bytes == 0
    assert window.held_bytes == sum(one.num_bytes for one in window.residents.values())


@pytest.mark.parametrize("kind", ["natural", "groups", "lanes"])
def test_what_fits_is_read_once(kind):
    counts = [7] * 12
    lanes = {"lanes": 3, "block": 7} if kind == "lanes" else {}
    drill = Drill(counts, Order(kind, 1, **lanes), budget=ROW * (7 * 12 + 4 * 14), epochs=3, batch_size=5)
    drill.carry_out(last_of)
    drill.check_every_row_once(3)
    assert sorted(drill.reads) == list(range(12))


def test_a_window_smaller_than_the_dataset_still_uses_what_it_keeps():
    counts = [7] * 12
    drill = Drill(counts, Order("lanes", 1, 3, 7), budget=ROW * 7 * 11, epochs=3, batch_size=5, ahead=0)
    drill.carry_out(last_of)
    drill.check_every_row_once(3)
    assert len(drill.reads) < 3 * 12


# -- through the loader ------------------------------------------------------------------------------------------------


def touched(ds, reads):
    """How often each row group was read: its first column chunk, by the recorded byte ranges."""
    import pyarrow.parquet as pq

    counts = {}
    for path in reads.paths:
        footer = pq.ParquetFile(path).metadata
        for group in range(footer.num_row_groups):
            column = footer.row_group(group).column(0)
            start = column.dictionary_page_offset or column.data_page_offset
            found = sum(a <= start < b for a, b in reads.ranges(path))
            if found:
                counts[path, group] = found
    return counts


@pytest.mark.parametrize("shuffle", [False, "groups", True])
@pytest.mark.parametrize("pool", ["thread", "serial"])
def test_every_row_group_is_read_once_over_three_epochs(tmp_path, pool, shuffle):
    data = make_parquet(tmp_path / "data", [[50] * 20, [50] * 20])
    files = RecordingFileSystem()
    ds = penstock.open(str(data), filesystem=files)
    with ds.loader(batch_size=16, shuffle=shuffle, pool=pool, epochs=3, shuffle_bytes=5000, workers=2) as loader:
        files.reads.clear()
        for _ in loader:
            pass
        assert loader.stats()["chunks_read"] == 40
    assert list(touched(ds, files.reads).values()) == [1] * 40


@pytest.mark.parametrize("pool", ["thread", "serial"])
def test_resume_reads_no_row_group_outside_of_the_window(tmp_path, pool):
    data = make_parquet(tmp_path / "data", [[100] * 100, [100] * 100])
    files = RecordingFileSystem()
    ds = penstock.open(str(data), filesystem=files)
    options = {"batch_size": 64, "shuffle": True, "seed": 3, "shuffle_bytes": 30_000, "pool": pool, "workers": 2}
    with ds.loader(memory_bytes=tightest(ds, **options), **options) as loader:
        loader.load_state_dict(state := {**loader.state_dict(), "position": 18_000})
        files.reads.clear()
        batches = iter(loader)
        next(batches)
        loader.close()
        found = touched(ds, files.reads)
    share = Share(0, 1, 64, "drop", drop_last=False)
    left = plan_epoch([100] * 200, order=loader.order, cursor=Cursor(0, state["position"]), share=share).visits
    window = left.chunk[
        left.first < (64 if pool == "serial" else 640)
    ]  # threads have read ahead, as far as room allows
    assert 0 < len(found) < 30
    assert set(found) <= {(str(data / f"part-{chunk // 100:05d}.parquet"), chunk % 100) for chunk in window.tolist()}
