"""Rows as a predicate sees them: columns that are read and decoded when they are first asked for.

`predicates_mask` asks a view for columns, row values or pandas Series. A `BatchView` has them already; a `ChunkView`
reads them from one chunk, each column once whatever asks for it, and decodes only the rows it is about. pandas is
imported only where Series are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.codecs.arrow_memory import one_array, take_rows
from penstock.codecs.base import CellError
from penstock.codecs.decode import decode_array, reason_of
from penstock.codecs.row_values import row_values, to_series
from penstock.errors import ColumnNotFound, DecodeError, close_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock.codecs.decode import Column
    from penstock.dataset.parquet import ParquetSource


class View:
    """Some rows: `num_rows` of them, columns by name."""

    num_rows: int

    def column(self, name: str) -> Column:
        """Return a column as a loader gives it."""
        raise NotImplementedError(f"{type(self).__name__} has no columns")

    def narrowed(self, rows: NDArray[np.int64]) -> View:
        """Return a view of these rows of this one."""
        raise NotImplementedError(f"{type(self).__name__} cannot be narrowed")

    def load(self, names: Iterable[str]) -> None:
        """Read these columns now, in one go."""

    def values(self, name: str) -> list[Any]:
        """Return the value of each row, None for null."""
        return row_values(self.column(name))

    def frame(self, names: Sequence[str]) -> Any:
        """Return columns as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame({name: self.series(name) for name in names}, columns=list(names), copy=False)

    def series(self, name: str) -> Any:
        """Return a column as a pandas Series, as Arrow would give it to pandas.

        Null is NaN, NaT or None. Integers with nulls come as floats, or as Int64 where floats would change them.
        """
        return to_series(self.column(name))


class BatchView(View):
    """The rows of a batch that is in memory."""

    def __init__(self, columns: Mapping[str, Any], num_rows: int) -> None:
        self.num_rows = num_rows
        self._columns = columns

    def column(self, name: str) -> Column:
        """Return a column of the batch; `ColumnNotFound` where it has none of that name."""
        if name not in self._columns:
            raise ColumnNotFound(f"no column {name!r} for the predicate; {close_names(name, self._columns)}")
        found: Column = self._columns[name]
        return found

    def narrowed(self, rows: NDArray[np.int64]) -> View:
        """Return a view of these rows; a column is cut when it is asked for."""
        return _NarrowBatch(self, rows)


class _NarrowBatch(View):
    def __init__(self, whole: BatchView, rows: NDArray[np.int64]) -> None:
        self.num_rows = len(rows)
        self._whole = whole
        self._rows = rows

    def column(self, name: str) -> Column:
        found = self._whole.column(name)
        return [found[row] for row in self._rows.tolist()] if isinstance(found, list) else found[self._rows]

    def narrowed(self, rows: NDArray[np.int64]) -> View:
        return _NarrowBatch(self._whole, self._rows[rows])


class ChunkView(View):
    """Rows of one chunk; `rows` None: all of them."""

    def __init__(self, source: ParquetSource, chunk: int, rows: NDArray[np.int64] | None) -> None:
        self.num_rows = int(source.chunk_rows[chunk]) if rows is None else len(rows)
        self._source = source
        self._chunk = chunk
        self._rows = rows
        self._read: dict[str, pa.Array] = {}
        self._decoded: dict[str, Column] = {}

    def load(self, names: Iterable[str]) -> None:
        """Read these columns now, in one go, as far as they are not there yet."""
        missing = [name for name in dict.fromkeys(names) if name not in self._read]
        if missing:
            table = self._source.read_chunk(self._chunk, missing)
            self._read.update((name, one_array(table.column(name))) for name in missing)

    def stored(self, name: str) -> pa.Array:
        """Return a column of the whole chunk as it is stored."""
        self.load([name])
        return self._read[name]

    def column(self, name: str) -> Column:
        """Return a column, decoded; `DecodeError` names the place of a cell that cannot be."""
        if name not in self._decoded:
            array = self.stored(name)
            try:
                wanted = array if self._rows is None else take_rows(array, self._rows)
                self._decoded[name] = decode_array(wanted, self._source.unischema.fields[name])
            except CellError as error:
                raise self._error(name, error) from error
        return self._decoded[name]

    def narrowed(self, rows: NDArray[np.int64]) -> View:
        """Return a view of these rows; what was read is shared, decoding starts anew."""
        found = ChunkView(self._source, self._chunk, rows if self._rows is None else self._rows[rows])
        found._read = self._read
        return found

    def _error(self, name: str, error: CellError) -> DecodeError:
        row = error.index if self._rows is None else int(self._rows[error.index])
        path, group = self._source.path_of(self._chunk), int(self._source.chunk_group[self._chunk])
        return DecodeError(
            f"cannot decode column {name!r}, which the predicate needs, in {path}, row group {group}, row {row}: "
            f"{reason_of(error, name)}; write the file again, or leave such rows out by filters= first",
            path=path, row_group=group, row=row, column=name,
        )  # fmt: skip
