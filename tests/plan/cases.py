"""Cases for the property tests of the plan: any rows per chunk, order, place and share, small enough for the twin."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hypothesis import strategies as st

from penstock.plan import Cursor, Order, Share, plan_epoch
from tests.plan import plain


@dataclass(frozen=True)
class Case:
    counts: tuple[int, ...]
    order: Order
    cursor: Cursor
    world: int
    batch_size: int
    remainder: str
    drop_last: bool

    @property
    def total(self):
        return sum(self.counts)

    @cached_property
    def plain_order(self):
        o = self.order
        return plain.order(self.counts, o.kind, o.seed, self.cursor.epoch, o.lanes, o.block)

    @cached_property
    def dealt(self):
        """Each rank's batches of global positions, by the twin."""
        left = plain.left_positions(self.total, self.cursor.position, self.cursor.left)
        parts = plain.deal(self.total, left, self.order.is_line, self.world, self.remainder)
        return [plain.batches(part, self.batch_size, self.drop_last) for part in parts]

    def share(self, rank):
        return Share(rank, self.world, self.batch_size, self.remainder, self.drop_last)

    def plan(self, rank):
        return plan_epoch(self.counts, order=self.order, cursor=self.cursor, share=self.share(rank))

    def plans(self):
        return [self.plan(rank) for rank in range(self.world)]


counts = st.lists(st.integers(0, 12) | st.sampled_from([0, 1, 40]), max_size=14).map(tuple)
seeds = st.integers(0, 5) | st.sampled_from([2**63, 2**64 - 1])


@st.composite
def orders(draw):
    kind = draw(st.sampled_from(["natural", "groups", "lanes", "lanes", "lanes"]))
    if kind != "lanes":
        return Order(kind, draw(seeds))
    lanes = draw(st.integers(1, 9) | st.sampled_from([24, 48, 768]))
    return Order(kind, draw(seeds), lanes, draw(st.integers(1, 30) | st.sampled_from([1 << 20, 1 << 62, 1 << 70])))


@st.composite
def cursors(draw, order, total):
    epoch = draw(st.integers(0, 3) | st.just(2**40))
    if not order.is_line:
        return Cursor(epoch, position=draw(st.just(0) | st.integers(0, total)))
    if draw(st.booleans()):
        return Cursor.start(epoch, order, total)
    keep = draw(st.lists(st.booleans(), min_size=total, max_size=total))
    return Cursor(epoch, left=plain.intervals([p for p in range(total) if keep[p]]))


@st.composite
def cases(draw):
    rows = draw(counts)
    order = draw(orders())
    world = draw(st.sampled_from([1, 2, 3, 4, 7, 8, 12]))
    remainder = draw(st.sampled_from(["drop", "pad", "uneven"]))
    cursor = draw(cursors(order, sum(rows)))
    return Case(rows, order, cursor, world, draw(st.integers(1, 9)), remainder, draw(st.booleans()))
