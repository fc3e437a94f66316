"""Run by the real Petastorm's python: reads datasets and prints their rows as JSON. Imports nothing of ours.

Arguments: a URL, and what to do: "rows" (all of them), "index NAME VALUE" (rows of the row groups that an index names),
"batch" (the first batch's column names).
"""

import base64
import decimal
import json
import sys
import warnings

warnings.simplefilter("ignore")

import numpy as np  # noqa: E402
from petastorm import make_reader  # noqa: E402
from petastorm.selectors import SingleIndexSelector  # noqa: E402


def plain(value):
    """Return a value as JSON that keeps its type, shape and bytes."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.datetime64):
        return {"time": str(value.astype("M8[us]"))}
    if isinstance(value, decimal.Decimal):
        return {"decimal": str(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    array = np.ascontiguousarray(value)
    if array.dtype.kind == "U":
        return {"text": array.tolist(), "shape": list(np.shape(value))}
    return {
        "dtype": array.dtype.str,
        "shape": list(np.shape(value)),
        "data": base64.b64encode(array.tobytes()).decode(),
    }


url, what, *more = sys.argv[1:]
selector = SingleIndexSelector(more[0], [int(more[1])]) if what == "index" else None
with make_reader(url, reader_pool_type="dummy", shuffle_row_groups=False, rowgroup_selector=selector) as reader:
    rows = [{name: plain(value) for name, value in row._asdict().items()} for row in reader]
    print("JSON:" + json.dumps({"schema": reader.schema._name, "rows": rows}))
