"""Judge a layout: from facts to findings, each with the size of its effect and its cure.

Pure arithmetic on `LayoutFacts` and on the plan of a training run; reads nothing. What a rewrite would give is planned
the same way as what is there, so every effect compares "now" with "rewritten".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.codecs.arrow_kinds import form_of
from penstock.dataset.common_metadata import COMMON_METADATA
from penstock.display import count_text, size_text
from penstock.doctor.dealt import INDEX, Chunks
from penstock.doctor.report import Finding
from penstock.doctor.target_layout import LARGE, MANY, WORTH_IT, Aim, ReadFactor, Rows, TrainingRun, poorly_mixed
from penstock.options import READ_COST
from penstock.plan.order import typical_rows
from penstock.plan.plan import READ_FACTOR, Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.doctor.dealt import Dealt
    from penstock.doctor.facts import LayoutFacts

STORE_S, STORE_READS = 0.03, 32
"""Assumptions about a store: a request takes 30 ms, and 32 run at a time."""


def check_files(facts: LayoutFacts) -> Iterator[Finding]:
    """Yield a finding for damaged files."""
    if facts.bad:
        path, reason = facts.bad[0]
        yield Finding(
            "bad-files",
            "problem",
            f"{count_text(len(facts.bad), 'file')} of {len(facts.bad) + len(facts.files):,} cannot be read",
            f"the dataset does not open; the first is {path}: {reason}",
            "fetch or write them again"
            + (", or leave their rows out: penstock rewrite URL OUT --skip-bad-files" if facts.files else ""),
            {"files": len(facts.bad)},
            ("--skip-bad-files",) if facts.files else None,
        )


def check_groups(dealt: Dealt, rows: Rows, wanted: TrainingRun, aim: Aim) -> Iterator[Finding]:
    """Yield findings for row groups that are too large, too small or too few for the ranks, if a rewrite, or an index
    of their pages, would improve them.

    Large row groups that are read in parts are judged by their parts. Yields nothing if all rows fit one good row
    group.
    """
    chunks, row_bytes = dealt.now, rows.memory
    if float(chunks.rows.sum()) * row_bytes <= wanted.row_group_bytes:
        return
    typical, made = typical_rows(chunks.rows) * row_bytes, typical_rows(aim.counts) * rows.after
    now, then = wanted.plan(chunks, row_bytes), wanted.plan(Chunks(aim.counts), rows.after)
    indexed = None if dealt.indexed is None else wanted.plan(dealt.indexed, row_bytes)
    is_large = typical > LARGE * wanted.row_group_bytes
    smaller = made < WORTH_IT * typical and (is_large or not poorly_mixed(then))
    by_index = indexed is not None and not poorly_mixed(indexed)
    if (is_large and smaller) or (poorly_mixed(now) and (smaller or by_index)):
        yield _large(typical, made if smaller else None, (now, then, indexed), wanted, dealt.whole)
    elif (
        chunks.groups is None
        and wanted.is_small(chunks.rows, row_bytes)
        and len(aim.counts) < WORTH_IT * now.num_chunks
    ):
        yield _small((typical, made), (len(chunks.rows), len(aim.counts)))
    reads = wanted.reads(chunks, row_bytes)
    if reads.factor > READ_FACTOR and aim.reads.factor < WORTH_IT * reads.factor:
        in_parts = None if dealt.indexed is None else wanted.reads(dealt.indexed, row_bytes)
        yield _few(now, (reads, aim.reads, in_parts), wanted)


def note_lanes(chunks: Chunks, row_bytes: float, wanted: TrainingRun, aim: Aim) -> Iterator[str]:
    """Yield a note if ranks read too much and a rewrite does not help: lanes to pass, or fewer ranks."""
    if float(chunks.rows.sum()) * row_bytes <= wanted.row_group_bytes:
        return
    reads, plain = wanted.reads(chunks, row_bytes), wanted.plan(chunks, row_bytes).read_factor
    if reads.lanes is not None and plain > READ_FACTOR:
        yield (
            f"start a run of {wanted.world:,} ranks with lanes={reads.lanes}: together they read {reads.factor:.2f} "
            f"times the bytes needed, instead of {plain:.2f} times"
        )
    elif reads.factor >= 2 and aim.reads.factor >= WORTH_IT * reads.factor:
        yield (
            f"all ranks together read {reads.factor:.2f} times the bytes needed, and other row groups do not help: use "
            "fewer ranks, or a larger shuffle_bytes"
        )


def _large(
    typical: float, made: float | None, plans: tuple[Plan, Plan, Plan | None], wanted: TrainingRun, whole: str | None
) -> Finding:
    """Return the finding for row groups of `typical` bytes; `made`: those of a rewrite, None if it does not help."""
    now, then, indexed = plans
    mixing = (now.groups_per_batch or 0.0, then.groups_per_batch or 0.0)
    numbers = {"row_group_bytes": typical, "chunks_per_batch": mixing[0]}
    what, why = f"row groups of {size_text(typical)} in memory", "" if whole is None else f"; {whole}"
    others, reads, cures = [], [], []
    if indexed is not None:
        why = "; they have no offset index, so they are not read in parts"
        in_parts, random = indexed.groups_per_batch or 0.0, indexed.permuted_groups_per_batch or 0.0
        numbers |= {"chunks_per_batch_indexed": in_parts, "chunks_per_batch_permuted": random}
        others += [f"read in parts: {in_parts:,.0f}, under a true permutation: {random:,.0f}"]
        reads += [f"in parts: {size_text(READ_COST * indexed.chunk_bytes)}"]
        cures += [INDEX, "or write them with an offset index (pyarrow: write_page_index=True)"]
    if made is not None:
        numbers["chunks_per_batch_rewritten"] = mixing[1]
        others += [f"rewritten: {mixing[1]:,.0f}"]
        reads += [f"rewritten: {size_text(READ_COST * made)}"]
        cures += ["or write smaller row groups" if cures else "write smaller row groups"]
    by_index = indexed is not None and not poorly_mixed(indexed)
    return Finding(
        "large-row-groups",
        "problem" if poorly_mixed(now) or typical > wanted.shuffle_bytes else "advice",
        f"{what} are read whole" if made is None else f"{what} are large; about {size_text(made)} is good",
        f"a shuffled batch of {wanted.batch_size:,} draws from about {count_text(round(mixing[0]), 'row group')} "
        f"({'; '.join(others)}); every read in flight takes about {size_text(READ_COST * typical)} of memory "
        f"({'; '.join(reads)}), and a shuffle buffer of {size_text(wanted.shuffle_bytes)} holds "
        f"{wanted.shuffle_bytes / typical:,.1f} row groups{why}",
        "; ".join(cures),
        numbers,
        None if by_index or made is None else (),
        index=indexed is not None,
    )


def _small(sizes: tuple[float, float], groups: tuple[int, int]) -> Finding:
    waits = groups[0] * STORE_S / STORE_READS, groups[1] * STORE_S / STORE_READS
    return Finding(
        "small-row-groups",
        "problem" if groups[0] > 16 * MANY else "advice",
        f"{count_text(groups[0], 'row group')} of {size_text(sizes[0])} in memory are small; about "
        f"{size_text(sizes[1])} is good",
        f"{groups[0]:,} reads per epoch where {groups[1]:,} would do: on a store that answers in {STORE_S * 1000:.0f} "
        f"ms, {STORE_READS} requests at a time, {waits[0]:,.1f} s of waiting per epoch instead of {waits[1]:,.1f} s; "
        f"footers are {groups[0] / max(groups[1], 1):,.0f} times as long",
        "write larger row groups",
        {"row_group_bytes": sizes[0], "reads": groups[0], "reads_rewritten": groups[1], "store_wait_s": waits[0]},
        (),
    )


def _few(plan: Plan, reads: tuple[ReadFactor, ReadFactor, ReadFactor | None], wanted: TrainingRun) -> Finding:
    now, then, indexed = reads
    chunks = count_text(plan.num_groups, "row group")
    if plan.order.parts:
        chunks = f"{count_text(plan.num_chunks, 'part')} of {chunks}"
    others, numbers = f"rewritten: {then.factor:.2f}", {"read_factor": now.factor, "read_factor_rewritten": then.factor}
    cure = f"write more and smaller row groups{_lanes(then)}; or use fewer ranks, or a larger shuffle_bytes"
    flags: tuple[str, ...] | None = ()
    by_index = indexed is not None and indexed.factor < WORTH_IT * now.factor
    if indexed is not None and by_index:
        others, numbers["read_factor_indexed"] = f"read in parts: {indexed.factor:.2f}; {others}", indexed.factor
        cure = f"{INDEX}{_lanes(indexed)}; or {cure}"
        flags = None if indexed.factor <= READ_FACTOR else ()
    return Finding(
        "few-row-groups",
        "problem" if plan.num_chunks < wanted.world or now.factor >= 2 else "advice",
        f"only {chunks} for {count_text(wanted.world, 'rank')}",
        f"all ranks together read {now.factor:.2f} times the bytes needed in a shuffled epoch ({others}), because "
        "several of them read the same row groups",
        cure,
        numbers | {"world": wanted.world},
        flags,
        index=by_index,
    )


def _lanes(reads: ReadFactor) -> str:
    return "" if reads.lanes is None else f", and start the run with lanes={reads.lanes}"


def check_file_sizes(facts: LayoutFacts, open_s: float, wanted: TrainingRun, fewer: int) -> Iterator[Finding]:
    """Yield a finding for many tiny files, if a rewrite would make `fewer`."""
    sizes = facts.file_bytes
    if not wanted.has_tiny_files(len(sizes), int(sizes.sum())) or fewer >= WORTH_IT * len(sizes):
        return
    mean = float(sizes.mean())
    store_s = len(sizes) * STORE_S / STORE_READS
    yield Finding(
        "tiny-files",
        "problem" if store_s > 10 else "advice",
        f"{count_text(len(sizes), 'file')} of {size_text(mean)} on average are tiny",
        f"every process that opens the dataset reads {len(sizes):,} footers: {open_s:.2f} s here, about {store_s:,.1f} "
        f"s on a store that answers in {STORE_S * 1000:.0f} ms; {count_text(fewer, 'file')} would do",
        "write fewer, larger files",
        {"files": len(sizes), "file_bytes": mean, "store_open_s": store_s, "files_rewritten": fewer},
        (),
    )


def check_statistics(facts: LayoutFacts) -> Iterator[Finding]:
    """Yield a finding for columns that a filter has to read because their minimum and maximum are not stored."""
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


def check_schemas(facts: LayoutFacts, failure: str | None) -> Iterator[Finding]:
    """Yield a finding for files whose columns differ; `failure` is the error of opening."""
    schemas = facts.schemas()
    if len(schemas) < 2:
        return
    others = sum(count for _, count, _ in schemas[1:])
    difference = _difference(schemas[0][0], schemas[1][0])
    effect = failure or "they store the same values in other types, which are cast at every read"
    types = [dict(zip(schema.names, schema.types, strict=True)) for schema, _, _ in schemas]
    if not failure and all(one == types[0] for one in types):
        effect = "the types are the same, so nothing is cast: a column is nullable if it is in one file"
    yield Finding(
        "mixed-schemas",
        "problem" if failure else "advice",
        f"{len(schemas):,} different schemas: {count_text(others, 'file')} of {len(facts.files):,} differ from the "
        f"others, first {schemas[1][2]} ({difference})",
        effect,
        # `rewrite` needs a dataset that opens, so it does not help here.
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
    return "their columns are alike"


def check_metadata(facts: LayoutFacts) -> Iterator[Finding]:
    """Yield findings for a schema that is not stored, and for an outdated `_metadata`."""
    names = [f.name for f in facts.files[0].schema if form_of(f.type) == "bytes"] if facts.files else []
    if not facts.has_schema and names:
        shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
        yield Finding(
            "no-schema",
            "advice",
            "no schema is stored with the dataset",
            f"it is unknown how to decode {count_text(len(names), 'binary column')} ({shown}): bytes come out",
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
            f"it is ignored, so opening reads all {len(facts.files):,} footers; other readers may trust it",
            "delete `_metadata`",
            {"footers": len(facts.files)},
        )
