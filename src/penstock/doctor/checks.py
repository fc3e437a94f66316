"""Judge a layout: from facts to findings, each with the size of its effect and its cure.

Pure arithmetic on `Facts` and on what the planner says a run would do; reads nothing. What a rewrite would give is
planned the same way as what is there, so that every effect is "now" against "then".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.dataset.common_metadata import COMMON_METADATA
from penstock.display import count_text, size_text
from penstock.doctor.report import Finding
from penstock.options import READ_COST
from penstock.plan import Cursor, Order, Share
from penstock.plan.advice import FEW_CHUNKS, READ_FACTOR, Sizes
from penstock.plan.order import choose_lanes, typical_rows
from penstock.plan.plan import make_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock.doctor.facts import Facts
    from penstock.plan.plan import Plan

LARGE, SMALL = 8, 1 / 16
"""Row groups of more or less than so many times the size aimed at are far too large or small."""
MANY = 64
"""Fewer row groups or files than this cost little, however small they are."""
STORE_S, STORE_READS = 0.03, 32
"""What effects on a store are computed with: an answer takes 30 ms, 32 are asked for at a time."""


WORTH_IT = 0.9
"""Another setting is named only if it brings what ranks read down this far."""


class Reads(NamedTuple):
    """Bytes that all ranks together read over bytes needed, and the lanes to start the run with for that."""

    factor: float
    lanes: int | None
    """None: those that the loader chooses by itself."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The run that the dataset is judged for."""

    world: int
    batch_size: int
    row_group_bytes: int
    """Bytes of a row group that are aimed at, in memory as Arrow."""
    window_bytes: int

    def plan(self, counts: NDArray[np.int64], row_bytes: float, lanes: int | None = None) -> Plan:
        """Return what a shuffled run over such row groups would do."""
        chosen = choose_lanes(counts, row_bytes=row_bytes, window_bytes=self.window_bytes, lanes=lanes)
        order = Order("lanes", 0, chosen.lanes, chosen.block)
        sizes = Sizes(row_bytes, row_bytes, row_bytes, self.window_bytes)
        share = Share(0, self.world, self.batch_size, "drop", False)
        cursor = Cursor.start(0, order, int(counts.sum()))
        return make_plan(counts, order=order, cursor=cursor, share=share, sizes=sizes, least_memory=lambda rows: rows)

    def rewritten(self, rows: int, row_bytes: float) -> NDArray[np.int64]:
        """Return the rows of the row groups that a rewrite would make."""
        each = max(1, int(self.row_group_bytes // max(row_bytes, 1.0)))
        full, rest = divmod(rows, each)
        return np.array([each] * full + [rest] * (rest > 0), np.int64)

    def reads(self, counts: NDArray[np.int64], row_bytes: float) -> Reads:
        """Return the least that all ranks read, with lanes that fit the ranks where that helps."""
        most = int(self.window_bytes // (2 * max(typical_rows(counts), 1) * max(row_bytes, 1.0)))
        best = Reads(self.plan(counts, row_bytes).read_factor, None)
        for lanes in (self.world, 2 * self.world, 3 * self.world):
            if 1 < lanes <= min(most, len(counts)):
                factor = self.plan(counts, row_bytes, lanes).read_factor
                best = Reads(factor, lanes) if factor < WORTH_IT * best.factor else best
        return best

    def aim(self, rows: int, row_bytes: float) -> Wanted:
        """Return the same with the row-group size that suits it: as wished, or down to an eighth for many ranks."""
        best, least = self, math.inf
        for shift in range(4):
            trial = replace(self, row_group_bytes=max(1, self.row_group_bytes >> shift))
            counts = trial.rewritten(rows, row_bytes)
            factor = trial.reads(counts, row_bytes).factor
            if factor < WORTH_IT * least:
                best, least = trial, factor
            if least <= READ_FACTOR and not _poorly_mixed(trial.plan(counts, row_bytes)):
                break
        return best

    @property
    def flags(self) -> tuple[str, ...]:
        """How to ask `penstock rewrite` for it."""
        return (f"--row-group-bytes {_exact_size(self.row_group_bytes)}",)


def _exact_size(number: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number % (1 << power) == 0:
            return f"{number >> power}{unit}"
    return str(number)


def check_files(facts: Facts) -> Iterator[Finding]:
    """Damaged files."""
    if facts.bad:
        path, reason = facts.bad[0]
        yield Finding(
            "bad-files",
            "problem",
            f"{count_text(len(facts.bad), 'file')} of {len(facts.bad) + len(facts.files):,} cannot be read",
            f"the dataset does not open; the first is {path}: {reason}",
            "fetch or write them again, or leave their rows out: penstock rewrite URL OUT --skip-bad-files",
            {"files": len(facts.bad)},
            ("--skip-bad-files",),
        )


def check_groups(facts: Facts, row_bytes: float, wanted: Wanted) -> Iterator[Finding]:
    """Row groups: too large, too small, too few for the ranks. Says nothing where all rows fit one good row group."""
    counts = facts.group_rows
    total = float(counts.sum()) * row_bytes
    if total <= wanted.row_group_bytes:
        return
    typical = typical_rows(counts) * row_bytes
    aim = wanted.aim(int(counts.sum()), row_bytes)
    now = wanted.plan(counts, row_bytes)
    then = aim.plan(aim.rewritten(int(counts.sum()), row_bytes), row_bytes)
    if typical > LARGE * wanted.row_group_bytes:
        yield _large(typical, now, then, aim)
    elif typical < SMALL * wanted.row_group_bytes and len(counts) > MANY:
        yield _small(typical, len(counts), then.num_chunks, aim)
    elif _poorly_mixed(now) and not _poorly_mixed(then):
        yield _large(typical, now, then, aim)
    reads = wanted.reads(counts, row_bytes), aim.reads(aim.rewritten(int(counts.sum()), row_bytes), row_bytes)
    if reads[0].factor > READ_FACTOR and reads[1].factor < WORTH_IT * reads[0].factor:
        yield _few(len(counts), *reads, aim)


def note_lanes(facts: Facts, row_bytes: float, wanted: Wanted) -> Iterator[str]:
    """Yield a note where the layout is good for the ranks, but only with lanes that the user has to name."""
    counts = facts.group_rows
    if float(counts.sum()) * row_bytes <= wanted.row_group_bytes:
        return
    reads, plain = wanted.reads(counts, row_bytes), wanted.plan(counts, row_bytes).read_factor
    if reads.lanes is not None and plain > READ_FACTOR:
        yield (
            f"start a run of {wanted.world:,} ranks with lanes={reads.lanes}: together they read {reads.factor:.2f} "
            f"times the bytes needed, instead of {plain:.2f} times"
        )


def _poorly_mixed(plan: Plan) -> bool:
    is_whole = plan.order.lanes == 1 and (plan.order.block or 0) >= plan.num_rows
    return not is_whole and (plan.chunks_per_batch or 0) < min(FEW_CHUNKS, plan.share.batch_size) - 0.5


def _large(typical: float, now: Plan, then: Plan, wanted: Wanted) -> Finding:
    mixing = (now.chunks_per_batch or 0.0, then.chunks_per_batch or 0.0)
    poor = _poorly_mixed(now)
    effect = (
        f"a shuffled batch of {wanted.batch_size:,} draws from about {count_text(round(mixing[0]), 'row group')} "
        f"(rewritten: {mixing[1]:,.0f}); every read in flight takes about {size_text(READ_COST * typical)} of memory "
        f"(rewritten: {size_text(READ_COST * wanted.row_group_bytes)}), and a shuffle window of "
        f"{size_text(wanted.window_bytes)} holds {wanted.window_bytes / typical:,.1f} row groups"
    )
    return Finding(
        "large-row-groups",
        "problem" if poor or typical > wanted.window_bytes else "advice",
        f"row groups of {size_text(typical)} in memory are large; about {size_text(wanted.row_group_bytes)} is good",
        effect,
        "write smaller row groups",
        {"row_group_bytes": typical, "chunks_per_batch": mixing[0], "chunks_per_batch_rewritten": mixing[1]},
        wanted.flags,
    )


def _small(typical: float, num_groups: int, rewritten: int, wanted: Wanted) -> Finding:
    waits = num_groups * STORE_S / STORE_READS, rewritten * STORE_S / STORE_READS
    return Finding(
        "small-row-groups",
        "problem" if num_groups > 16 * MANY else "advice",
        f"{count_text(num_groups, 'row group')} of {size_text(typical)} in memory are small; about "
        f"{size_text(wanted.row_group_bytes)} is good",
        f"{num_groups:,} reads an epoch where {rewritten:,} would do: on a store that answers in {STORE_S * 1000:.0f} "
        f"ms, {STORE_READS} asked at a time, {waits[0]:,.1f} s of waiting an epoch instead of {waits[1]:,.1f} s, and "
        f"footers {num_groups / max(rewritten, 1):,.0f} times as long",
        "write larger row groups",
        {"row_group_bytes": typical, "reads": num_groups, "reads_rewritten": rewritten, "store_wait_s": waits[0]},
        wanted.flags,
    )


def _few(num_groups: int, now: Reads, then: Reads, wanted: Wanted) -> Finding:
    lanes = "" if then.lanes is None else f", and start the run with lanes={then.lanes}"
    return Finding(
        "few-row-groups",
        "problem" if num_groups < wanted.world or now.factor >= 2 else "advice",
        f"{count_text(num_groups, 'row group')} for {count_text(wanted.world, 'rank')} are few",
        f"all ranks together read {now.factor:.2f} times the bytes needed in a shuffled epoch "
        f"(rewritten: {then.factor:.2f}), because several of them read the same row groups",
        f"write more and smaller row groups{lanes}; or use fewer ranks, or a larger window_bytes",
        {"read_factor": now.factor, "read_factor_rewritten": then.factor, "world": wanted.world},
        wanted.flags,
    )


def check_file_sizes(facts: Facts, open_s: float, wanted: Wanted) -> Iterator[Finding]:
    """Many tiny files."""
    sizes = facts.file_bytes
    if len(sizes) <= MANY or sizes.mean() >= wanted.row_group_bytes:
        return
    mean = float(sizes.mean())
    fewer = max(1, math.ceil(float(sizes.sum()) / (32 * wanted.row_group_bytes)))
    store_s = len(sizes) * STORE_S / STORE_READS
    yield Finding(
        "tiny-files",
        "problem" if store_s > 10 else "advice",
        f"{count_text(len(sizes), 'file')} of {size_text(mean)} on average are tiny",
        f"every process that opens the dataset reads {len(sizes):,} footers: {open_s:.2f} s here, about {store_s:,.1f} "
        f"s on a store that answers in {STORE_S * 1000:.0f} ms; {count_text(fewer, 'file')} would do",
        "write fewer, larger files",
        {"files": len(sizes), "file_bytes": mean, "store_open_s": store_s, "files_rewritten": fewer},
        wanted.flags,
    )


def check_statistics(facts: Facts) -> Iterator[Finding]:
    """Columns that a filter has to read because their least and greatest values are not stored."""
    found = facts.no_statistics()
    if not found:
        return
    most = max(found, key=lambda name: found[name][1])
    shown = ", ".join(repr(name) for name in list(found)[:5]) + (", ..." if len(found) > 5 else "")
    size = sum(size for _, size in found.values())
    yield Finding(
        "no-statistics",
        "advice",
        f"{count_text(len(found), 'plain column')} without statistics: {shown}",
        f"a filter cannot leave row groups out unread: one on {most!r} reads {size_text(found[most][1])} in "
        f"{count_text(found[most][0], 'row group')} before the first batch; all these columns have {size_text(size)}",
        "write the dataset again with statistics, if you filter on them",
        {"columns": len(found), "bytes": size},
        (),
    )


def check_schemas(facts: Facts, failure: str | None) -> Iterator[Finding]:
    """Files whose columns differ; `failure` is what opening said of it."""
    schemas = facts.schemas()
    if len(schemas) < 2:
        return
    others = sum(count for _, count, _ in schemas[1:])
    difference = _difference(schemas[0][0], schemas[1][0])
    effect = failure or "they hold the same values in other types, which are cast each time they are read"
    yield Finding(
        "mixed-schemas",
        "problem" if failure else "advice",
        f"{len(schemas):,} different schemas: {count_text(others, 'file')} of {len(facts.files):,} differ from the "
        f"others, first {schemas[1][2]} ({difference})",
        effect,
        # `rewrite` reads what opens, so that it is no cure here.
        "write these files again with the types of the others (docs/doctor.md shows how), or open with columns= that "
        "all files share"
        if failure
        else "write the dataset again",
        {"schemas": len(schemas), "files": others},
        None if failure else (),
    )


def _difference(one: pa.Schema, other: pa.Schema) -> str:
    for name in dict.fromkeys([*one.names, *other.names]):
        here, there = (schema.field(name) if name in schema.names else None for schema in (one, other))
        if here is None or there is None:
            return f"column {name!r} is {'missing' if there is None else 'only'} there"
        if here.type != there.type:
            return f"column {name!r} is {there.type}, not {here.type}"
        if here.nullable != there.nullable:
            return f"column {name!r} is {'nullable' if there.nullable else 'not nullable'} there"
    return "the columns come in another order"


def check_metadata(facts: Facts) -> Iterator[Finding]:
    """A schema that is not stored, and a `_metadata` that does not tell the truth."""
    names = [f.name for f in facts.files[0].schema if _is_binary(f.type)] if facts.files else []
    if not facts.has_schema and names:
        shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
        yield Finding(
            "no-schema",
            "advice",
            "no schema is stored with the dataset",
            f"nothing says how to decode {count_text(len(names), 'binary column')} ({shown}): bytes come out",
            "open with schema=Unischema(...), or store it once: penstock.petastorm.etl.petastorm_generate_metadata",
            {"binary_columns": len(names)},
        )
    if facts.has_schema and facts.is_folder and COMMON_METADATA not in facts.side_files:
        yield Finding(
            "no-common-metadata",
            "advice",
            "the schema is in the files only: there is no `_common_metadata`",
            f"it is taken from the first of {count_text(len(facts.files), 'file')}; Petastorm itself cannot open these",
            "write the dataset again, or run penstock.petastorm.etl.petastorm_generate_metadata",
            {"files": len(facts.files)},
            (),
        )
    stale = facts.summary_rows is not None and any(
        list(file.rows) != facts.summary_rows.get(file.path) for file in facts.files
    )
    if stale:
        yield Finding(
            "stale-summary",
            "advice",
            "`_metadata` does not list the files as they are",
            f"it is not used, so that opening reads all {len(facts.files):,} footers; other readers may believe it",
            "delete `_metadata`",
            {"footers": len(facts.files)},
        )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
