"""What a training run does with a layout, what `penstock rewrite` would make of the rows, and the sizes to ask it for.

Arithmetic on row counts and on plans. Only `weigh` may read: sizes of rows come from the types, and if a column varies,
some rows of a few row groups are read. It uses the size function of the writer, so a rewrite makes what is predicted.
`checks` compares the existing layout with the one that `aim` returns. After a rewrite with these sizes, `checks` finds
nothing more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dataset import as_parquet
from penstock.dataset.files import fixed_bytes
from penstock.dataset.footers import READ_ERRORS, READ_OPTIONS
from penstock.dataset.unify_types import decoded
from penstock.doctor.dealt import Chunks
from penstock.errors import StoreError
from penstock.plan import Cursor, EpochPlan, Order, Share
from penstock.plan.order import typical_rows
from penstock.plan.plan import READ_FACTOR, Mixing, Plan, Sizes, make_plan
from penstock.plan.shuffled import choose_lanes
from penstock.write.files import GROUP_ROWS
from penstock.write.files import row_bytes as written_bytes
from penstock.write.options import FILE_BYTES, ROW_GROUP_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock.source import Source

LARGE, SMALL = 8, 1 / 16
"""Row groups of more or less than this many times the target size are far too large or small."""
MANY = 64
"""Fewer row groups or files than this cost little, however small they are."""
WORTH_IT = 0.9
"""Another setting is recommended only if it reduces what ranks read by this factor."""
_HALVINGS = 5
"""Sizes to try: the preferred one, and halves of it."""
_SLACK = 1.05
"""If rows differ in size, row groups may have this many times the expected rows."""


class ReadFactor(NamedTuple):
    """Bytes that all ranks together read over bytes needed, and the lanes to start the run with for that."""

    factor: float
    lanes: int | None
    """None: the number that the loader chooses."""


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The run that the dataset is examined for."""

    world: int
    batch_size: int
    row_group_bytes: int
    """Target size of a row group, in memory as Arrow."""
    shuffle_bytes: int

    def plan(self, chunks: Chunks, row_bytes: float, lanes: int | None = None) -> Plan:
        """Return the plan of a shuffled run over such row groups or parts of them."""
        counts, groups = chunks
        chosen = choose_lanes(counts, row_bytes=row_bytes, shuffle_bytes=self.shuffle_bytes, lanes=lanes)
        order = Order("lanes", 0, chosen.lanes, chosen.block, parts=groups is not None)
        sizes = Sizes(row_bytes, row_bytes, self.shuffle_bytes, "row group", groups)
        share = Share(0, self.world, self.batch_size, "drop", False)
        cursor = Cursor.start(0, order, int(counts.sum()))
        return make_plan(
            counts, order=order, cursor=cursor, share=share, sizes=sizes, least_memory=EpochPlan.window_rows
        )

    def reads(self, chunks: Chunks, row_bytes: float) -> ReadFactor:
        """Return the least that all ranks read, with lanes that suit the number of ranks if that helps."""
        most = int(self.shuffle_bytes // (2 * max(typical_rows(chunks.rows), 1) * max(row_bytes, 1.0)))
        best = ReadFactor(self.plan(chunks, row_bytes).read_factor, None)
        for lanes in (self.world, 2 * self.world, 3 * self.world):
            if 1 < lanes <= min(most, len(chunks.rows)):
                factor = self.plan(chunks, row_bytes, lanes).read_factor
                best = ReadFactor(factor, lanes) if factor < WORTH_IT * best.factor else best
        return best

    def is_small(self, counts: NDArray[np.int64], row_bytes: float) -> bool:
        """Tell whether there are many row groups, and far too small ones."""
        return typical_rows(counts) * row_bytes < SMALL * self.row_group_bytes and len(counts) > MANY

    def has_tiny_files(self, files: int, disk: int) -> bool:
        """Tell whether there are many files, smaller than one good row group."""
        return files > MANY and disk / files < self.row_group_bytes


class Aim(NamedTuple):
    """What a rewrite would make, and the options for it."""

    row_group_bytes: int
    """Option of `penstock rewrite`."""
    counts: NDArray[np.int64]
    """Rows of the row groups."""
    files: int
    dissolved: tuple[str, ...]
    """Partition columns that must not stay folders."""
    reads: ReadFactor

    @property
    def flags(self) -> tuple[str, ...]:
        """The options of `penstock rewrite` that differ from its defaults."""
        size = (f"--row-group-bytes {_exact_size(self.row_group_bytes)}",)
        return (size if self.row_group_bytes != ROW_GROUP_BYTES else ()) + (
            ("--partition-by ''",) if self.dissolved else ()
        )


def aim(rows: Rows, wanted: TrainingRun, *, shuffle: bool) -> Aim:
    """Return the layout to write: with the largest row groups that suit the run, else the best there are.

    Partition folders stay, unless rows are shuffled across them, or row groups or files would be too small within them.
    """
    if rows.total * rows.after <= wanted.row_group_bytes:  # one good row group
        dissolved = rows.partitions if shuffle or wanted.has_tiny_files(len(rows.folders), rows.disk) else ()
        return _made(rows, wanted, ROW_GROUP_BYTES, dissolved)
    trials = _trials(rows, wanted, shuffle=shuffle)
    best = next(trials)
    while not best.is_good and (trial := next(trials, None)) is not None:
        if trial.is_good or trial.is_better(best):
            best = trial
    return best.aim


class _Trial(NamedTuple):
    """A layout, and its problems."""

    aim: Aim
    faults: int
    """Small row groups, tiny files."""

    @property
    def is_good(self) -> bool:
        return not self.faults and self.aim.reads.factor <= READ_FACTOR

    def is_better(self, other: _Trial) -> bool:
        fewer = self.aim.reads.factor < WORTH_IT * other.aim.reads.factor
        return self.faults < other.faults or (self.faults == other.faults and fewer)


def _trials(rows: Rows, wanted: TrainingRun, *, shuffle: bool) -> Iterator[_Trial]:
    # The writer counts encoded bytes: if these are far from those in memory, the target size means the latter.
    times = round(math.log2(max(rows.written, 1.0) / max(rows.after, 1.0)))
    largest = wanted.row_group_bytes << times if times > 0 else wanted.row_group_bytes >> -times
    for dissolved in dict.fromkeys([rows.partitions if shuffle else (), rows.partitions]):
        for halving in range(_HALVINGS):
            made = _made(rows, wanted, max(1, largest >> halving), dissolved)
            small, tiny = wanted.is_small(made.counts, rows.after), wanted.has_tiny_files(made.files, rows.disk)
            yield _Trial(made, small + tiny)


def _made(rows: Rows, wanted: TrainingRun, row_group_bytes: int, dissolved: tuple[str, ...]) -> Aim:
    folders = np.array([rows.total], np.int64) if dissolved else rows.folders
    counts = _cut(folders, row_group_bytes / max(rows.written, 1.0))
    files = int(np.maximum(1, np.ceil(folders * rows.written / FILE_BYTES)).sum())
    reads = wanted.reads(Chunks(counts), rows.after)
    if rows.vary:
        longer = Chunks(_cut(folders, _SLACK * row_group_bytes / max(rows.written, 1.0)))
        reads = max(reads, wanted.reads(longer, rows.after), key=lambda found: found.factor)
    return Aim(row_group_bytes, counts, files, dissolved, reads)


def _cut(folders: NDArray[np.int64], each: float) -> NDArray[np.int64]:
    """Return the rows of the row groups that the writer makes of folders: full ones, and the rest of each folder."""
    full = max(1, min(int(each), GROUP_ROWS))
    parts = [np.append(np.full(count // full, full, np.int64), count % full) for count in folders.tolist()]
    counts = np.concatenate(parts)
    return counts[counts > 0]


def poorly_mixed(plan: Plan) -> bool:
    """Tell whether a batch of a shuffled run draws from few row groups, and from fewer than a random one."""
    is_whole = plan.order.lanes == 1 and (plan.order.block or 0) >= plan.num_rows
    mixing = Mixing(plan.chunks_per_batch, plan.groups_per_batch, plan.permuted_groups_per_batch)
    return not is_whole and mixing.is_poor(plan.share.batch_size)


def _exact_size(number: int) -> str:
    units = ((30, "GiB"), (20, "MiB"), (10, "KiB"), (0, ""))
    return next(f"{number >> power}{unit}" for power, unit in units if number % (1 << power) == 0)


SAMPLES, SAMPLE_ROWS = 8, 256
"""Row groups to read if rows vary, and rows of each."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a dataset, as far as their layout is concerned."""

    folders: NDArray[np.int64]
    """Rows of each partition folder, in order; all rows if there are none."""
    partitions: tuple[str, ...]
    """Columns that are folders."""
    memory: float
    """Bytes of a row in memory as Arrow."""
    after: float
    """The same after a rewrite: dictionaries have become plain values."""
    written: float
    """Bytes of a row as `penstock.write` counts them when it cuts row groups."""
    vary: bool
    """Whether rows differ in size, so that both are estimates."""
    disk: int
    """Bytes of all files."""

    @property
    def total(self) -> int:
        """All rows."""
        return int(self.folders.sum())


def weigh(source: Source, disk: int) -> Rows:
    """Return the sizes of the rows of a dataset; reads some rows if columns vary in width."""
    fields = [field.with_type(decoded(field.type)) for field in source.facts.arrow_schema]
    vary = any(fixed_bytes(field) is None for field in fields)
    memory = after = source.row_bytes()
    if vary or any(pa.types.is_nested(field.type) or isinstance(field.type, pa.BaseExtensionType) for field in fields):
        words = [field.name for field in source.facts.arrow_schema if pa.types.is_dictionary(field.type)]
        written, spelt = _sampled(source, words)
        after += spelt - source.row_bytes(words)
    else:
        one = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in fields], names=[f.name for f in fields])
        written = float(written_bytes(one)[0])
    return Rows(_folders(source), tuple(source.facts.constants), memory, after, written, vary, disk)


def _folders(source: Source) -> NDArray[np.int64]:
    facts = source.facts
    rows = np.bincount(facts.chunk_file, weights=facts.chunk_rows, minlength=len(facts.files)).astype(np.int64)
    if not facts.constants:
        return np.array([rows.sum()], np.int64)
    found: dict[tuple[Any, ...], int] = {}
    for key, count in zip(zip(*facts.constants.values(), strict=True), rows.tolist(), strict=True):
        found[key] = found.get(key, 0) + count
    return np.array([count for count in found.values() if count], np.int64)


def _sampled(source: Source, words: list[str]) -> tuple[float, float]:
    """Return the bytes of a row for the writer, and those in memory of `words`, columns that were dictionaries.

    The mean over some row groups, weighted by their rows; unreadable ones are left out.
    """
    num_chunks = len(source.facts.chunk_rows)
    total, rows = np.zeros(2), 0
    for chunk in np.unique(np.linspace(0, num_chunks - 1, min(SAMPLES, num_chunks)).astype(np.int64)).tolist():
        try:
            group, file = as_parquet(source).part(chunk), int(source.facts.chunk_file[chunk])
            scalars = {name: values[file] for name, values in source.facts.constants.items()}
            # Through a buffer, so that the first rows do not read the whole row group.
            with replace(group, watched=False).opened() as stream:
                reader = pq.ParquetFile(stream, metadata=group.index.arrow, buffer_size=1 << 20, **READ_OPTIONS)
                batch = next(reader.iter_batches(SAMPLE_ROWS, row_groups=[group.number], use_threads=False), None)
            if batch is None:
                raise group.bad("no rows came", "write the file again")
            columns = [column.cast(decoded(column.type)) for column in batch.columns]
            columns += [pa.repeat(scalar, batch.num_rows).cast(decoded(scalar.type)) for scalar in scalars.values()]
            batch = pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, *scalars])
        except StoreError:
            raise
        except READ_ERRORS:
            continue
        spelt = sum(batch.column(name).nbytes for name in words if name in batch.schema.names) / batch.num_rows
        weight = int(source.facts.chunk_rows[chunk])
        total += weight * np.array([written_bytes(batch).mean(), spelt])
        rows += weight
    if not rows:
        return max(1.0, source.row_bytes()), source.row_bytes(words)
    return float(total[0] / rows), float(total[1] / rows)
