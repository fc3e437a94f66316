"""Decoding a column: nulls, and which cell is to blame whatever a codec raises."""

import numpy as np
import pyarrow as pa
import pytest

from penstock import UnischemaField
from penstock.codecs import CellError, Cells, Codec, CompressedNdarrayCodec, NdarrayCodec
from penstock.codecs.decode import decode_array, decode_cells
from penstock.codecs.row_values import null_rows, row_values


class Fragile(Codec):
    """Cells are two bytes; raises a plain IndexError for the whole column where one is shorter."""

    def decode(self, field, value):
        return np.array([value[0], value[1]], np.uint8)

    def decode_column(self, field, cells, out):
        for row, cell in enumerate(cells):
            if cell is not None:
                out[row] = cell[0], cell[1]

    def decode_list(self, field, cells):
        return [None if cell is None else np.array([cell[0], cell[1]]) for cell in cells]


class Moody(Fragile):
    """Fails for more than one cell at a time."""

    def decode_column(self, field, cells, out):
        if len(cells) > 1:
            raise RuntimeError("too many")


FIELD = UnischemaField("f", np.uint8, (2,), Fragile(), True)
CELLS = Cells.from_list([b"ab", None, b"c", b"de", b""])


@pytest.mark.parametrize("stacked", [True, False])
def test_whatever_a_codec_raises_names_the_cell(stacked):
    out = np.empty((5, 2), np.uint8) if stacked else None
    with pytest.raises(CellError, match="IndexError") as caught:
        decode_cells(FIELD.codec, FIELD, CELLS, out)
    assert caught.value.index == 2
    assert isinstance(caught.value.__cause__, IndexError)


@pytest.mark.parametrize("stacked", [True, False])
def test_failed_cells_are_collected_and_the_others_decoded(stacked):
    failed = {}
    out = np.empty((5, 2), np.uint8) if stacked else None
    values = row_values(decode_cells(FIELD.codec, FIELD, CELLS, out, failed))
    assert sorted(failed) == [2, 4]
    assert all(isinstance(error, IndexError) for error in failed.values())
    assert [bytes(values[row]) for row in (0, 3)] == [b"ab", b"de"]
    assert values[1] is None


@pytest.mark.parametrize("failed", [None, {}])
def test_a_failure_that_no_single_cell_explains_is_raised_as_it_is(failed):
    with pytest.raises(RuntimeError, match="too many"):
        decode_cells(Moody(), FIELD, Cells.from_list([b"ab", b"cd"]), np.empty((2, 2), np.uint8), failed)


def test_an_arrow_column_is_stacked_or_a_list_with_its_nulls():
    for codec, shape in ((NdarrayCodec(), (2,)), (CompressedNdarrayCodec(), (None,))):
        field = UnischemaField("f", np.int16, shape, codec, True)
        cells = [codec.encode(field, np.array([1, 2], np.int16)), None]
        column = decode_array(pa.array(cells, pa.binary()), field)
        assert isinstance(column, list) == (None in shape)
        assert row_values(column)[0].tolist() == [1, 2]
        assert row_values(column)[1] is None
    native = decode_array(pa.array([1, None], pa.int32()), UnischemaField("n", np.int64, (), None, True))
    assert (native.dtype, native.tolist()) == (np.int64, [1, None])


def test_a_row_is_null_only_if_all_of_its_elements_are():
    column = np.ma.MaskedArray([[1, 2], [3, 4], [5, 6]], [[True, True], [False, True], [False, False]])
    assert null_rows(column).tolist() == [True, False, False]
    values = row_values(column)
    assert values[0] is None
    assert values[1].tolist() == [3, None]
    assert type(values[2]) is np.ndarray
