"""What the fuzzing of cells runs in a child process: one dataset of three rows, the middle one damaged.

Every outcome but a right value or an error that names the place is a complaint.
"""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import Cells, CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec
from penstock.codecs.base import misfit
from penstock.errors import BudgetError, DecodeError
from penstock.schema.stored import SCHEMA_KEY, schema_to_json

BUDGET = 32 << 20


def _photo(dtype, *shape):
    values = np.arange(np.prod(shape)).reshape(shape) * 37 % 251
    return values.astype(dtype)


FIELDS = {
    "npy": (np.float32, (3, 5), NdarrayCodec(), _photo(np.float32, 3, 5)),
    "npy free": (np.int16, (None, 5), NdarrayCodec(), _photo(np.int16, 4, 5)),
    "npy text": (np.str_, (None,), NdarrayCodec(), np.array(["a", "bcd"])),
    "npz": (np.float32, (30, 5), CompressedNdarrayCodec(), _photo(np.float32, 30, 5)),
    "npz free": (np.uint8, (None, 5), CompressedNdarrayCodec(), _photo(np.uint8, 40, 5)),
    "png": (np.uint8, (20, 16, 3), CompressedImageCodec("png"), _photo(np.uint8, 20, 16, 3)),
    "png large": (np.uint8, (64, 64, 3), CompressedImageCodec("png"), _photo(np.uint8, 64, 64, 3)),
    "png free": (np.uint8, (None, None), CompressedImageCodec("png"), _photo(np.uint8, 20, 16)),
    "png 16 bit": (np.uint16, (None, 16, 3), CompressedImageCodec("png"), _photo(np.uint16, 20, 16, 3)),
    "jpeg": (np.uint8, (20, 16, 3), CompressedImageCodec("jpeg"), _photo(np.uint8, 20, 16, 3)),
    "jpeg grey": (np.uint8, (20, 16), CompressedImageCodec("jpeg"), _photo(np.uint8, 20, 16)),
    "jpeg free": (np.uint8, (None, None, 3), CompressedImageCodec("jpeg"), _photo(np.uint8, 20, 16, 3)),
}


def field_of(kind):
    dtype, shape, codec, _ = FIELDS[kind]
    return UnischemaField("x", dtype, shape, codec, False)


def good_cell(kind):
    return bytes(field_of(kind).codec.encode(field_of(kind), FIELDS[kind][3]))


def progressive_jpeg():
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(FIELDS["jpeg"][3]).save(file, "JPEG", progressive=True)
    return file.getvalue()


def check(data, folder):
    """Read a dataset whose middle cell is `data[1]`; return what is wrong with what came."""
    kind, cell = data
    field, path = field_of(kind), folder / "cells.parquet"
    schema = Unischema("S", [UnischemaField("id", np.int64, (), None, False), field])
    metadata = {SCHEMA_KEY: schema_to_json(schema).encode()}
    cells = pa.array([good_cell(kind), cell, good_cell(kind)], pa.binary())
    pq.write_table(pa.table({"id": range(3), "x": cells}).replace_schema_metadata(metadata), path)
    ds = penstock.open(path)
    wrong = _raised(ds, field) or _skipped(ds, field)
    claimed = field.codec.claimed_bytes(field, Cells.from_list([cell]))[0]
    return wrong if claimed > BUDGET else wrong or _one(ds)  # without a loader the budget is that of the default


def _raised(ds, field):
    try:
        with ds.loader(batch_size=2, memory_bytes=BUDGET, workers=2) as loader:
            found = [value for batch in loader for value in batch["x"]]
    except (DecodeError, BudgetError) as error:
        return _place(error)
    return _values(found, field) if len(found) == 3 else f"{len(found)} rows"


def _skipped(ds, field):
    try:
        with ds.loader(batch_size=2, memory_bytes=BUDGET, on_error="skip", workers=2) as loader:
            batches = list(loader)
            skipped = [(one.row_group, one.row, one.column) for one in loader.skipped]
    except BudgetError as error:
        return _place(error)
    rows = [row for batch in batches for row in batch["id"].tolist()]
    if (rows, skipped) not in (([0, 1, 2], []), ([0, 2], [(0, 1, "x")])):
        return f"rows {rows}, skipped {skipped}"
    return _values([value for batch in batches for value in batch["x"]], field)


def _one(ds):
    try:
        ds[1]
    except DecodeError as error:
        return _place(error)
    return None


def _place(error):
    place = getattr(error, "row_group", 0), getattr(error, "row", 1), getattr(error, "column", "x")
    if place != (0, 1, "x") or "cells.parquet" not in str(error) or "'x'" not in str(error) or len(str(error)) > 2000:
        return f"the error does not name the place: {error!r:.500}"
    return None


def _values(values, field):
    wrong = [misfit(field, value) for value in values]
    return next((one for one in wrong if one is not None), None)
