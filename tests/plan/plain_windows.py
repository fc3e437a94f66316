"""The plain twin of `penstock.plan.windows`: Petastorm's rules for windows over time, row by row.

Slow and obviously right. The property tests compare the fast windows with it; it holds no tests and shares no code with
the package.
"""

from __future__ import annotations

from itertools import pairwise


class NotInOrder(Exception):
    """A candidate whose timestamps decrease."""


def starts(timestamps, length, threshold, overlap=True, stride=1):
    """Where windows start in one stretch of rows: try every row, keep what the rules allow."""
    kept = []
    for start in range(len(timestamps) - length + 1):
        candidate = timestamps[start : start + length]
        pairs = list(pairwise(candidate))
        if not all(a <= b for a, b in pairs):
            raise NotInOrder
        if not all(b - a <= threshold for a, b in pairs):
            continue
        if kept and not overlap and not candidate[0] > timestamps[kept[-1] + length - 1]:
            continue
        if kept and start - kept[-1] < stride:
            continue
        kept.append(start)
    return kept


def stretches(timestamps, breaks):
    """The rows cut at `breaks`, each stretch with its first row."""
    edges = [0, *sorted({b for b in breaks if 0 < b < len(timestamps)}), len(timestamps)]
    return [(a, timestamps[a:b]) for a, b in pairwise(edges)]


def starts_between(timestamps, breaks, **rule):
    """Where windows start when no window crosses a break: every stretch for itself."""
    return [first + s for first, rows in stretches(timestamps, breaks) for s in starts(rows, **rule)]


def windows(chunks, *, span, breaks=(), **rule):
    """All windows of a dataset, each as the list of its rows (chunk, row)."""
    places = [(c, r) for c, rows in enumerate(chunks) for r in range(len(rows))]
    line = [t for rows in chunks for t in rows]
    cuts = []
    for i in range(1, len(places)):
        (before, _), (after, _) = places[i - 1], places[i]
        border = before != after
        forced = any(before < b <= after for b in breaks)
        if border and (not span or forced or not line[i - 1] <= line[i]):
            cuts.append(i)
    return [places[s : s + rule["length"]] for s in starts_between(line, cuts, **rule)]
