"""Petastorm's small helpers: decode one row, store a value beside a dataset, run a function in a new process.

The engine decodes columns and does not come through here; these are for programs that handle single rows or metadata
by hand.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.dataset.common_metadata import update_common_metadata
from penstock.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.schema import Unischema, UnischemaField

__all__ = ["DecodeFieldError", "add_to_dataset_metadata", "decode_row", "run_in_subprocess"]

DecodeFieldError = DecodeError
"""A cell cannot be decoded: the error that all of Penstock raises for it."""


def decode_row(row: Mapping[str, Any], schema: Unischema) -> dict[str, Any]:
    """Return the values of a row of stored cells, in the order of the row; what the schema lacks is left out.

    Null stays None. Fields without a codec become their dtype.

    Raises:
        DecodeFieldError: A cell cannot be decoded; names the field and keeps the cause.
    """
    return {name: _decode(schema.fields[name], cell) for name, cell in row.items() if name in schema.fields}


def _decode(field: UnischemaField, cell: Any) -> Any:
    kind = field.numpy_dtype
    try:
        if cell is not None and field.codec is not None:
            return field.codec.decode(field, cell)
        if cell is None or kind is None or isinstance(cell, kind):
            return cell
        return kind(cell) if kind is Decimal or field.shape == () else np.asarray(cell, kind)
    except Exception as error:
        raise DecodeFieldError(
            f"cannot decode field {field.name!r} with {field.codec or 'no codec'}: {error}", column=field.name
        ) from error


def add_to_dataset_metadata(dataset: Any, key: str | bytes, value: str | bytes) -> None:
    """Store a value under a key in the `_common_metadata` of a dataset, in place of the one that is there.

    `dataset` may be a URL, a `penstock.Dataset` or a pyarrow dataset. All other keys stay; readers see the old file or
    the new one.
    """
    from penstock.petastorm.etl._datasets import files_of

    update_common_metadata(files_of(dataset)[0], {_bytes(key): _bytes(value)})


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def run_in_subprocess(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a function returns when a new process calls it; what it raises is raised here.

    Function, arguments and result are pickled. Costs the start of an interpreter.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(func, *args, **kwargs).result()
