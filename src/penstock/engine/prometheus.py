"""Counters of a loader in the text format that Prometheus reads (version 0.0.4).

Takes a `Report` and labels and returns text, one sample a line; serves no port and registers nothing: write it to a
file for the node exporter's textfile collector, or return it from an endpoint of your own.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from penstock.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.engine.report import Report

_COUNTERS = {
    "rows": ("rows_total", "Rows delivered."),
    "batches": ("batches_total", "Batches delivered."),
    "chunks_read": ("chunks_read_total", "Row groups read."),
    "bytes_read": ("read_bytes_total", "Bytes read, as they lie in memory."),
}
_STAGES = ("read", "gather", "finish", "hand_over")
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


def prometheus_text(report: Report, labels: Mapping[str, str], bounds: Sequence[float]) -> str:
    """Return all counters of a report; `bounds` are the upper ends of its classes of waits."""
    own = _labels(labels)
    lines: list[str] = []
    for key, (name, help_text) in _COUNTERS.items():
        lines += _metric(name, "counter", help_text, [(own, report.stats[key])])
    stages = [({**own, "stage": stage}, report.stats[f"{stage}_s"]) for stage in _STAGES]
    lines += _metric("stage_seconds_total", "counter", "Seconds spent in each stage, summed over threads.", stages)
    lines += _metric("skipped_rows_total", "counter", "Damaged rows left out.", [(own, report.num_skipped)])
    lines += _metric(
        "waiting_batches", "gauge", "Batches made that wait for the consumer.", [(own, report.num_waiting)]
    )
    lines += _metric("workers", "gauge", "Threads or processes.", [(own, report.workers)])
    return "\n".join([*lines, *_waits(report, own, bounds)]) + "\n"


def _waits(report: Report, own: dict[str, str], bounds: Sequence[float]) -> list[str]:
    name, totals = "penstock_wait_seconds", list(itertools.accumulate(report.waits))
    lines = [f"# HELP {name} Seconds that the consumer waited for a batch.", f"# TYPE {name} histogram"]
    for bound, count in zip([*map(_number, bounds), "+Inf"], totals, strict=True):
        lines.append(_sample(f"{name}_bucket", {**own, "le": bound}, count))
    return [*lines, _sample(f"{name}_sum", own, report.stats["wait_s"]), _sample(f"{name}_count", own, totals[-1])]


def _metric(name: str, kind: str, help_text: str, samples: Sequence[tuple[dict[str, str], float]]) -> list[str]:
    head = [f"# HELP penstock_{name} {help_text}", f"# TYPE penstock_{name} {kind}"]
    return [*head, *(_sample(f"penstock_{name}", labels, value) for labels, value in samples)]


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {_number(value)}"


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    for name in labels:
        if not _NAME.match(name) or name.startswith("__") or name in ("le", "stage"):
            raise PlanError(f"{name!r} cannot be the name of a label here; use letters, digits and underscores")
    return {name: str(text) for name, text in labels.items()}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
