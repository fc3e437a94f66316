"""`penstock doctor URL`: what is wrong with a dataset for training, how much it costs, and what to do.

Passes the options to `penstock.doctor.examine` and returns its report as text or JSON, with the exit status.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.cli.text import given
from penstock.doctor import examine

if TYPE_CHECKING:
    import argparse

EXIT_PROBLEM = 3
"""Differs from the status of errors, so scripts can tell a bad layout from a wrong path."""


def doctor(options: argparse.Namespace) -> tuple[str, int]:
    """Return the report, and 3 if it has a problem (0 for advice only)."""
    names = ("label", "world", "batch_size", "row_group_bytes", "shuffle_bytes")
    source = options.url if len(options.url) > 1 else options.url[0]
    report = examine(source, storage_options=dict(options.storage_option) or None, **given(options, names))
    text = json.dumps(report.to_json(), indent=2) if options.json else str(report)
    return text, 0 if report.ok else EXIT_PROBLEM
