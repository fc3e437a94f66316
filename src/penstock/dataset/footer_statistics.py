"""What the footers of a Parquet dataset say about its values: null counts, bounds, and a digest of the content.

`ParquetSource` calls this when a filter, a nullable column or a state needs it, never to open a dataset or to read a
row group. Works on the footers that are in memory, on what was packed of others, and reads the rest again.
"""

from __future__ import annotations

import hashlib
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import leaf_of
from penstock.dataset.catalog import threads_for
from penstock.dataset.column_chunks import ColumnChunks, leaves_below
from penstock.dataset.thrift import ThriftError
from penstock.dataset.unify_types import decoded
from penstock.errors import BadFile
from penstock.source import SourceFacts, Statistics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.dataset.footers import Footer
    from penstock.dataset.parquet import ParquetSource


class FooterSummary(NamedTuple):
    """What is needed of the footers of all files: small enough to be kept for each."""

    content: bytes
    """Digest of offsets, sizes and statistics of all column chunks. Changing how breaks resumed runs."""
    paths: list[str]
    """Of the leaves; none where the footer is damaged."""
    nulls: NDArray[np.int64]
    """Nulls and null elements of each row group and leaf: an array of shape (2, row groups, leaves)."""

    @classmethod
    def of(cls, chunks: ColumnChunks, groups: Sequence[int] | slice = slice(None)) -> FooterSummary:
        """Return the summary of row groups: all of a footer, or those of one file in `_metadata`."""
        digests = chunks.digests[groups] if isinstance(groups, slice) else [chunks.digests[group] for group in groups]
        content = hashlib.blake2b(b"".join(digests), digest_size=16).digest()
        nulls = np.stack([chunks.null_count[groups], chunks.null_elements()[groups]])
        return cls(content, [leaf.path for leaf in chunks.leaves], nulls)

    @classmethod
    def of_bytes(cls, raw: bytes) -> FooterSummary:
        """Return the summary of a footer; of a damaged one, whose error is raised by reading, a digest of its bytes."""
        try:
            return cls.of(ColumnChunks(raw))
        except ThriftError:
            return cls(hashlib.blake2b(raw, digest_size=16).digest(), [], np.empty((2, 0, 0), np.int64))


def summary_of(footer: Footer) -> FooterSummary:
    """Return the summary of a footer; parses its column chunks if they have not been."""
    try:
        return FooterSummary.of(footer.chunks)
    except BadFile:
        return FooterSummary.of_bytes(footer.raw)


class FooterStatistics:
    """The statistics of one source. Null counts and content are computed once, by the first call that needs them."""

    def __init__(self, given: dict[int, FooterSummary]) -> None:
        self._given = given
        self._content: str | None = None
        self._nulls: tuple[dict[str, list[int]], NDArray[np.int64]] | None = None

    def complete(self, source: ParquetSource) -> None:
        """Compute what is kept, before the source is pickled without its footers."""
        self.content(source)
        self._null_counts(source)
        self._given = {}

    def content(self, source: ParquetSource) -> str:
        """Return a digest of all footers."""
        if self._content is None:
            sums = hashlib.blake2b(b"penstock.content.v1\0", digest_size=16)
            for file in range(len(source.entries)):
                sums.update(self._summary(source, file).content)
            self._content = sums.hexdigest()
        return self._content

    def null_counts(self, source: ParquetSource, column: str) -> Statistics | None:
        """Return the null counts of a column; None for nested ones."""
        below, nulls = self._null_counts(source)
        leaves = below.get(column, ())
        return Statistics(*nulls[:, :, leaves[0]]) if len(leaves) == 1 else None

    def bounds(self, source: ParquetSource, column: str, chunks: NDArray[np.int64] | None) -> Statistics:
        """Return null counts and bounds of a column, at least of these chunks (None: of all)."""
        facts = source.facts
        kind = decoded(leaf_of(facts.arrow_schema.field(column).type))
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        nulls = np.full((2, len(facts.chunk_rows)), -1, np.int64)
        found: list[tuple[pa.Scalar | None, pa.Scalar | None]] = [(None, None)] * len(facts.chunk_rows)
        for file, here in by_file(facts, np.arange(len(facts.chunk_rows)) if chunks is None else chunks):
            known = column_chunks(source, file)
            leaves = [] if known is None else known.below(column)
            if known is not None and len(leaves) == 1:
                groups = facts.chunk_part[here]
                nulls[:, here] = known.null_count[groups, leaves[0]], known.null_elements()[groups, leaves[0]]
                for chunk, group in zip(here.tolist(), groups.tolist(), strict=True):
                    found[chunk] = known.bounds(group, leaves[0], kind) or (None, None)
        return Statistics(*nulls, *(pa.array([one[end] for one in found], kind) for end in (0, 1)))

    def _null_counts(self, source: ParquetSource) -> tuple[dict[str, list[int]], NDArray[np.int64]]:
        """Return the leaves of each column, and of all leaves their nulls and null elements in every chunk."""
        if self._nulls is None:
            facts = source.facts

            def look(file: int) -> FooterSummary | None:
                try:
                    return self._summary(source, file)
                except BadFile:  # raised when the file is read
                    return None

            with ThreadPoolExecutor(threads_for(source.entries[0].root.fs)) as pool:
                summaries = list(pool.map(look, range(len(source.entries))))
            paths: dict[str, int] = {}
            for path in (path for known in summaries if known is not None for path in known.paths):
                paths.setdefault(path, len(paths))
            nulls = np.full((2, len(facts.chunk_rows), len(paths)), -1, np.int64)
            for file, here in by_file(facts, np.arange(len(facts.chunk_rows))):
                known = summaries[file]
                if known is not None and known.paths:
                    leaves = np.array([paths[path] for path in known.paths], np.int64)
                    nulls[:, here[:, None], leaves] = known.nulls[:, facts.chunk_part[here]]
            self._nulls = leaves_below(list(paths)), nulls
        return self._nulls

    def _summary(self, source: ParquetSource, file: int) -> FooterSummary:
        """Return the summary of a footer, which is read if it has not been; BadFile if it cannot be."""
        if file in self._given:
            return self._given[file]
        if source.indexes.get(file) is None and file in source.indexes.packed:
            return FooterSummary.of_bytes(zlib.decompress(source.indexes.packed[file]))
        return summary_of(source.footer(file))


def by_file(facts: SourceFacts, chunks: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Return each file that has some of the chunks (ascending), with those chunks."""
    files, first = np.unique(facts.chunk_file[chunks], return_index=True)
    return zip(files.tolist(), np.split(chunks, first[1:]), strict=False)  # no chunks: one part without a file


def column_chunks(source: ParquetSource, file: int) -> ColumnChunks | None:
    """Return what the footer of a file says about its column chunks; None if it cannot be read."""
    try:
        return source.footer(file).chunks
    except BadFile:
        return None
