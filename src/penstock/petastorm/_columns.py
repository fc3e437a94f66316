"""Turn batches of the engine into what Petastorm's readers return: rows, columns, and windows of both.

Runs in the consumer's thread. Values of rows are views of the batch that they came in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.codecs.row_values import objects_of, row_values
from penstock.engine.rowwise import plain_array, plain_column
from penstock.schema.rows import row_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["StepType", "batch_column", "columns_of", "row_type", "rows_of", "take_rows", "window_columns", "windows_of"]

_SOME_WINDOWS = 256
"""Windows that are made at once in the consumer."""
_MOST_TEXT_BYTES = 64 << 20
"""Strings become an array of fixed width up to this size, or if that takes at most a few times their own length."""


class StepType(NamedTuple):
    """The row of one step of a window."""

    names: tuple[str, ...]
    type: Any


def rows_of(batch: Mapping[str, Any], names: Sequence[str], make: Any) -> Iterator[Any]:
    """Return an iterator over the rows of a batch."""
    columns = [batch[name] for name in names]
    columns = [row_values(one) if isinstance(one, np.ma.MaskedArray) else one for one in columns]
    return map(make._make, zip(*columns, strict=True))


def windows_of(batch: Mapping[str, Any], windows: Any, types: Mapping[int, StepType]) -> Iterator[dict[int, Any]]:
    """Yield windows of rows as {step: row}; a row that several windows share is made once for each step."""
    first = min(types)
    for begin in range(0, len(windows), _SOME_WINDOWS):
        lines = windows[begin : begin + _SOME_WINDOWS]
        used, lines = np.unique(lines, return_inverse=True)
        near = slice(used[0], used[-1] + 1) if used[-1] - used[0] + 1 == len(used) else None
        # Views of neighbours: images are not copied.
        some = {name: values[near] if near else take_rows(values, used) for name, values in batch.items()}
        steps = [
            (step, list(rows_of(some, make.names, make.type)) if make.names else [make.type()] * len(used))
            for step, make in sorted(types.items())
        ]
        for line in lines.reshape(-1, windows.shape[1]).tolist():
            yield {step: rows[line[step - first]] for step, rows in steps}


def take_rows(values: Any, rows: NDArray[np.int64]) -> Any:
    """Return some rows of a column, in this order."""
    return [values[row] for row in rows.tolist()] if isinstance(values, list) else values[rows]


def columns_of(batch: Mapping[str, Any], names: Sequence[str], make: Any, dtypes: Mapping[str, np.dtype[Any]]) -> Any:
    """Return a batch as a named tuple of arrays, typed as Petastorm's batch reader does; `dtypes` as `batch_dtypes`."""
    return make._make([batch_column(batch[name], dtypes.get(name)) for name in names])


def window_columns(
    batch: Mapping[str, Any],
    windows: Any,
    types: Mapping[int, StepType],
    dtypes: Mapping[str, np.dtype[Any]],
) -> dict[int, Any]:
    """Return windows as {step: named tuple of columns}; `windows` has the rows of each of them."""
    first = min(types)
    columns = {name: batch_column(values, dtypes.get(name)) for name, values in batch.items()}
    return {
        step: make.type._make([columns[name][windows[:, step - first]] for name in make.names])
        for step, make in sorted(types.items())
    }


def batch_column(values: Any, dtype: np.dtype[Any] | None) -> Any:
    """Return a column as Petastorm's batch reader gives it, but with every value as it is stored.

    `dtype` is given for columns that have nulls, see `batch_dtypes`. Texts without nulls have fixed width, dates are
    objects, times in nanoseconds; lists of equal length become one array, of unequal length objects.
    """
    if isinstance(values, list):
        values = [plain_array(value, dtype) if isinstance(value, np.ndarray) else value for value in values]
        same = len({getattr(value, "shape", None) for value in values}) == 1
        return np.stack(values) if same and isinstance(values[0], np.ndarray) else objects_of(values)
    is_text = values.dtype == np.object_ and dtype != np.object_
    values = plain_column(values, dtype)
    if values.dtype.kind == "M":
        return values.astype(np.object_) if values.dtype == np.dtype("M8[D]") else _nanoseconds(values)
    return _texts(values) if is_text else values


def _texts(values: NDArray[np.object_]) -> NDArray[Any]:
    """Return texts as an array of fixed width, unless one is null or most of the array would be padding."""
    if not len(values) or not all(type(value) is str for value in values):
        return values
    lengths = [len(value) for value in values]
    is_padding = 4 * max(lengths) * len(values) > max(_MOST_TEXT_BYTES, 16 * sum(lengths))
    return values if is_padding else values.astype(np.str_)


def _nanoseconds(values: NDArray[Any]) -> NDArray[Any]:
    """Return times in nanoseconds, or unchanged if that would overflow."""
    found = values[~np.isnat(values)]
    fits = not len(found) or (np.datetime64("1678") < found.min() and found.max() < np.datetime64("2262"))
    return values.astype("M8[ns]") if fits else values
