"""Datasets for the tests of `dataset/`: plain Parquet written by pyarrow, cut into row groups as asked."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write(path: Path, columns, *, rows_per_group: int | None = None, **more) -> Path:
    """Write one file; `columns` is a table or a dict of columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, row_group_size=rows_per_group, **more)
    return path


def ids(start: int, stop: int) -> dict:
    """Return the columns `id` (int64) and `value` (float64)."""
    return {
        "id": pa.array(range(start, stop), pa.int64()),
        "value": pa.array([i / 2 for i in range(start, stop)], pa.float64()),
    }


def write_ids(root: Path, *, files: int = 3, rows: int = 10, rows_per_group: int = 4) -> Path:
    """Write files with consecutive ids."""
    for number in range(files):
        write(root / f"part-{number}.parquet", ids(number * rows, (number + 1) * rows), rows_per_group=rows_per_group)
    return root


def read_all(source, columns=None) -> pa.Table:
    """Read a whole source, chunk by chunk."""
    names = source.facts.arrow_schema.names if columns is None else columns
    return pa.concat_tables([source.read(chunk, names) for chunk in range(len(source.facts.chunk_rows))])


def write_many_files(root: Path, num_files: int = 3678) -> Path:
    """Write many small files of 10 columns: what opening is measured on."""
    rng = np.random.default_rng(0)
    columns = {f"c{i}": pa.array(np.arange(20) + i) for i in range(5)}
    columns |= {f"f{i}": pa.array(rng.random(20)) for i in range(3)}
    columns |= {"text": pa.array([f"x{i}" for i in range(20)]), "blob": pa.array([b"x" * 20] * 20)}
    data = write(root / "part-00000.parquet", columns).read_bytes()
    for number in range(1, num_files):
        (root / f"part-{number:05}.parquet").write_bytes(data)
    return root
