"""Values and tables as text for a terminal.

Takes results of the public API and returns short strings, which the commands combine; prints nothing and reads nothing.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

MOST_CHARACTERS = 40
MOST_NUMBERS = 6


def value_text(value: Any) -> str:
    """Return one value in at most about 40 characters: small arrays in full, others as dtype, shape and range."""
    if value is None or value is np.ma.masked:
        return "null"
    if isinstance(value, np.ndarray) and value.ndim:
        return _array_text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    if isinstance(value, np.generic):
        return printable(str(value))
    return _clip(repr(value) if isinstance(value, str | list | dict) else printable(str(value)))


def columns_text(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Return a table with columns as wide as their widest cell; no trailing spaces."""
    table = [header, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "\n".join(indent + line.rstrip() for line in lines)


def given(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Return the options that were given on the command line; the others keep the defaults of the function."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def fits_terminal(text: str) -> bool:
    """Tell whether no line is wider than the terminal (80 columns if there is none)."""
    return max(map(len, text.splitlines()), default=0) <= shutil.get_terminal_size().columns


def _array_text(array: np.ndarray[Any, Any]) -> str:
    if array.ndim == 1 and array.size <= MOST_NUMBERS:
        return "[" + ", ".join(value_text(item) for item in array) + "]"
    kind = f"{array.dtype} {'x'.join(map(str, array.shape))}"
    if array.dtype.kind not in "biufmM" or not array.size:
        return kind
    low, high = (np.nanmin(array), np.nanmax(array)) if array.dtype.kind == "f" else (array.min(), array.max())
    return f"{kind} {value_text(low)}..{value_text(high)}"


def _clip(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
