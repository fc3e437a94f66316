"""Read one row group of one file, and say exactly what is wrong when that fails.

`ParquetSource.read_chunk` calls this with a footer at hand; it opens the file, reads the columns asked for and closes
it again, or asks `cached` where the dataset has a cache. One `ParquetFile` for each call, since they are not safe for
threads. Decodes no cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dataset.footers import READ_ERRORS
from penstock.errors import BadFile
from penstock.schema.arrow import flatten_structs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.dataset.cached import CachedFiles
    from penstock.dataset.discover import DataFile
    from penstock.dataset.footers import Footer

CAN_VERIFY = int(pa.__version__.split(".", 1)[0]) >= 15
"""Whether this pyarrow can verify page checksums."""
_REOPEN = "open the dataset again"


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group to be read."""

    file: DataFile
    size: int
    """Bytes of the file when the dataset was opened."""
    footer: Footer
    index: int
    num_rows: int
    cached: CachedFiles | None = None
    """What to read through; None: straight from the file."""
    verify: bool = False
    """Whether pages that have checksums are compared with them."""

    def open(self) -> Any:
        """Open the file for reading.

        Raises:
            BadFile: it has another size than when the dataset was opened.
        """
        stream = self.file.root.fs.open_input_file(self.file.path)
        try:
            size = stream.size()
            if size != self.size:
                raise self.changed(size)
        except BaseException:
            stream.close()
            raise
        return stream

    def changed(self, size: int | None) -> BadFile:
        """Return the error for a file that is not the one that was opened."""
        return self.bad(f"the file has changed: {self.size} bytes at opening, {size} now", _REOPEN)

    def bad(self, wrong: str, cure: str, *, column: str | None = None) -> BadFile:
        """Return the error that names this row group."""
        place = f"{self.file.path}, row group {self.index}" + (f", column {column!r}" if column else "")
        return BadFile(f"{place}: {wrong}; {cure}", path=self.file.path, row_group=self.index, column=column)


def read_columns(group: RowGroup, names: Sequence[str]) -> pa.Table:
    """Return the columns, leaves of structs by path, in the order asked for.

    Costs one open and one read for each column; only the leaves asked for are read.

    Raises:
        BadFile: the file has changed or gone, or a page is damaged; names the column.
    """
    try:
        table = _read(group, names)
    except FileNotFoundError as exc:
        raise group.bad("the file is not there any more", _REOPEN) from exc
    except READ_ERRORS as exc:
        if group.cached is not None and not isinstance(exc, BadFile):
            # The source may have given bad bytes once: forget them, and ask it again.
            group.cached.forget(group, names)
            return read_columns(replace(group, cached=None), names)
        raise _explain(group, names, exc) from exc
    if table.num_rows != group.num_rows:
        raise group.bad(f"{table.num_rows} rows came where the footer says {group.num_rows}", "write the file again")
    return table


def _read(group: RowGroup, names: Sequence[str]) -> pa.Table:
    with group.open() if group.cached is None else group.cached.open(group, names) as stream:
        reader = pq.ParquetFile(stream, metadata=group.footer.arrow, pre_buffer=False, **verifying(verify=group.verify))
        table = reader.read_row_group(group.index, columns=list(names), use_threads=False)
    if any("." in name for name in names):
        table = flatten_structs(table)
    if table.column_names == list(names):
        return table
    return table.select(names)


def verifying(*, verify: bool) -> dict[str, bool]:
    """Return the keywords with which `pq.ParquetFile` verifies page checksums; none where this pyarrow cannot."""
    return {"page_checksum_verification": True} if verify and CAN_VERIFY else {}


def _explain(group: RowGroup, names: Sequence[str], cause: Exception) -> BadFile:
    """Read column by column to find the guilty one."""
    if isinstance(cause, BadFile):
        return cause
    for name in names:
        try:
            _read(group, [name])
        except READ_ERRORS as exc:
            return group.bad(
                f"cannot be read ({_first_line(exc)})",
                "the pages are damaged: write the file again, or load with on_error='skip' to leave its rows out",
                column=name,
            )
    return group.bad(f"cannot be read ({_first_line(cause)})", "try again, or write the file again")


def _first_line(exc: Exception) -> str:
    return (str(exc).strip() or type(exc).__name__).splitlines()[0]
