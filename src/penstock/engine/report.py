"""Say where the time of a loader goes: how long each step waited, which stage was the bottleneck, and what would help.

`Loader.report` makes a `Report` from its counters; print it, or hand `prometheus()` to whatever scrapes the job. It
looks at the last steps only, measures nothing itself, changes nothing and serves no port.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.engine import host
from penstock.engine.loader import WAIT_BOUNDS, Stats, Step
from penstock.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


__all__ = ["Report"]

STAGES = ("read", "gather", "finish")
"""What the workers do."""
HAND_OVER = "hand-over"
"""What is done behind them, once for each batch: conversion, copies, decoding and transforms on a device."""
WORDS = {
    "read": "reading",
    "gather": "gathering rows",
    "finish": "decoding",
    "consumer": "none: the loader keeps up",
    HAND_OVER: "handing batches over",
    "start": "the first batch",
    "passing": "passing batches on",
    "room": "room to work ahead",
}
KEEPS_UP = 0.05
"""A consumer that waits for less than this share of its time has nothing to gain here."""
BUSY = 0.5
"""Threads that work for less than this share of the time are held up by something else than work."""
FEW = 0.02
"""Where this share of the steps holds most of the waiting, it is about beginnings and not about speed."""
PAUSE_S = 1.0
PAUSE_FACTOR = 20
"""Between two steps the consumer did something else (a checkpoint, an evaluation) if it took so much more time."""
SLOW_STORE = 100e6
"""Bytes a second and thread (of memory, not of the file) below which a read mostly waits for the store."""
SHORT_STEP_S = 0.005
"""Steps below this are so short that passing batches between threads counts."""
MOST_LINES = 8


@dataclass(frozen=True, slots=True)
class Steps:
    """What each of some consecutive steps took; arrays of equal length, in order."""

    first: int
    """Number of the first step, counted from 1 over the life of the loader."""
    num_rows: NDArray[np.int64]
    wait_s: NDArray[np.float64]
    """Seconds that the consumer waited for the batch, as it got it."""
    own_s: NDArray[np.float64]
    """Seconds from the batch before to asking for this one: the consumer's own work, 0 where it was a pause."""
    stage_s: Mapping[str, NDArray[np.float64]]
    """Seconds of read, gather, finish (decoding and transform) and hand-over in that time, summed over threads."""
    bytes_read: int
    """Bytes read in that time, as they are in memory."""
    num_pauses: int
    """Steps before which the consumer did something else."""

    def __len__(self) -> int:
        return len(self.wait_s)

    @property
    def seconds(self) -> float:
        """Time of all steps, pauses left out."""
        return float(self.wait_s.sum() + self.own_s.sum())

    @property
    def wait_share(self) -> float:
        """Part of the time that the consumer waited."""
        return float(self.wait_s.sum()) / max(self.seconds, 1e-9)

    def busiest(self, part: slice) -> str:
        """Return the stage that took most in some of the steps."""
        return max(STAGES, key=lambda stage: float(self.stage_s[stage][part].sum()))


def steps_of(kept: list[Step], num_batches: int) -> Steps:
    """Take the remembered steps apart; the oldest only says where the second began, unless it was the very first."""
    names = (*STAGES, HAND_OVER)
    sums = np.array([(s.read_s, s.gather_s, s.finish_s, s.hand_over_s) for s in kept], np.float64)
    sums = sums.reshape(-1, len(names))
    end = np.array([s.end for s in kept], np.float64)
    wait = np.array([s.wait_s for s in kept], np.float64)
    begin = np.concatenate((end[:1] - wait[:1], end[:-1]))
    own = np.maximum(end - begin - wait, 0.0)
    stages = np.diff(sums, axis=0, prepend=np.zeros((1, len(names))))
    skip = 0 if len(kept) == num_batches else 1
    pause = own > max(PAUSE_S, PAUSE_FACTOR * float(np.median(own)) if len(own) else 0.0)
    return Steps(
        first=num_batches - len(kept) + 1 + skip,
        num_rows=np.array([s.num_rows for s in kept], np.int64)[skip:],
        wait_s=wait[skip:],
        own_s=np.where(pause, 0.0, own)[skip:],
        stage_s={stage: stages[skip:, number] for number, stage in enumerate(names)},
        bytes_read=kept[-1].bytes_read - (kept[0].bytes_read if skip else 0) if kept else 0,
        num_pauses=int(pause[skip:].sum()),
    )


