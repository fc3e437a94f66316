"""The layout of a dataset according to its footers: sizes, statistics, schemas, stored metadata, bad files.

First stage of the doctor. It looks at every footer while the opener reads it, and continues if files are damaged or
disagree, since that is to be reported. Reads no data.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import form_of
from penstock.dataset.catalog import DataFile, FileCatalog
from penstock.dataset.common_metadata import COMMON_METADATA, SUMMARY_METADATA, read_common_metadata
from penstock.dataset.footers import Footer, read_footer
from penstock.dataset.parquet import ParquetFormat
from penstock.dataset.scan import Scan, scan_files
from penstock.errors import BadFile
from penstock.progress import progress
from penstock.schema.stored import PETASTORM_SCHEMA_KEY, SCHEMA_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One readable file."""

    path: str
    size: int
    rows: tuple[int, ...]
    """Of each row group."""
    schema: pa.Schema
    stored: bool
    """Whether the footer has a schema of ours or of Petastorm."""
    no_statistics: dict[str, tuple[int, int]]
    """Plain columns without minimum and maximum: number of row groups, and their bytes on disk."""


@dataclass(frozen=True, slots=True)
class LayoutFacts:
    """The layout of a dataset."""

    files: list[FileFacts]
    bad: list[tuple[str, str]]
    """Path and reason of unreadable files."""
    is_folder: bool
    """Whether one folder was given, which may have metadata files."""
    side_files: frozenset[str]
    """Which of `_metadata` and `_common_metadata` exist."""
    side_keys: frozenset[bytes]
    """Keys in `_common_metadata`."""
    summary_rows: dict[str, list[int]] | None = field(default=None)
    """Rows of the row groups of each file according to `_metadata`, by relative path; None without one."""

    @property
    def file_bytes(self) -> NDArray[np.int64]:
        """Size of each file."""
        return np.array([file.size for file in self.files], np.int64)

    @property
    def group_rows(self) -> NDArray[np.int64]:
        """Rows of every row group that has any, in order."""
        rows = np.array([count for file in self.files for count in file.rows], np.int64)
        return rows[rows > 0]

    @property
    def has_schema(self) -> bool:
        """Whether a schema is stored anywhere."""
        return bool(self.side_keys & {SCHEMA_KEY, PETASTORM_SCHEMA_KEY}) or any(file.stored for file in self.files)

    def schemas(self) -> list[tuple[pa.Schema, int, str]]:
        """Return the Arrow schemas that occur, most frequent first: schema, number of files, the first such file.

        Columns in another order are the same schema: they are read by name.
        """
        counts: Counter[pa.Schema] = Counter()
        first: dict[pa.Schema, str] = {}
        known: dict[tuple[pa.Field, ...], pa.Schema] = {}
        for file in self.files:
            fields = tuple(sorted(file.schema, key=lambda field: str(field.name)))
            schema = known.setdefault(fields, file.schema)
            counts[schema] += 1
            first.setdefault(schema, file.path)
        return [(schema, count, first[schema]) for schema, count in counts.most_common()]

    def no_statistics(self) -> dict[str, tuple[int, int]]:
        """Return plain columns without statistics, over all files: row groups and bytes on disk."""
        found: dict[str, tuple[int, int]] = {}
        for file in self.files:
            for name, (groups, size) in file.no_statistics.items():
                before = found.get(name, (0, 0))
                found[name] = before[0] + groups, before[1] + size
        return found


def gather_facts(source: Any, storage_options: Mapping[str, Any] | None, filesystem: Any) -> tuple[LayoutFacts, Scan]:
    """Read the footers of all files as opening does; return their facts, and the scan from which a source is made.

    Raises:
        DatasetNotFound: nothing is there, no Parquet file, or a dataset that is still being written.
    """
    files = FileCatalog(source, storage_options, filesystem).entries()
    found: dict[int, FileFacts] = {}
    with progress(len(files), "reading footers", unit="files") as bar:

        def look(file: DataFile, footer: Footer) -> None:
            schema = footer.arrow.schema.to_arrow_schema()
            plain = {field.name for field in schema if is_plain(field.type)}
            chunks = footer.chunks
            without: dict[str, tuple[int, int]] = {}
            for name in sorted(plain & chunks.flat.keys()):
                leaf = chunks.flat[name]
                nulls, num_values = chunks.null_count[:, leaf], chunks.num_values[:, leaf]
                # Only nulls, or NaN, have no minimum: no writer stores one.
                silent = (nulls >= 0) & ((nulls == num_values) | pa.types.is_floating(schema.field(name).type))
                lacking = [group for group in np.flatnonzero(~silent).tolist() if not chunks.has_bounds(group, leaf)]
                if lacking:
                    without[name] = len(lacking), int(chunks.compressed_bytes[lacking, leaf].sum())
            found[id(file)] = FileFacts(
                path=file.relative,
                size=footer.size,
                rows=tuple(footer.part_rows),
                schema=schema.remove_metadata(),
                stored=bool({SCHEMA_KEY, PETASTORM_SCHEMA_KEY} & set(footer.arrow.metadata or {})),
                no_statistics=without,
            )
            bar.update()

        scan = scan_files(files, ParquetFormat(), on_error="skip", stored_schemas=True, visit=look)
    bad = dict(scan.skipped)
    good = [found[id(file)] for file in files if id(file) in found]
    named = [(file.relative, bad[file.path]) for file in files if id(file) not in found]
    return _with_side_files(good, named, files[0]), scan


def is_plain(kind: pa.DataType) -> bool:
    """Tell whether filters on such a column are common: numbers, text, times, booleans; no encoded cells, no lists."""
    plain = ("number", "bool", "text", "temporal", "decimal")
    return form_of(kind.value_type if pa.types.is_dictionary(kind) else kind) in plain


def _with_side_files(good: list[FileFacts], bad: list[tuple[str, str]], first: DataFile) -> LayoutFacts:
    root = first.root
    if root.names is None:
        return LayoutFacts(good, bad, False, frozenset(), frozenset())
    names = frozenset(root.names)
    keys: frozenset[bytes] = frozenset()
    if COMMON_METADATA in names:
        try:
            keys = frozenset(read_common_metadata(root))
        except BadFile as error:
            bad.append((COMMON_METADATA, str(error)))
    rows = _summary_rows(first) if SUMMARY_METADATA in names else None
    return LayoutFacts(good, bad, True, names, keys, rows)


def _summary_rows(first: DataFile) -> dict[str, list[int]]:
    try:
        footer = read_footer(DataFile(first.root, SUMMARY_METADATA, None))
        groups = zip(footer.chunks.file_paths, footer.part_rows, strict=True)
    except BadFile:
        return {}
    rows: dict[str, list[int]] = {}
    for path, num_rows in groups:
        rows.setdefault(path, []).append(num_rows)
    return rows
