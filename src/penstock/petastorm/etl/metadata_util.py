"""`python -m penstock.petastorm.etl.metadata_util`: print the schema and the row-group indexes stored with a dataset.

Reads `_common_metadata` (or the first file's footer) and writes to standard output. Changes nothing.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from penstock.petastorm.etl.dataset_metadata import get_schema_from_dataset_url
from penstock.petastorm.tools._command import command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["main"]


@command("metadata_util")
def main(args: Sequence[str] | None = None) -> None:
    """Print what the command line requests."""
    given = _parser().parse_args(args)
    if given.schema:
        sys.stdout.write(f"{get_schema_from_dataset_url(given.dataset_url)}\n")
    if given.index:
        for line in _index_lines(given.dataset_url, set(given.skip_index), values=given.print_values):
            sys.stdout.write(f"{line}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="metadata_util", description="Print what is stored with a dataset.")
    parser.add_argument("--dataset-url", required=True, help="folder of the dataset, e.g. file:///data/set")
    parser.add_argument("--schema", action="store_true", help="print the schema")
    parser.add_argument("--index", action="store_true", help="print the row-group indexes")
    parser.add_argument("--print-values", action="store_true", help="print the row groups of every indexed value")
    parser.add_argument("--skip-index", nargs="+", default=[], metavar="NAME", help="indexes to leave out")
    parser.add_argument("--hdfs-driver", default="libhdfs3", help="ignored: one driver is left")
    return parser


def _index_lines(dataset_url: str, skipped: set[str], *, values: bool) -> Iterator[str]:
    from penstock.petastorm.etl.rowgroup_indexing import get_row_group_indexes

    for name, indexer in sorted(get_row_group_indexes(dataset_url).items()):
        if name in skipped:
            continue
        indexed = sorted(indexer.indexed_values, key=str)
        yield f"index {name!r} of {', '.join(indexer.column_names)}: {len(indexed)} values"
        for value in indexed if values else []:
            groups = sorted(indexer.get_row_group_indexes(value))
            yield f"  {value!r}: row groups {', '.join(map(str, groups))}"


if __name__ == "__main__":
    main()
