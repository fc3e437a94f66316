"""Rows as a filter sees them: columns by name, read and decoded when they are first needed.

`row_filter` asks a view for Arrow tables, decoded columns, row values or pandas Series. `ChunkRows` reads them from one
chunk, each column once, and decodes only its own rows; `BatchRows` has decoded columns already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from penstock.codecs.arrow_kinds import form_of
from penstock.codecs.arrow_memory import one_array, take_rows
from penstock.codecs.base import CellError
from penstock.codecs.decode import decode_array, reason_of
from penstock.dataset.arrow_filter import delivered_type, to_arrow
from penstock.errors import ColumnNotFound, DecodeError, SchemaError, close_names
from penstock.source import read_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from penstock.codecs.decode import Column
    from penstock.source import Source


class BatchRows:
    """Rows of a batch in memory; `rows` None: all of them."""

    place = ""

    def __init__(self, columns: Mapping[str, Any], num_rows: int, rows: NDArray[np.int64] | None = None) -> None:
        self.num_rows = num_rows if rows is None else len(rows)
        self._columns = columns
        self._rows = rows

    def column(self, name: str) -> Column:
        """Return a column of the batch; ColumnNotFound if it has none of that name."""
        if name not in self._columns:
            raise ColumnNotFound(f"no column {name!r} for the predicate; {close_names(name, self._columns)}")
        found: Column = self._columns[name]
        if self._rows is None:
            return found
        return [found[row] for row in self._rows.tolist()] if isinstance(found, list) else found[self._rows]

    def table(self, columns: pa.Schema) -> pa.Table:
        """Return columns as Arrow; SchemaError if the values of the batch do not have these types."""
        arrays = []
        for field in columns:
            try:
                arrays.append(to_arrow(self.column(field.name), field.type))
            except (pa.ArrowException, TypeError) as exc:
                raise SchemaError(f"column {field.name!r} of the batch is not {field.type}: {exc}") from exc
        return pa.Table.from_arrays(arrays, schema=columns)

    def narrowed(self, rows: NDArray[np.int64]) -> BatchRows:
        """Return a view of some rows; a column is cut when it is requested."""
        return BatchRows(self._columns, self.num_rows, rows if self._rows is None else self._rows[rows])

    def load(self, names: Iterable[str]) -> None:
        """Do nothing: all columns are in memory."""


class ChunkRows:
    """Rows of one chunk; `rows` None: all of them."""

    def __init__(
        self,
        source: Source,
        chunk: int,
        rows: NDArray[np.int64] | None,
        read: dict[str, pa.ChunkedArray] | None = None,
    ) -> None:
        self.num_rows = int(source.facts.chunk_rows[chunk]) if rows is None else len(rows)
        self._source = source
        self._chunk = chunk
        self._rows = rows
        self._read: dict[str, pa.ChunkedArray] = {} if read is None else read
        self._decoded: dict[str, Column] = {}

    @property
    def place(self) -> str:
        """File and row group."""
        return f" in {self._source.locate(self._chunk)}"

    def load(self, names: Iterable[str]) -> None:
        """Read these columns with one read, except for those that were read before."""
        missing = [name for name in dict.fromkeys(names) if name not in self._read]
        if missing:
            table = read_table(self._source, self._chunk, missing)
            self._read.update((name, table.column(name)) for name in missing)

    def stored(self, name: str) -> pa.Array:
        """Return a column as it is stored."""
        self.load([name])
        array = one_array(self._read[name])
        return array if self._rows is None else take_rows(array, self._rows)

    def text(self, name: str) -> pa.Array | None:
        """Return a column of text as it is stored, if it is delivered as text."""
        stored = self._source.facts.arrow_schema.field(name).type
        kind = delivered_type(stored, self._source.facts.unischema.fields[name])
        return self.stored(name).cast(kind) if form_of(stored) == form_of(kind) == "text" else None

    def table(self, columns: pa.Schema) -> pa.Table:
        """Return columns as they are stored, without views of text and bytes."""
        self.load(columns.names)
        found = [self._read[name] if self._rows is None else self.stored(name) for name in columns.names]
        cast = [
            one if one.type == field.type else one.cast(field.type) for one, field in zip(found, columns, strict=True)
        ]
        return pa.Table.from_arrays(cast, schema=columns)

    def column(self, name: str) -> Column:
        """Return a column, decoded; DecodeError names the place of a cell that cannot be decoded."""
        if name not in self._decoded:
            try:
                self._decoded[name] = decode_array(self.stored(name), self._source.facts.unischema.fields[name])
            except CellError as error:
                raise self._error(name, error) from error
        return self._decoded[name]

    def narrowed(self, rows: NDArray[np.int64]) -> ChunkRows:
        """Return a view of some rows, which shares the columns that were read but decodes again."""
        return ChunkRows(self._source, self._chunk, rows if self._rows is None else self._rows[rows], self._read)

    def _error(self, name: str, error: CellError) -> DecodeError:
        row = error.index if self._rows is None else int(self._rows[error.index])
        place = self._source.locate(self._chunk, row)
        return DecodeError(
            f"cannot decode column {name!r}, which the filter needs, in {place}: "
            f"{reason_of(error, name)}; write the file again, or leave such rows out by another filter first",
            path=place.path, row_group=place.part, row=place.row, column=name,
        )  # fmt: skip


RowView: TypeAlias = BatchRows | ChunkRows
"""Some rows, with columns by name: in memory, or in a chunk that is read when needed."""
