"""`penstock info URL`: what a dataset contains and whether its row groups suit a shuffled run.

Takes an open dataset and returns text. Reads no data: everything comes from the footers that opening has read.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from penstock.cli.text import columns_text
from penstock.display import schema_rows, size_text
from penstock.errors import printable

if TYPE_CHECKING:
    from penstock.api import Dataset

# Below 1 MiB a request costs more than the read; above 64 MiB few row groups fit the default shuffle buffer.
SMALL_BYTES, LARGE_BYTES = 1 << 20, 64 << 20


def info(dataset: Dataset) -> str:
    """Return schema table, rows, files, row groups, sizes, partitions and one line of advice on row-group size."""
    lines = [
        columns_text(["column", "type", "shape", "null", "codec"], schema_rows(dataset)),
        "",
        f"rows         {len(dataset):,}",
        f"files        {len(dataset.files):,}, {size_text(dataset.num_bytes)}",
        f"row groups   {_row_groups(dataset)}",
        *_partitions(dataset.files),
        f"fingerprint  {dataset.fingerprint}",
        f"advice       {advice(dataset)}",
    ]
    return "\n".join(lines)


def advice(dataset: Dataset) -> str:
    """Return one line: whether row groups have a size that reads fast and mixes well."""
    num_groups = len(dataset.chunks)
    if not num_groups:
        return "no rows: nothing to read"
    mean = dataset.num_bytes / num_groups
    if mean > LARGE_BYTES:
        return f"row groups of {size_text(mean)} are large: few fit the shuffle buffer; aim at 16 MiB"
    if mean < SMALL_BYTES and num_groups > 64:
        return f"row groups of {size_text(mean)} are small: starting a read costs more than the read; aim at 16 MiB"
    if num_groups < 16 and dataset.num_bytes > LARGE_BYTES:
        return f"only {num_groups} row groups: a shuffle mixes few at a time; write more, smaller ones"
    return f"row groups of {size_text(mean)} read and shuffle well"


def _row_groups(dataset: Dataset) -> str:
    rows = [count for _, _, count in dataset.chunks]
    if not rows:
        return "0"
    spread = f"{min(rows):,}" if min(rows) == max(rows) else f"{min(rows):,} to {max(rows):,}"
    mean = size_text(dataset.num_bytes / len(rows))
    return f"{len(rows):,} of {spread} rows (median {statistics.median_low(rows):,}), {mean} each on disk"


def _partitions(files: tuple[str, ...]) -> list[str]:
    """Return a line with every partition column and its number of values, if folders are named key=value."""
    values: dict[str, set[str]] = {}
    for file in files:
        for key, found, value in (part.partition("=") for part in file.split("/")[:-1]):
            if found:
                values.setdefault(key, set()).add(value)
    listed = ", ".join(f"{printable(key)} ({len(found):,})" for key, found in values.items())
    return [f"partitions   {listed}"] if listed else []
