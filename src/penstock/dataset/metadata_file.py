"""Take the rows of all files from `_metadata`, which copies the footers of a dataset, in place of reading them.

`scan` asks after it has read the first footer. The answer is catalog entries with their rows and statistics filled in;
an outdated `_metadata`, or one that lacks a file, is not used.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.dataset.catalog import DataFile, Root
from penstock.dataset.footer_statistics import FooterSummary, summary_of
from penstock.dataset.footers import READ_ERRORS, Footer, read_footer
from penstock.errors import BadFile, StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.dataset.format import FileIndex

METADATA_FILE = "_metadata"
_SAMPLES = 4


@dataclass(slots=True)
class _Listed:
    """What `_metadata` says about one file."""

    rows: list[int] = field(default_factory=list)
    """Of each row group."""
    stored_bytes: list[int] = field(default_factory=list)
    """Of each row group, uncompressed."""
    groups: list[int] = field(default_factory=list)
    """Their numbers in `_metadata`."""
    least_size: int = 0
    """Where the last column chunk ends: a shorter file is another one."""
    summary: FooterSummary | None = None


def fill_entries(files: Sequence[DataFile], base: FileIndex) -> list[DataFile] | None:
    """Return the files with rows and statistics from `_metadata`; None if it does not list them all, or is outdated.

    `base` is the footer of the first file. A few other footers are read and compared: an outdated `_metadata` lists
    files that have other rows, types or content.
    """
    roots = {id(file.root): file.root for file in files}.values()
    if not isinstance(base, Footer) or not all(root.names and METADATA_FILE in root.names for root in roots):
        return None
    listed = {id(root): _read(root, base) for root in roots}
    found = [listed[id(file.root)].get(file.relative) for file in files]
    last = len(files) - 1
    samples = {last * step // max(1, _SAMPLES - 1) for step in range(_SAMPLES)}
    filled: list[DataFile] = []
    for number, (file, known) in enumerate(zip(files, found, strict=True)):
        if known is None or file.size is None or file.size < known.least_size:
            return None
        if number in samples and not _agrees(file, known, base):
            return None
        filled.append(
            replace(file, part_rows=tuple(known.rows), part_bytes=tuple(known.stored_bytes), statistics=known.summary)
        )
    return filled


def _read(root: Root, base: Footer) -> dict[str, _Listed]:
    """Return what `_metadata` says about each file; {} if it cannot be used."""
    try:
        footer = read_footer(DataFile(root, METADATA_FILE, None))
        chunks, rows = footer.chunks, footer.part_rows
        if not footer.schema.equals(base.schema):
            return {}
    except StoreError:
        raise
    except (BadFile, *READ_ERRORS):
        return {}
    listed: dict[str, _Listed] = {}
    for group, (path, num_rows, stored) in enumerate(zip(chunks.file_paths, rows, footer.part_bytes, strict=True)):
        one = listed.setdefault(path, _Listed())
        one.rows.append(num_rows)
        one.stored_bytes.append(stored)
        one.groups.append(group)
        if chunks.leaves:
            one.least_size = max(one.least_size, chunks.range_of(group, len(chunks.leaves) - 1)[1])
    for one in listed.values():
        one.summary = FooterSummary.of(chunks, one.groups)
    return listed


def _agrees(file: DataFile, known: _Listed, base: Footer) -> bool:
    try:
        footer = read_footer(file)
        same = list(footer.part_rows) == known.rows and footer.schema.equals(base.schema)
        return same and known.summary is not None and summary_of(footer).content == known.summary.content
    except StoreError:
        raise
    except (BadFile, *READ_ERRORS):
        return False
