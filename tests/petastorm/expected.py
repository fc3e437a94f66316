"""The datasets that Petastorm 0.13.1 wrote, and the values that went in.

`rows(name)` gives them by key; `assert_row` compares one row, types included. Holds no tests itself.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1] / "data" / "petastorm" / "0.13.1"
KEYS = {"all_codecs": "id", "timed": "timestamp"}


def url(name: str) -> str:
    return f"file://{FOLDER / name}"


def rows(name: str) -> dict[int, dict[str, Any]]:
    """All rows by their key."""
    listed = json.loads((FOLDER / f"{name}.expected.json").read_text(encoding="utf-8"))
    found = {row[KEYS[name]]: dict(row) for row in listed}
    arrays = np.load(FOLDER / f"{name}.expected.npz")
    for entry in arrays.files:
        number, field = entry.split("/", 1)
        found[listed[int(number)][KEYS[name]]][field] = arrays[entry]
    return found


def assert_row(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    for field, value in want.items():
        assert is_same(field, got[field], value), (field, got[field], value)


def is_same(field: str, got: Any, want: Any) -> bool:
    if want is None:
        return got is None or got is np.ma.masked
    if isinstance(want, np.ndarray):
        got = np.asarray(got)
        if field == "jpeg":  # decoders differ by two levels
            return got.shape == want.shape and int(np.abs(got.astype(int) - want).max(initial=0)) <= 2
        return np.array_equal(got, want) and got.dtype.kind == want.dtype.kind
    if field == "price":
        return isinstance(got, Decimal) and got == Decimal(want)
    kinds = {bool: (bool, np.bool_), int: (int, np.integer), float: (float, np.floating), str: (str,)}
    return isinstance(got, kinds[type(want)]) and (got == want or abs(got - want) < 1e-6)
