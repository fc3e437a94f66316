"""Cells as stored: the bytes that went in, in one block that is the batch's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.codecs import Cells
from penstock.codecs.base import AsStored


@given(st.lists(st.none() | st.binary(max_size=9), max_size=12), st.randoms())
def test_a_column_of_cells_is_what_single_cells_are(values, random):
    codec, cells = AsStored(), Cells.from_list(values)
    order = list(range(len(values)))
    random.shuffle(order)
    got = codec.decode_list(None, cells.take(np.array(order, np.intp)))
    want = [None if values[i] is None else codec.decode(None, values[i]) for i in order]
    assert [None if one is None else one.tolist() for one in got] == [
        None if one is None else one.tolist() for one in want
    ]
    assert all(one.dtype == np.uint8 and one.flags.writeable for one in got if one is not None)


def test_cells_of_several_chunks_lie_end_to_end():
    parts = [np.frombuffer(b"abcdef", np.uint8), np.frombuffer(b"uvwxyz", np.uint8)]
    cells = Cells(parts, np.array([1, 0, 1]), np.array([0, 2, 3]), np.array([2, 4, 6]), None)
    got = AsStored().decode_list(None, cells)
    assert [one.tobytes() for one in got] == [b"uv", b"cd", b"xyz"]
    assert got[0].base is got[2].base
    assert AsStored().encode(None, got[2]) == b"xyz"