@dataclass(frozen=True, slots=True)
class Report:
    """Where a loader's time went; `print` it."""

    stats: Mapping[str, float]
    """The counters of `Loader.stats`, since the loader was made."""
    steps: Steps
    """The last steps, one by one."""
    waits: tuple[int, ...]
    """How many waits there were in each class, since the loader was made."""
    rank: int
    """Whose report it is."""
    world: int
    """Number of ranks."""
    workers: int
    """Threads or processes."""
    pool: str
    """Where work is done: "thread", "process" or "serial"."""
    has_transform: bool
    """Whether there is a function of the user in the last stage."""
    num_waiting: int
    """Batches that were made and waited for the consumer when the report was made."""
    num_skipped: int
    """Rows left out because they are damaged."""
    hands_over_ahead: bool = False
    """Whether threads of their own hand batches over, ahead of the consumer, who otherwise waits for it."""

    @property
    def busy(self) -> Mapping[str, float]:
        """Share of the threads' time that each stage took."""
        capacity = max(self.steps.seconds * self.workers, 1e-9)
        return {stage: float(self.steps.stage_s[stage].sum()) / capacity for stage in STAGES}

    @property
    def bottleneck(self) -> str:
        """What bounds the speed: "consumer", a stage, "start", "passing" or "room"; "" without a step.

        The stages are "read", "gather" and "finish", and "hand-over" to a framework or a device. "start": the first
        batches after a beginning hold most of the waiting. Otherwise the threads were idle while the consumer waited:
        "passing", where steps take a few milliseconds and passing batches between threads counts, or "room", for want
        of memory to work ahead.
        """
        steps = self.steps
        if not len(steps):
            return ""
        if steps.wait_share < KEEPS_UP:
            return "consumer"
        longest = np.sort(steps.wait_s)[-max(1, round(FEW * len(steps))) :]
        if len(steps) >= 1 / FEW and (steps.wait_s.sum() - longest.sum()) / steps.seconds < KEEPS_UP:
            return "start"
        if self._waits_for_hand_over(slice(None)):
            return HAND_OVER
        if self.pool == "serial" or sum(self.busy.values()) >= BUSY:
            return steps.busiest(slice(None))
        return "passing" if steps.seconds < SHORT_STEP_S * len(steps) else "room"

    def _waits_for_hand_over(self, part: slice) -> bool:
        """Whether in these steps most of the waiting was for the hand-over and not for the workers."""
        seconds = float(self.steps.stage_s[HAND_OVER][part].sum())
        wait = float(self.steps.wait_s[part].sum())
        if not self.hands_over_ahead:  # it is a part of the wait
            return seconds > BUSY * wait
        worked = sum(float(self.steps.stage_s[stage][part].sum()) for stage in STAGES) / self.workers
        return seconds > BUSY * (wait + float(self.steps.own_s[part].sum())) and seconds > worked

    @property
    def advice(self) -> str:
        """One line: what would help."""
        kind = self.bottleneck
        if not kind:
            return "iterate over the loader first"
        if kind == "finish" and self.has_transform:
            kind = f"finish-{'process' if self.pool == 'process' else 'thread'}"
        elif kind == HAND_OVER and self.hands_over_ahead:
            kind = f"{kind}-ahead"
        rate = self.steps.bytes_read / max(float(self.steps.stage_s["read"].sum()), 1e-9)
        if kind == "read" and rate < SLOW_STORE:
            kind = "read-slow"
        cores = host.cores()
        return _ADVICE[kind].format(
            workers=self.workers,
            idle=f"{1 - sum(self.busy.values()):.0%}",
            more=f"raise workers= ({self.workers} of {cores} cores)" if self.workers < cores else "give it more cores",
            step=_ms(self.steps.seconds / len(self.steps)),
            each=_ms(float(self.steps.stage_s[HAND_OVER].sum()) / len(self.steps)),
            rate=f"{rate / 1e6:,.0f} MB/s",
        )

    def __str__(self) -> str:
        steps = self.steps
        if not len(steps):
            return f"Report of rank {self.rank} of {self.world}: no batch was delivered yet"
        rows, seconds, wait, pauses = int(steps.num_rows.sum()), steps.seconds, steps.wait_s, steps.num_pauses
        head = (
            f"Report of rank {self.rank} of {self.world}: the last {len(steps):,} of {int(self.stats['batches']):,} "
            f"steps, {rows:,} rows in {seconds:,.2f} s, {rows / max(seconds, 1e-9):,.0f} rows/s"
        )
        middle, high = (float(np.quantile(wait, q)) for q in (0.5, 0.95))
        waited = (
            f"waited      {wait.sum():,.2f} s, {steps.wait_share:.0%} of the time; a step: median {_ms(middle)}, "
            f"95% below {_ms(high)}, most {_ms(float(wait.max()))}"
        )
        if pauses:
            waited += f"; {pauses} pause{'s' * (pauses > 1)} of your own left out"
        what = "the consumer itself"
        if self.pool != "serial":
            word, plural = ("process", "processes") if self.pool == "process" else ("thread", "threads")
            what = f"{self.workers} {word if self.workers == 1 else plural}"
        parts = ", ".join(f"{self._words(stage)} {share:.0%}" for stage, share in self.busy.items())
        worked = f"worked      {what}: {sum(self.busy.values()):.0%} of the time: {parts}"
        if hand_over := float(steps.stage_s[HAND_OVER].sum()):
            worked += f"; {WORDS[HAND_OVER]} {hand_over / max(seconds, 1e-9):.0%}"
        lines = [head, waited, worked, *self._table(), f"bottleneck  {self._words(self.bottleneck)}"]
        return "\n  ".join([*lines, f"advice      {self.advice}"])

    def _table(self) -> list[str]:
        """Return lines of a few steps each: the wait for each batch, and the work done in that time."""
        steps = self.steps
        size = -(-len(steps) // MOST_LINES)
        lines = [f"{'steps':>15}  {'waited a step':>13}  {'of the step':>11}  busiest stage"]
        for begin in range(0, len(steps), size):
            part = slice(begin, begin + size)
            wait, own = float(steps.wait_s[part].sum()), float(steps.own_s[part].sum())
            last = steps.first + min(begin + size, len(steps)) - 1
            name = f"{steps.first + begin:,} to {last:,}"
            share, each = wait / max(wait + own, 1e-9), _ms(wait / len(steps.wait_s[part]))
            busiest = HAND_OVER if self._waits_for_hand_over(part) else steps.busiest(part)
            lines.append(f"{name:>15}  {each:>13}  {share:>11.0%}  {self._words(busiest)}")
        return lines

    def _words(self, kind: str) -> str:
        return "decoding and transform" if kind == "finish" and self.has_transform else WORDS[kind]

    def prometheus(self, **labels: str) -> str:
        """Return the counters in Prometheus' text format, with rank and world as labels, and `labels` if given."""
        return prometheus_text(self, {"rank": str(self.rank), "world": str(self.world), **labels}, WAIT_BOUNDS)


def make_report(stats: Stats, **known: Any) -> Report:
    """Return the report of a loader's counters as they stand now; `known` are the other fields of `Report`."""
    steps = steps_of(stats.last_steps(), stats.batches)
    return Report(stats=stats.as_dict(), steps=steps, waits=tuple(stats.waits()), **known)


_ADVICE = {
    "consumer": "nothing to do here: time goes to your own step, not to data",
    "start": (
        "most of it is the wait for the first batch, while the shuffle buffer fills: run several epochs in one pass "
        "(epochs=) instead of a new loop for each, or use a smaller shuffle_bytes"
    ),
    HAND_OVER: (
        "what comes behind the workers takes {each} a batch (conversion, copies, device_transform), in your own "
        "thread: do it in transform=, which the workers run ahead of need, or make it cheaper"
    ),
    f"{HAND_OVER}-ahead": (
        "bringing a batch to the device takes {each} (conversion, copy, decoding there, device_transform), by threads "
        "of its own that hardly rest: make device_transform cheaper, do a part of it in transform=, or send less"
    ),
    "passing": (
        "a step takes {step}, and {idle} of the {workers} workers' time was idle: at that pace passing batches on "
        "counts; use larger batches"
    ),
    "room": (
        "{idle} of the {workers} workers' time was idle while you waited: raise memory_bytes, so that more is read and "
        "made ahead, or read smaller chunks (parts of row groups with shuffle=True, or smaller row groups)"
    ),
    "read": "reading and decompressing takes most, {rate} a thread: {more}, or read fewer columns",
    "read-slow": (
        "the store gives {rate} to a thread: keep what was read (penstock.open(..., cache='local-disk')), read fewer "
        "columns, or raise workers=; threads that wait need no core"
    ),
    "gather": (
        "picking single rows takes most: read fewer columns, use larger batches, or shuffle='groups' where that mixes "
        "enough"
    ),
    "finish": ("decoding takes most: {more}, or store smaller pictures or plain `.npy` cells"),
    "finish-thread": (
        "decoding and your transform take most: {more}, work on whole columns in NumPy, or use pool='process' if the "
        "transform loops over rows in Python"
    ),
    "finish-process": (
        "decoding and your transform take most: {more}, or do less in the transform: work on whole columns, on the "
        "device where there is one"
    ),
}


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"


_COUNTERS = {
    "rows": ("rows_total", "Rows delivered."),
    "batches": ("batches_total", "Batches delivered."),
    "chunks_read": ("chunks_read_total", "Chunks read: row groups, or parts of them."),
    "bytes_read": ("read_bytes_total", "Bytes read, as they lie in memory."),
}
_STAGES = ("read", "gather", "finish", "hand_over")
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


def prometheus_text(report: Report, labels: Mapping[str, str], bounds: Sequence[float]) -> str:
    """Return all counters of a report; `bounds` are the upper ends of its classes of waits."""
    for label in labels:
        if not _NAME.match(label) or label.startswith("__") or label in ("le", "stage"):
            raise PlanError(f"{label!r} cannot be the name of a label here; use letters, digits and underscores")
    own = {label: str(text) for label, text in labels.items()}
    stages = [({**own, "stage": stage}, report.stats[f"{stage}_s"]) for stage in _STAGES]
    metric, totals = "penstock_wait_seconds", list(itertools.accumulate(report.waits))
    classes = zip([*map(_number, bounds), "+Inf"], totals, strict=True)
    lines = [
        *(
            line
            for key, (name, help_text) in _COUNTERS.items()
            for line in _metric(name, "counter", help_text, [(own, report.stats[key])])
        ),
        *_metric("stage_seconds_total", "counter", "Seconds spent in each stage, summed over threads.", stages),
        *_metric("skipped_rows_total", "counter", "Damaged rows left out.", [(own, report.num_skipped)]),
        *_metric("waiting_batches", "gauge", "Batches made that wait for the consumer.", [(own, report.num_waiting)]),
        *_metric("workers", "gauge", "Threads or processes.", [(own, report.workers)]),
        f"# HELP {metric} Seconds that the consumer waited for a batch.",
        f"# TYPE {metric} histogram",
        *(_sample(f"{metric}_bucket", {**own, "le": bound}, count) for bound, count in classes),
        _sample(f"{metric}_sum", own, report.stats["wait_s"]),
        _sample(f"{metric}_count", own, totals[-1]),
    ]
    return "\n".join([*lines, ""])


def _metric(name: str, kind: str, help_text: str, samples: Sequence[tuple[dict[str, str], float]]) -> list[str]:
    head = [f"# HELP penstock_{name} {help_text}", f"# TYPE penstock_{name} {kind}"]
    return [*head, *(_sample(f"penstock_{name}", labels, value) for labels, value in samples)]


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
