"""Is a dataset sorted by label, and what does that do to batches?

Reads one column of a few dozen row groups, spread over the dataset, and draws batches from them in three ways: as
stored, as the shuffle of the loader would with the row groups that a batch draws from, and from all rows. Counts the
labels in a batch. Guesses the label column by its name unless it is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.doctor.dealt import INDEX
from penstock.doctor.facts import is_plain
from penstock.doctor.report import Finding
from penstock.errors import ColumnNotFound, PlanError, close_names
from penstock.plan.plan import AS_RANDOM
from penstock.source import Source, read_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.doctor.target_layout import TrainingRun
    from penstock.plan.plan import Plan

NAMES = ("label", "labels", "class", "class_id", "cls", "target", "y", "category", "label_id", "target_id")
SAMPLES = 64
"""Row groups to read."""
MOST_ROWS = 1 << 16
"""Rows of each of them."""
TRIALS = 32
"""Batches drawn of each kind."""
SORTED = 0.5
"""If batches have less than this share of the labels of a random batch, the dataset is called sorted."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Labels in a batch, on average, and in the rows that were read."""

    stored: float
    """In batches of neighbours."""
    shuffled: float
    """In batches of the loader's shuffle."""
    random: float
    """In batches drawn from all rows."""
    labels: int


def find_label(schema: pa.Schema, asked: str | None) -> str | None:
    """Return the label column: the given one, else one with a usual name; None if there is none.

    Raises:
        ColumnNotFound: there is no such column.
        PlanError: its values are not plain.
    """
    if asked is None:
        lower = {name.lower(): name for name in schema.names}
        found = [lower[name] for name in NAMES if name in lower and is_plain(schema.field(lower[name]).type)]
        return found[0] if found else None
    if asked not in schema.names:
        raise ColumnNotFound(f"no column {asked!r} for the label; {close_names(asked, schema.names)}")
    if not is_plain(schema.field(asked).type):
        raise PlanError(f"label {asked!r} is stored as {schema.field(asked).type}; it must be numbers, text or times")
    return asked


def check_label(source: Source, label: str, plans: tuple[Plan, Plan | None], wanted: TrainingRun) -> Iterator[Finding]:
    """Yield a finding if batches of neighbours have far fewer labels than random ones.

    `plans` are those of a shuffled run now, and with the pages of all files indexed, if they are not.
    """
    plan, indexed = plans
    groups = read_labels(source, label)
    found = mixture(groups, wanted.batch_size, plan.groups_per_batch)
    if found.labels < 2 or found.stored >= SORTED * found.random:
        return
    poor, good = found.shuffled < SORTED * found.random, found.shuffled >= AS_RANDOM * found.random
    numbers = {"stored": found.stored, "shuffled": found.shuffled, "random": found.random, "labels": found.labels}
    shuffle, in_parts = "shuffle once on disk", ""
    flags: tuple[str, ...] | None = None if good else ("--shuffle",)
    if source.facts.constants:  # the rows of a folder stay together, shuffled or not
        shuffle += f", without the folders of {', '.join(map(repr, source.facts.constants))}"
    cure = shuffle if poor else "train with shuffle=True" if good else f"train with shuffle=True, or {shuffle}"
    by_index = False
    if not good and indexed is not None:
        better = mixture(groups, wanted.batch_size, indexed.groups_per_batch)
        in_parts, numbers["indexed"] = f" ({better.shuffled:.1f} if row groups are read in parts)", better.shuffled
        by_index = better.shuffled >= (SORTED if poor else AS_RANDOM) * better.random
    if by_index:
        cure, flags = f"{INDEX}, and train with shuffle=True; or {shuffle}", None
    yield Finding(
        "sorted-by-label",
        "problem" if poor else "advice",
        f"rows with the same {label!r} are stored together",
        f"a batch of {wanted.batch_size:,} has {found.stored:.1f} labels as stored and with shuffle='groups', "
        f"{found.shuffled:.1f} with shuffle=True{in_parts}, {found.random:.1f} drawn from all rows "
        f"(of {found.labels:,})",
        cure,
        numbers,
        flags,
        index=by_index,
    )


def read_labels(source: Source, label: str) -> list[NDArray[np.int64]]:
    """Return the labels of some row groups, as numbers, in stored order; reads that column only."""
    num_chunks = len(source.facts.chunk_rows)
    chosen = np.unique(np.linspace(0, num_chunks - 1, min(SAMPLES, num_chunks)).astype(np.int64))
    codes: dict[Any, int] = {}
    found = []
    for chunk in chosen.tolist():
        column = read_table(source, chunk, [label]).column(0).slice(0, MOST_ROWS).combine_chunks().dictionary_encode()
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        words = [codes.setdefault(value, len(codes)) for value in [*column.dictionary.to_pylist(), None]]
        indices = np.array(column.indices.fill_null(len(words) - 1).to_pylist(), np.int64)
        found.append(np.array(words, np.int64)[indices])
    return found


def mixture(groups: Sequence[NDArray[np.int64]], batch_size: int, groups_per_batch: float | None) -> Mixture:
    """Draw batches of each kind and count their labels. Deterministic."""
    rng = np.random.default_rng(0)
    everything = np.concatenate(groups)
    each = max(1, round(groups_per_batch or len(groups)))
    stored, shuffled, whole = [], [], []
    for _ in range(TRIALS):
        # A batch of consecutive rows, over as many row groups as needed.
        first = int(rng.integers(len(groups)))
        start = int(rng.integers(len(groups[first])))
        picked, group = groups[first][start : start + batch_size], first + 1
        while len(picked) < batch_size and group < len(groups):
            picked = np.concatenate([picked, groups[group][: batch_size - len(picked)]])
            group += 1
        stored.append(len(np.unique(picked)))
        chosen = rng.choice(len(groups), size=min(each, batch_size), replace=each > len(groups))
        share = np.bincount(np.arange(batch_size) % len(chosen))
        rows = [rng.choice(groups[group], size=count) for group, count in zip(chosen, share, strict=True)]
        shuffled.append(len(np.unique(np.concatenate(rows))))
        whole.append(len(np.unique(rng.choice(everything, size=batch_size))))
    stored_mean, shuffled_mean, whole_mean = (float(np.mean(counts)) for counts in (stored, shuffled, whole))
    return Mixture(stored_mean, shuffled_mean, whole_mean, len(np.unique(everything)))
