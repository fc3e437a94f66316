"""`penstock.doctor.examine`: what is wrong with a dataset for training, how much it costs, and what to do.

Sees all modules of the doctor: `facts` reads footers, `dealt` says what is read in parts, `target_layout` measures rows
and plans what a rewrite would make, `checks` and `labels` judge, `report` is the result. Changes nothing on disk.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.dataset.parquet import source_of
from penstock.doctor import checks
from penstock.doctor.dealt import find_dealt
from penstock.doctor.facts import LayoutFacts, gather_facts
from penstock.doctor.labels import check_label, find_label
from penstock.doctor.report import DoctorReport, Finding
from penstock.doctor.target_layout import TrainingRun, aim, weigh
from penstock.errors import BadFile, MetadataError, PlanError, SchemaError, UnsupportedFormat
from penstock.keywords import warn_renamed
from penstock.openers import find_opener
from penstock.options import SHUFFLE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.dataset.scan import Scan
    from penstock.source import Source

WORLD, BATCH_SIZE, ROW_GROUP_BYTES = 8, 256, 16 << 20


def examine(  # noqa: PLR0913 -- a public function takes flat keywords
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    label: str | None = None,
    world: int = WORLD,
    batch_size: int = BATCH_SIZE,
    row_group_bytes: int = ROW_GROUP_BYTES,
    shuffle_bytes: int = SHUFFLE_BYTES,
    window_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> DoctorReport:
    """Examine a dataset for a shuffled training run, and return what could be better.

    Reads all footers once, one row group to measure a row, and the label column of at most 64 row groups. Continues if
    files are damaged or disagree.

        >>> print(penstock.doctor.examine("s3://bucket/frames", world=64))

    Args:
        source: As for `penstock.open`.
        label: Column by which rows should be mixed; default: one with a usual name (label, class, target ...).
        world: Ranks of the run.
        batch_size: Rows of a batch on each rank.
        row_group_bytes: Target size of row groups, in memory.
        shuffle_bytes: Bytes of the run's shuffle buffer.
        window_bytes: The deprecated name of `shuffle_bytes`.
        storage_options: For the filesystem of a URL.
        filesystem: A pyarrow or fsspec filesystem to use instead.

    Raises:
        DatasetNotFound: Nothing is there, or it is still being written.
        ColumnNotFound: There is no column `label`.
        UnsupportedFormat: The URL belongs to a custom source.
    """
    if window_bytes is not None:
        warn_renamed("window_bytes", "shuffle_bytes")
        shuffle_bytes = window_bytes
    for name, value in (("world", world), ("batch_size", batch_size), ("row_group_bytes", row_group_bytes)):
        if value < 1:
            raise PlanError(f"{name} must be at least 1; got {value}")
    if filesystem is None and find_opener(source) is not None:
        raise UnsupportedFormat(f"the doctor examines Parquet files; {source} is opened by a custom source")
    wanted = TrainingRun(world, batch_size, row_group_bytes, shuffle_bytes)
    start = time.perf_counter()
    facts, scan = gather_facts(source, storage_options, filesystem)
    opened, failure = _open(scan)
    open_s = time.perf_counter() - start
    found, notes = list(checks.check_files(facts)), list[str]()
    if opened is not None and not len(opened.facts.chunk_rows):
        if facts.files:
            what, why = "the dataset has no rows", "there is nothing to train on"
            found.append(Finding("no-rows", "problem", what, why, "write it", {"files": len(facts.files)}))
    else:
        found += [*checks.check_schemas(facts, failure), *checks.check_metadata(facts), *checks.check_statistics(facts)]
    if opened is None:
        found = [replace(finding, flags=None) for finding in found]  # `rewrite` needs a dataset that opens
        if not any(finding.severity == "problem" for finding in found):
            what, why = "the dataset does not open", failure or ""
            found.append(Finding("does-not-open", "problem", what, why, "see the message", {}))
    elif len(opened.facts.chunk_rows):
        found, notes = _judge(opened, facts, wanted, (label, open_s), found)
    found.sort(key=lambda finding: finding.severity != "problem")
    names = tuple(str(os.fspath(name)) for name in ([source] if isinstance(source, str | os.PathLike) else source))
    sizes = len(facts.files), len(facts.group_rows), int(facts.file_bytes.sum())
    rows = int(facts.group_rows.sum())
    return DoctorReport(" ".join(names), rows, *sizes, open_s, tuple(found), tuple(notes), names)


def _open(scan: Scan) -> tuple[Source | None, str | None]:
    """Open the dataset, without damaged files; or return why it does not open."""
    try:
        return source_of(scan, on_error="skip"), None
    except (SchemaError, MetadataError, BadFile) as error:
        return None, " ".join(str(error).split())


def _judge(
    opened: Source,
    facts: LayoutFacts,
    wanted: TrainingRun,
    known: tuple[str | None, float],
    found: list[Finding],
) -> tuple[list[Finding], list[str]]:
    """Add findings about rows and their layout; every recommended rewrite leads to a good layout."""
    label, open_s = known
    rows, dealt = weigh(opened, int(facts.file_bytes.sum())), find_dealt(opened)
    name = find_label(opened.facts.arrow_schema, label)
    notes = []
    labels: list[Finding] = []
    if name is None:
        notes.append("no column looks like a label, so sorting was not checked; name one with label= (--label)")
    else:
        indexed = None if dealt.indexed is None else wanted.plan(dealt.indexed, rows.memory)
        labels = list(check_label(opened, name, (wanted.plan(dealt.now, rows.memory), indexed), wanted))
    shuffle = any(finding.flags is not None for finding in labels)
    best = aim(rows, wanted, shuffle=shuffle)
    others = [*found, *checks.check_groups(dealt, rows, wanted, best)]
    others += checks.check_file_sizes(facts, open_s, wanted, best.files)
    if not shuffle and any(finding.flags is not None for finding in others):
        # The rows are written again in any case: shuffle them too, unless an index is all that they need.
        labels = [finding if finding.index else replace(finding, flags=("--shuffle",)) for finding in labels]
        shuffle = any(finding.flags is not None for finding in labels)
        if shuffle:
            best = aim(rows, wanted, shuffle=True)
            others = [*found, *checks.check_groups(dealt, rows, wanted, best)]
            others += checks.check_file_sizes(facts, open_s, wanted, best.files)
    found = [*others, *labels]
    if best.dissolved and any(finding.flags is not None for finding in found):
        what = "shuffling inside each folder does not shuffle the dataset" if shuffle else "each has too few rows"
        notes.insert(0, f"the rewrite removes the partition folders of {', '.join(map(repr, best.dissolved))}: {what}")
    notes = [*checks.note_lanes(dealt.now, rows.memory, wanted, best), *notes]
    return [f if f.flags is None else replace(f, flags=(*best.flags, *f.flags)) for f in found], notes
