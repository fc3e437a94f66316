"""Read one row group of one file, and say exactly what is wrong when that fails.

`ParquetSource.read` calls `read_columns` with a footer at hand. Local files are opened for each call and read by
pyarrow itself; from other stores, and through a cache, the bytes of the columns are fetched first (see
`StoredRowGroup.opened`). One `ParquetFile` for each call, because they are not thread-safe. Decodes no cells.

After a read the file is compared with the one whose footer was read (`StoredRowGroup.check`): the footer does not
describe the bytes of a file that was written again since.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dataset.expand import MemoryLimit, read_unknown, unknown_sizes
from penstock.dataset.footers import READ_ERRORS, READ_OPTIONS, Footer, read_footer
from penstock.dataset.format import OTHER_INDEX, REOPEN, FilePart
from penstock.errors import BadFile, FileChanged, StoreError
from penstock.schema.arrow import flatten_structs
from penstock.storage.faults import attempt
from penstock.storage.remote_store import open_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.dataset.cached import CachedFiles
    from penstock.storage.store import Range

CAN_VERIFY = int(pa.__version__.split(".", 1)[0]) >= 15
"""Whether this pyarrow can verify page checksums."""
GONE = "the file is not there any more"


class FileTouched(OSError):
    """A file was touched or written again since its footer was read, and its footer is still the same.

    What was read of it may belong to either file, so it is to be read again. Users never see this error.
    """


@dataclass(frozen=True, slots=True)
class StoredRowGroup(FilePart):
    """One row group of a file, to be read from its store."""

    index: Footer
    cached: CachedFiles | None = None
    """What to read through; None: straight from the file."""
    watched: bool = True
    """Whether a file that was written again meanwhile is noticed."""
    verify: bool = False
    """Whether pages that have checksums are compared with them."""
    limit: MemoryLimit | None = None
    """How much memory its columns may take; None: as much as they do."""
    held: Mapping[int, Any] | None = None
    """Column chunks that the caller has fetched, by their first byte: read in place of the file."""

    @contextlib.contextmanager
    def opened(self, names: Sequence[str] = ()) -> Iterator[Any]:
        """Open the file for pyarrow's readers; afterwards make sure that it is the file whose footer is at hand.

        Local files are read by pyarrow itself. Of others, and through a cache, the bytes of these columns are fetched
        first, by few requests.

        Raises:
            FileChanged, FileTouched: see `check`.
            StoreUnavailable, StoreRefused: the store does not answer, or denies access.
        """
        stream = None
        if self.held is not None:
            fetched = self.over(self.held)
        elif self.cached is not None:
            fetched = self.cached.open(self, names)
        elif (stream := self.file.root.store.native_file(self.file.path)) is None:
            ranges = [*self.ranges(names).values()]
            fetched = self.over({start: data for (start, _), data in zip(ranges, self.fetch(ranges), strict=True)})
        if stream is None:
            with fetched as file:
                yield file
            return
        with stream:
            size = stream.size()
            if size != self.size:
                raise self.resized(size)
            try:
                yield stream
            finally:  # also where it fails: a file that was written again is not a damaged one
                self.check()

    def over(self, held: Mapping[int, Any]) -> Any:
        """Return the file for pyarrow's readers, with ranges of it that were fetched already, each by its start."""
        return open_ranges(held, self.size, lambda part: self.fetch([part])[0])

    def reader(self, stream: Any, **more: Any) -> pq.ParquetFile:
        """Return pyarrow's reader of an opened file, with the footer at hand; not safe for threads."""
        options = {**READ_OPTIONS, **verifying(verify=self.verify), **more}
        return pq.ParquetFile(stream, metadata=self.index.arrow, **options)

    def ranges(self, names: Sequence[str]) -> dict[int, Range]:
        """Return the bytes of the column chunks of these columns, by the number of the leaf.

        Column chunks outside of the file are left out: the footer is damaged, as pyarrow will say.
        """
        chunks = self.index.chunks
        leaves = sorted({leaf for name in names for leaf in chunks.below(name)})
        found = {leaf: chunks.range_of(self.number, leaf) for leaf in leaves}
        return {leaf: (start, stop) for leaf, (start, stop) in found.items() if 0 <= start < stop <= self.size}

    def fetch(self, ranges: Sequence[Range]) -> list[Any]:
        """Return the bytes of ranges of the file, after making sure that it is still the same file.

        Raises:
            FileChanged, FileTouched: see `check`.
        """
        version = self.seen.identity if self.watched else None
        try:
            return self.file.root.store.read_ranges(self.file.path, ranges, version=version)
        except FileChanged:
            self.check()
            raise

    def check(self) -> None:
        """Make sure that what was read of the file belongs to the footer at hand. Costs one look at the store.

        Raises:
            BadFile: the file is gone.
            FileChanged: the file was written again, with another footer or none.
            FileTouched: the file was touched, or written again with the same footer; that is remembered.
        """
        try:
            if not self.watched or self.file.root.store.stat(self.file.path).version == self.seen.identity:
                return
            footer = read_footer(self.file)
        except FileNotFoundError as exc:
            raise self.bad(GONE, REOPEN) from exc
        except BadFile as exc:
            raise self.changed(f"{OTHER_INDEX}, and now {exc}") from exc
        if footer.size != self.size:
            raise self.resized(footer.size)
        if footer.seen.checksum != self.seen.checksum:
            raise self.changed(OTHER_INDEX)
        self.seen.renew(footer.seen.identity)
        raise FileTouched(self.file.path)

    def resized(self, size: int | None) -> FileChanged:
        """Return the error for a file of another size than the one that was opened."""
        return self.changed(f"the file has changed: {self.size} bytes at opening, {size} now")

    def changed(self, wrong: str) -> FileChanged:
        """Return the error for a file that is not the one that was opened."""
        return FileChanged(f"{self._place}: {wrong}; {REOPEN}", path=self.file.path, row_group=self.number)

    def bad(self, wrong: str, cure: str, *, column: str | None = None) -> BadFile:
        """Return the error that names this row group."""
        place = self._place + (f", column {column!r}" if column else "")
        return BadFile(f"{place}: {wrong}; {cure}", path=self.file.path, row_group=self.number, column=column)

    @property
    def url(self) -> str:
        """The URL of the file, for messages."""
        return self.file.root.store.url(self.file.path)

    @property
    def _place(self) -> str:
        return f"{self.file.path}, row group {self.number}"


