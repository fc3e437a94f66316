"""`penstock rewrite URL OUT`: write a dataset again in another layout, optionally shuffled.

Passes the options to `penstock.doctor.rewrite` and returns what was written as text. Knows no layout itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.text import given
from penstock.doctor import rewrite as rewrite_dataset

if TYPE_CHECKING:
    import argparse


def rewrite(options: argparse.Namespace) -> str:
    """Write the dataset and return one line about it."""
    names = ("row_group_bytes", "rows_per_file", "seed", "partition_by", "memory_bytes", "temp_folder")
    keywords: dict[str, Any] = given(options, names)
    if options.compression is not None:
        keywords["compression"] = None if options.compression.lower() == "none" else options.compression
    written = rewrite_dataset(
        options.url if len(options.url) > 1 else options.url[0],
        options.out,
        shuffle=options.shuffle,
        on_error="skip" if options.skip_bad_files else "raise",
        overwrite=options.overwrite,
        storage_options=dict(options.storage_option) or None,
        **keywords,
    )
    return str(written)
