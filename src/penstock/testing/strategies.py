"""Hypothesis strategies for datasets: sizes of row groups, schemas, rows and tables.

For property tests of code that reads or writes Penstock's datasets. This is the only module that needs hypothesis;
values are kept small, so that examples shrink to something a person can read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

try:
    from hypothesis import strategies as st
except ImportError:
    raise ImportError("penstock.testing.strategies needs hypothesis: pip install hypothesis") from None

from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.testing.data import mixed, random_rows

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

_NUMBERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.float32, np.float64, np.bool_)
_ARRAYS = (np.uint8, np.int16, np.uint32, np.int64, np.float16, np.float32, np.float64, np.bool_)


def group_rows(*, max_groups: int = 12, max_rows: int = 20, min_rows: int = 0) -> SearchStrategy[list[int]]:
    """Rows of each row group; groups without rows among them."""
    return st.lists(st.integers(min_rows, max_rows), max_size=max_groups)


def files(*, max_files: int = 4, max_groups: int = 4, max_rows: int = 12) -> SearchStrategy[list[list[int]]]:
    """Rows of the row groups of each file, for `make_parquet`; files without row groups among them."""
    return st.lists(group_rows(max_groups=max_groups, max_rows=max_rows, min_rows=1), min_size=1, max_size=max_files)


@st.composite
def fields(draw: DrawFn, name: str = "field") -> UnischemaField:
    """One field that `penstock.write` can store: scalars, strings, arrays of fixed and free shape, images."""
    nullable = draw(st.booleans())
    kind = draw(st.sampled_from(("scalar", "string", "npy", "npz", "png")))
    if kind == "scalar":
        return UnischemaField(name, draw(st.sampled_from(_NUMBERS)), (), ScalarCodec(), nullable)
    if kind == "string":
        return UnischemaField(name, np.str_, (), ScalarCodec(), nullable)
    if kind == "png":
        colour = draw(st.sampled_from(((), (3,))))
        return UnischemaField(
            name, np.uint8, (draw(_size()), draw(_size()), *colour), CompressedImageCodec("png"), nullable
        )
    codec = NdarrayCodec() if kind == "npy" else CompressedNdarrayCodec()
    shape = tuple(draw(st.lists(_size(), min_size=1, max_size=3)))
    return UnischemaField(name, draw(st.sampled_from(_ARRAYS)), shape, codec, nullable)


def _size() -> SearchStrategy[int | None]:
    return st.one_of(st.none(), st.integers(1, 5))


@st.composite
def unischemas(draw: DrawFn, *, max_fields: int = 4) -> Unischema:
    """A schema of a few fields."""
    count = draw(st.integers(1, max_fields))
    return Unischema("Drawn", [draw(fields(f"field{i}")) for i in range(count)])


@st.composite
def rows(draw: DrawFn, schema: Unischema, *, max_rows: int = 30) -> list[dict[str, Any]]:
    """Rows that fit a schema, nulls among them where it allows."""
    return list(random_rows(schema, draw(st.integers(0, max_rows)), seed=draw(st.integers(0, 2**32 - 1))))


@st.composite
def tables(draw: DrawFn, *, max_rows: int = 30) -> pa.Table:
    """An Arrow table of some of the columns that `mixed` makes, cut into chunks anywhere."""
    whole = pa.table(mixed(np.arange(draw(st.integers(0, max_rows)))))
    names = draw(st.lists(st.sampled_from(whole.column_names), min_size=1, unique=True))
    cut = draw(st.integers(0, whole.num_rows))
    return pa.concat_tables([whole.slice(0, cut), whole.slice(cut)]).select(names)