def read_columns(group: StoredRowGroup, names: Sequence[str]) -> pa.Table:
    """Return the columns, leaves of structs by path, in the order of `names`.

    Only these leaves are read: by one read for each of them from a local file, by few requests from other stores.

    Raises:
        BadFile: the file is gone, or a page is damaged; names the column.
        FileChanged: it is not the file that was opened.
        StoreUnavailable, StoreRefused: the store does not answer, or denies access.
        FileTouched: it was touched or written again meanwhile.
        BudgetError: it takes more memory than the row group's limit.
    """
    try:
        table = attempt(lambda: _read(group, names), group.url)
    except FileNotFoundError as exc:
        raise group.bad(GONE, REOPEN) from exc
    except (BadFile, FileTouched, StoreError):
        raise
    except READ_ERRORS as exc:
        if group.cached is not None:
            # The source may have given bad bytes once: forget them, and ask it again.
            group.cached.forget(group, names)
            return read_columns(replace(group, cached=None), names)
        raise _explain(group, names, exc) from exc
    if table.num_rows != group.num_rows:
        raise group.bad(f"{table.num_rows} rows came where the footer says {group.num_rows}", "write the file again")
    return table


def _read(group: StoredRowGroup, names: Sequence[str]) -> pa.Table:
    unknown = None if group.limit is None else unknown_sizes(group, names)
    if unknown is not None:
        return read_unknown(group, names, unknown)
    with group.opened(names) as stream:
        table = group.reader(stream).read_row_group(group.number, columns=list(names), use_threads=False)
    if any("." in name for name in names):
        table = flatten_structs(table)
    return table if table.column_names == list(names) else table.select(names)


def verifying(*, verify: bool) -> dict[str, bool]:
    """Return the keywords with which `pq.ParquetFile` verifies page checksums; none where this pyarrow cannot."""
    return {"page_checksum_verification": True} if verify and CAN_VERIFY else {}


def _explain(group: StoredRowGroup, names: Sequence[str], cause: Exception) -> BadFile:
    """Read column by column to find the guilty one."""
    for name in names:
        try:
            attempt(lambda: _read(group, [name]), group.url)  # noqa: B023 -- called at once
        except (BadFile, FileTouched, StoreError):
            raise
        except READ_ERRORS as exc:
            return group.bad(
                f"cannot be read ({_first_line(exc)})",
                "the pages are damaged: write the file again, or load with on_error='skip' to leave its rows out",
                column=name,
            )
    return group.bad(f"cannot be read ({_first_line(cause)})", "try again, or write the file again")


def _first_line(exc: Exception) -> str:
    return (str(exc).strip() or type(exc).__name__).splitlines()[0]
