"""Describe what a loader will do, as a `Plan` to print.

Joins the facts of a dataset with the plan of a rank: the bytes of rows as stored, as read and as decoded. Reads no
data and starts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.needs import count_needs
from penstock.plan import Order, choose_lanes
from penstock.plan.plan import Plan, Sizes, make_plan

if TYPE_CHECKING:
    from penstock.engine.facts import Facts
    from penstock.options import LoaderOptions
    from penstock.plan import Cursor, EpochPlan, Share


def describe(facts: Facts, order: Order, cursor: Cursor, share: Share, options: LoaderOptions) -> Plan:
    """Return what `share.rank` will do from `cursor` on."""
    sizes = Sizes(
        facts.row_bytes, facts.held_bytes, facts.decoded_bytes, options.shuffle_bytes, facts.source.facts.part_noun
    )

    def least(plan: EpochPlan) -> int:
        window_bytes = facts.items.visits(plan.visits).most_rows(facts.held_chunk_bytes)
        return count_needs(facts, window_bytes, share.batch_size, options.pool).least

    return make_plan(facts.counts, order=order, cursor=cursor, share=share, sizes=sizes, least_memory=least)


def choose_order(facts: Facts, options: LoaderOptions) -> Order:
    """Return the order of a fresh run: its kind, and for lanes their number and block."""
    kind = options.order_kind
    if kind != "lanes":
        return Order(kind, options.seed)
    chosen = choose_lanes(
        facts.counts, row_bytes=facts.row_bytes, shuffle_bytes=options.shuffle_bytes, lanes=options.lanes
    )
    return Order("lanes", options.seed, chosen.lanes, chosen.block)
