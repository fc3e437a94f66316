"""Take an open dataset into another process: its facts travel, its files and connections do not.

A worker process gets files, row counts, schema and selected rows as they were found, so that it lists nothing, opens
no footer before it reads that file, and evaluates no filter again; filesystems are made anew there. A file that has
changed since is noticed when it is read, as everywhere.
"""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from penstock.api import Dataset
from penstock.dataset.cached import CachedFiles
from penstock.dataset.footers import FooterCache
from penstock.dataset.parquet import ParquetSource

if TYPE_CHECKING:
    from collections.abc import Mapping

_STAYS = ("_lock", "_footers", "_cached", "_verified", "partitions")
"""What a source has that belongs to its process, or that is made from the rest."""


class Shipped:
    """A dataset that can be pickled; `dataset` is it."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __reduce__(self) -> tuple[Any, ...]:
        dataset = self.dataset
        dataset._source.content()  # once here, instead of reading all footers again in every worker
        facts = {name: value for name, value in vars(dataset._source).items() if name not in _STAYS}
        partitions = dict(dataset._source.partitions)
        return _unship, (facts, partitions, dataset._selection, dataset._names, dataset._late)


def _unship(facts: Mapping[str, Any], partitions: dict[str, Any], *rest: Any) -> Shipped:
    source = ParquetSource.__new__(ParquetSource)
    vars(source).update(facts)
    source.partitions = MappingProxyType(partitions)
    source._lock = threading.Lock()
    source._footers = FooterCache()
    source._verified = {}
    source._cached = None if source.cache is None else CachedFiles(source.cache)
    return Shipped(Dataset(source, *rest))
