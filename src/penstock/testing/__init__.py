"""Helpers for tests of code that uses Penstock, and of Penstock itself; part of what users install.

`assert_resumes_exactly` checks any loader, `make_parquet` and `random_rows` make data, `RecordingFileSystem`,
`DelayingFileSystem`, `FaultyFileSystem` and `FaultyFsspec` watch, slow down or disturb what is read. `MemorySource` is
a source of rows in memory. Hypothesis strategies are in `penstock.testing.strategies`, which needs hypothesis; the
conformance suite of sources is `penstock.testing.source_suite.SourceTests`, which needs pytest. Nothing in the library
imports this package.
"""

from penstock.testing.compare import assert_resumes_exactly, assert_same, difference
from penstock.testing.data import ODD_FILES, make_parquet, mixed, numbers, random_rows
from penstock.testing.filesystems import (
    DelayingFileSystem,
    FaultyFileSystem,
    FaultyFsspec,
    Reads,
    RecordingFileSystem,
    ServerError,
    TransientFaults,
)
from penstock.testing.sources import FaultySource, MemorySource

__all__ = [
    "ODD_FILES",
    "DelayingFileSystem",
    "FaultyFileSystem",
    "FaultyFsspec",
    "FaultySource",
    "MemorySource",
    "Reads",
    "RecordingFileSystem",
    "ServerError",
    "TransientFaults",
    "assert_resumes_exactly",
    "assert_same",
    "difference",
    "make_parquet",
    "mixed",
    "numbers",
    "random_rows",
]
