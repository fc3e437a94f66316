"""Take an open dataset into another process: its facts travel, its files and connections do not.

A worker process gets files, row counts, schema and selected rows as they were found, so that it lists nothing, opens
no footer before it reads that file, and evaluates no filter again; filesystems are made anew there. A file that has
changed since is noticed when it is read, as everywhere.
"""

from __future__ import annotations

from typing import Any

from penstock.api import Dataset


class Shipped:
    """A dataset that can be pickled, as attribute `dataset`."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __reduce__(self) -> tuple[Any, ...]:
        dataset = self.dataset
        return _unship, (dataset._source, dataset._selection, dataset._names, dataset._late)


def _unship(*parts: Any) -> Shipped:
    return Shipped(Dataset(*parts))
