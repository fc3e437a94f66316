"""A dataset as text and as HTML: its schema and its size, for people at a prompt or in a notebook.

Looks only at facts that are already there; reads no data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import printable

if TYPE_CHECKING:
    from penstock.rows import DatasetRows

_MOST_COLUMNS = 40


def size_text(num_bytes: float) -> str:
    """Return bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(num_bytes) < 1024 or unit == "TiB":
            return f"{num_bytes:.0f} {unit}" if unit == "B" or num_bytes >= 100 else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return ""


def headline(dataset: DatasetRows) -> str:
    """Return rows, columns, files, row groups (or what the source calls them) and size in one line."""
    groups = count_text(len(dataset.chunks), dataset.source.facts.part_noun)
    return (
        f"{len(dataset):,} rows x {count_text(len(dataset.columns), 'column')} in "
        f"{count_text(len(dataset.files), 'file')}, {groups}, {size_text(dataset.num_bytes)}"
    )


def count_text(number: int, word: str) -> str:
    """Return a number of things, in the singular for one."""
    return f"{number:,} {word}{'s' * (number != 1)}"


def schema_rows(dataset: DatasetRows) -> list[tuple[str, str, str, str, str]]:
    """Return name, dtype, shape, nullable and codec of every column, as text that is safe to print."""
    rows = []
    for name, field in dataset.schema.fields.items():
        dtype = field.numpy_dtype
        kind = "any" if dtype is None else getattr(dtype, "__name__", None) or str(np.dtype(dtype))
        shape = "scalar" if field.shape == () else "x".join("?" if n is None else str(n) for n in field.shape)
        codec = "" if field.codec is None else printable(str(field.codec))
        rows.append((printable(name), kind, shape, "nullable" if field.nullable else "", codec))
    return rows


def dataset_text(dataset: DatasetRows) -> str:
    """Return the headline and one line a column."""
    rows = schema_rows(dataset)
    widths = [max((len(row[i]) for row in rows[:_MOST_COLUMNS]), default=0) for i in range(5)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows[:_MOST_COLUMNS]
    ]
    more = [f"... and {len(rows) - _MOST_COLUMNS:,} more columns"] if len(rows) > _MOST_COLUMNS else []
    return "\n".join([f"Dataset: {headline(dataset)}", *(f"  {line}" for line in lines + more)])


def dataset_html(dataset: DatasetRows) -> str:
    """Return the same as a small table."""
    import html  # has a table of 2,000 entities: only where a notebook asks

    head = "".join(f"<th style='text-align:left'>{name}</th>" for name in ("column", "dtype", "shape", "", "codec"))
    rows = schema_rows(dataset)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows[:_MOST_COLUMNS]
    )
    more = f"<p>... and {len(rows) - _MOST_COLUMNS:,} more columns</p>" if len(rows) > _MOST_COLUMNS else ""
    return f"<div><b>Dataset</b>: {html.escape(headline(dataset))}<table><tr>{head}</tr>{body}</table>{more}</div>"
