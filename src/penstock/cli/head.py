"""`penstock head URL`: the first rows, with abbreviated arrays.

Takes an open dataset, reads the row groups of these rows and returns text: a table if it fits the terminal, else one
block for each row. Decodes only those rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.text import columns_text, fits_terminal, value_text
from penstock.errors import printable

if TYPE_CHECKING:
    from penstock.api import Dataset


def head(dataset: Dataset, num_rows: int) -> str:
    """Return the first `num_rows` rows as text; fewer if the dataset has fewer."""
    count = min(num_rows, len(dataset))
    if not count:
        return "no rows"
    batch = dataset.head(count)
    rows = [[value_text(batch[name][index]) for name in dataset.columns] for index in range(count)]
    names = list(map(printable, dataset.columns))
    table = columns_text(["row", *names], [[str(i), *row] for i, row in enumerate(rows)])
    return table if fits_terminal(table) else _blocks(names, rows)


def _blocks(names: list[str], rows: list[list[str]]) -> str:
    width = max(map(len, names))
    blocks = []
    for index, row in enumerate(rows):
        lines = [f"  {name.ljust(width)}  {value}" for name, value in zip(names, row, strict=True)]
        blocks.append("\n".join([f"row {index}", *lines]))
    return "\n".join(blocks)
