"""What the fuzzing of stored schemas runs in a child process: a dataset one of whose files has a damaged schema.

It opens, or the error is one of ours and names the file; what opens can be read, or says why not.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings

import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock.errors import PenstockError
from penstock.schema.petastorm_pickle import load_index
from penstock.schema.stored import PETASTORM_SCHEMA_KEY, SCHEMA_KEY, schema_to_json
from penstock.testing import random_rows
from tests.write.test_round_trip import SCHEMA

TEXT = schema_to_json(SCHEMA).encode()


def check(data, folder):
    """Open and read with the schema `data[1]` in one of two files, or in `_common_metadata`; return what is wrong."""
    kind, stored = data
    if kind == "index":
        with contextlib.suppress(PenstockError):
            load_index(stored)
        return None
    root = _write(folder, kind, stored)
    return next((wrong for skip in ("raise", "skip") if (wrong := _open(root, skip))), None)


def _write(folder, kind, stored):
    if not (folder / "good").exists():
        penstock.write(random_rows(SCHEMA, 4, seed=1), folder / "good", SCHEMA)
    table = pq.read_table(next((folder / "good").glob("*.parquet")))
    shutil.rmtree(root := folder / "data", ignore_errors=True)
    root.mkdir()
    if kind == "json":
        pq.write_table(table.replace_schema_metadata({SCHEMA_KEY: TEXT}), root / "a.parquet")
        pq.write_table(table.replace_schema_metadata({SCHEMA_KEY: stored}), root / "b.parquet")
    else:
        pq.write_table(table.replace_schema_metadata(), root / "a.parquet")
        empty = pa.schema(table.schema, metadata={PETASTORM_SCHEMA_KEY: stored})
        pq.write_metadata(empty, root / "_common_metadata")
    return root


def _open(root, on_error):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ds = penstock.open(root, on_error=on_error)
        except PenstockError as error:
            named = any(name in str(error) for name in ("a.parquet", "b.parquet", "_common_metadata"))
            return None if named and len(str(error)) < 5000 else f"{on_error}: no file is named: {error!r:.500}"
        try:
            with ds.loader(batch_size=3, on_error=on_error, pool="serial") as loader:
                list(loader)
        except PenstockError:
            return None
    return None
