"""Run a loader and the limit alternately on one dataset and compare their rates.

A round is a new loader (warmed up, then timed) and the limit for the same time; on a machine with other load only
neighbours in time can be compared, so the ratio is the median of the ratios of the rounds. Shows a progress bar on a
terminal.

The limit is the least work by hand: read row groups in threads, turn columns into arrays in the shortest way. It does
not shuffle rows, build batches, keep an order, bound its memory or check what it reads, and delivers nothing: a loader
that reaches 0.85 of it spends 15% on all of that.
"""

from __future__ import annotations

import importlib
import io
import itertools
import os
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from penstock.dataset import as_parquet
from penstock.engine import host
from penstock.engine.inputs import Column, columns_of
from penstock.errors import PlanError
from penstock.progress import Progress, progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from penstock.api import Dataset
    from penstock.engine.report import Report

    Work = Callable[[Any], None]

Framework = Literal["numpy", "torch", "tensorflow", "jax"]
FRAMEWORKS: tuple[Framework, ...] = ("numpy", "torch", "tensorflow", "jax")
_PER_SECOND = 10
"""Ticks of the progress bar."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What to measure."""

    options: Mapping[str, Any]
    """Keywords of the loader: batch_size, shuffle and so on."""
    framework: Framework = "numpy"
    """The framework of the batches."""
    seconds: float = 3.0
    """Length of each timed interval."""
    batches: int | None = None
    """Batches of each timed interval of the loader, instead of `seconds`; the limit then runs for as long, but for
    half a second at least if `seconds` allows it."""
    warm_up_s: float = 1.0
    """How long a loader runs before it is timed; at least one batch."""
    rounds: int = 3
    """How often the loader and the limit alternate."""

    def __post_init__(self) -> None:
        if self.framework not in FRAMEWORKS:
            raise PlanError(f"framework is one of {', '.join(FRAMEWORKS)}; got {self.framework!r}")
        if "device" in self.options and self.framework != "torch":
            raise PlanError(f"device= needs the framework torch; got {self.framework}")
        least = min(self.rounds, 1 if self.batches is None else self.batches)
        if least < 1 or self.seconds <= 0 or self.warm_up_s < 0:
            raise PlanError(
                "rounds and batches must be at least 1, seconds more than 0 and the warm-up not negative; got "
                f"rounds={self.rounds}, batches={self.batches}, seconds={self.seconds}, warm_up_s={self.warm_up_s}"
            )

    @property
    def total_s(self) -> float:
        """Approximate duration; a guess if `batches` is given."""
        return self.rounds * (self.warm_up_s + 2 * self.seconds)


_LEAST_S = 0.5
"""Shorter intervals say little: what waits ready counts, and threads have to start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The result of all rounds."""

    task: Workload
    ours: tuple[float, ...]
    """Rows per second of the loader, round by round."""
    limit: tuple[float, ...]
    """Rows per second of the limit."""
    row_bytes: float
    """Bytes of a row in the loader's batches."""
    limit_work: str
    """What the limit did."""
    first_s: float
    """From creating the loader to its first batch, in the first round; no data file was read before."""
    timed_s: float
    """The shortest timed interval of the loader."""
    peak_bytes: int | None
    """Peak memory of this process, including the limit and the framework; None if unknown."""
    report: str
    """Where the loader spent its time in the last round."""

    @property
    def ratios(self) -> list[float]:
        """The loader's rate over the limit's, smallest first."""
        return sorted(ours / limit for ours, limit in zip(self.ours, self.limit, strict=True))

    @property
    def ratio(self) -> float:
        """Their median."""
        return statistics.median(self.ratios)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as plain JSON."""
        return {
            "framework": self.task.framework,
            "rows_per_s": statistics.median(self.ours),
            "mb_per_s": statistics.median(self.ours) * self.row_bytes / 1e6,
            "limit_rows_per_s": statistics.median(self.limit),
            "ratio": self.ratio,
            "ratios": self.ratios,
            "first_batch_s": self.first_s,
            "peak_bytes": self.peak_bytes,
        }

    def __str__(self) -> str:
        ours, limit = statistics.median(self.ours), statistics.median(self.limit)
        batches = ours / self.task.options["batch_size"]
        low, high = self.ratios[0], self.ratios[-1]
        short = ""
        if self.timed_s < _LEAST_S:
            short = (
                f"{'':<22}the loader was timed for {self.timed_s:.3f} s only, mostly with batches that were ready "
                "before: measure more of them\n"
            )
        memory = "" if self.peak_bytes is None else f"; peak memory {self.peak_bytes / 1e6:,.0f} MB"
        return (
            f"{f'penstock, {self.task.framework}':<22}{ours:>14,.0f} rows/s{ours * self.row_bytes / 1e6:>10,.1f} "
            f"MB/s{batches:>12,.1f} batches/s; first batch after {self.first_s:.2f} s{memory}\n"
            f"{'limit, by hand':<22}{limit:>14,.0f} rows/s  ({self.limit_work})\n"
            f"{'ratio':<22}{self.ratio:>14.2f}         ({low:.2f} to {high:.2f} in {len(self.ours)} rounds)\n{short}\n"
            f"{self.report}"
        )


def measure(dataset: Dataset, task: Workload) -> Result:
    """Measure a dataset; takes about `task.total_s` seconds.

    The loader runs without end, so what fits into its memory is read once, as in training over many epochs; the limit
    reads every time. Raises ImportError with the line to install where the framework is missing.
    """
    make, look = _maker(task.framework)
    if not len(dataset):
        raise PlanError("the dataset has no rows: there is nothing to measure")
    limit = Limit(dataset, task.options.get("workers") or host.default_workers())
    limits: list[float] = []
    rounds: list[_Round] = []
    with progress(int(task.total_s * _PER_SECOND), "measuring", unit="ticks") as bar:
        tick = _Ticker(bar)
        for number in range(task.rounds):
            rounds.append(_round(lambda: make(dataset, **task.options, epochs=None), task, look, tick))
            tick.up_to((number + 1) * (task.warm_up_s + task.seconds) + number * task.seconds)
            rows, seconds = limit.run(max(rounds[-1].seconds, min(task.seconds, _LEAST_S)), tick)
            limits.append(rows / seconds)
    return Result(
        task=task, ours=tuple(one.rows / one.seconds for one in rounds), limit=tuple(limits),
        row_bytes=rounds[-1].row_bytes, limit_work=limit.describe(), first_s=rounds[0].first_s,
        timed_s=min(one.seconds for one in rounds), peak_bytes=peak_bytes(), report=rounds[-1].report,
    )  # fmt: skip


class _Round(NamedTuple):
    """What one loader did in its timed interval."""

    rows: int
    seconds: float
    first_s: float
    row_bytes: float
    report: str


def _round(make: Callable[[], Any], task: Workload, look: Callable[[Any], int], tick: Callable[[], None]) -> _Round:
    """Warm a loader up, then time it."""
    began = time.perf_counter()
    loader = make()
    try:
        batches = iter(loader)
        batch = next(batches)
        row_bytes = _num_bytes(batch) / max(1, look(batch))
        first_s = time.perf_counter() - began
        del batch
        _take(batches, task.warm_up_s - first_s, None, look, tick)
        warm = loader.stats()
        start = time.perf_counter()
        rows = _take(batches, task.seconds, task.batches, look, tick)
        seconds = time.perf_counter() - start
        report = str(timed_only(loader.report(), warm))
        del batches
        return _Round(rows, seconds, first_s, row_bytes, report)
    finally:
        loader.close()


def timed_only(report: Report, warm: Mapping[str, float]) -> Report:
    """Return the report without the steps of the warm-up, `warm`: the counters of the loader at its end.

    The wait for the first batch does not matter for a loader that runs for a long time. At least one step is left.
    """
    steps = report.steps
    begin = min(max(0, int(warm["batches"]) + 1 - steps.first), len(steps) - 1)
    if begin <= 0:
        return report
    left = replace(
        steps,
        first=steps.first + begin,
        num_rows=steps.num_rows[begin:],
        wait_s=steps.wait_s[begin:],
        own_s=steps.own_s[begin:],
        stage_s={stage: seconds[begin:] for stage, seconds in steps.stage_s.items()},
        bytes_read=int(report.stats["bytes_read"] - warm["bytes_read"]),
    )
    return replace(report, steps=left)


def _take(
    batches: Iterator[Any], seconds: float, most: int | None, look: Callable[[Any], int], tick: Callable[[], None]
) -> int:
    """Take batches for this long, or `most` of them if given, and return their rows; at least one batch.

    Each is held until the next but one has come, as in training.
    """
    deadline, rows, taken, held = time.perf_counter() + seconds, 0, 0, None
    while not rows or (taken < most if most is not None else time.perf_counter() < deadline):
        batch = next(batches)
        rows += look(batch)
        taken += 1
        held = batch
        tick()
    del held
    return rows


def _maker(framework: Framework) -> tuple[Callable[..., Any], Callable[[Any], int]]:
    """Return a function that creates a loader, and one that waits for a batch and counts its rows."""
    if framework == "numpy":
        return lambda dataset, **options: dataset.loader(**options), _num_rows
    module = importlib.import_module(f"penstock.{framework}")
    if framework == "jax":
        import jax

        return module.loader, lambda batch: _num_rows(jax.block_until_ready(batch))
    return module.loader, _num_rows


def _num_rows(batch: Mapping[str, Any]) -> int:
    values = next(iter(batch.values()))
    shape = getattr(values, "shape", None)
    return int(shape[0]) if shape is not None else len(values)


def _num_bytes(batch: Mapping[str, Any]) -> int:
    """Return the bytes of the arrays and tensors of a batch; text and other objects count as their references."""
    total = 0
    for values in batch.values():
        flat = getattr(values, "flat_values", values)  # of a RaggedTensor
        arrays = flat if isinstance(flat, list) else [flat]
        total += sum(one.nbytes if hasattr(one, "nbytes") else np.asarray(one).nbytes for one in arrays)
    return total


class _Ticker:
    """Advances the bar with the clock."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._began = time.perf_counter()
        self._done = 0

    def __call__(self) -> None:
        self.up_to(time.perf_counter() - self._began)

    def up_to(self, seconds: float) -> None:
        ticks = int(seconds * _PER_SECOND)
        if ticks > self._done:
            self._bar.update(ticks - self._done)
            self._done = ticks


def peak_bytes() -> int | None:
    """Return the peak memory of this process; None on Windows, which does not report it."""
    if os.name == "nt":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


_LIMIT_ROWS = 64
"""Images are decoded into fresh arrays of this many, like a batch."""


class Limit:
    """Reads a dataset repeatedly, for a given time, with as little work as possible."""

    def __init__(self, dataset: Dataset, workers: int) -> None:
        self._source = as_parquet(dataset.source)
        stored = {name for name in dataset.columns if name not in self._source.facts.constants}
        types = [self._source.facts.arrow_schema.field(name).type for name in dataset.columns]
        made = columns_of(dataset.schema.fields.values(), types)
        columns = [column for column in made if column.name in stored]
        self._names = [column.name for column in columns]
        self._work = {column.name: _work(column) for column in columns}
        self._workers = max(1, workers)
        self._chunks = itertools.cycle(range(len(self._source.facts.chunk_rows)))
        self._lock = threading.Lock()

    def describe(self) -> str:
        """Return what is done to the columns, in a few words each."""
        kinds: dict[str, list[str]] = {}
        for name, (kind, _) in self._work.items():
            kinds.setdefault(kind, []).append(name)
        return "; ".join(f"{kind}: {_listed(names)}" for kind, names in kinds.items()) or "nothing is stored to read"

    def run(self, seconds: float, tick: Callable[[], None]) -> tuple[int, float]:
        """Read for about this long and return rows and seconds; the caller's thread calls `tick` from time to time."""
        began = time.perf_counter()
        deadline = began + seconds
        with ThreadPoolExecutor(self._workers, "penstock-limit") as pool:
            jobs = [pool.submit(self._read_until, deadline) for _ in range(self._workers)]
            while not all(job.done() for job in jobs):
                time.sleep(0.02)
                tick()
            rows = sum(job.result() for job in jobs)
        return rows, time.perf_counter() - began

    def _read_until(self, deadline: float) -> int:
        rows = 0
        while not rows or time.perf_counter() < deadline:
            with self._lock:
                chunk = next(self._chunks)
            rows += self._read(chunk)
        return rows

    def _read(self, chunk: int) -> int:
        import pyarrow.parquet as pq

        source = self._source
        file, num_rows = int(source.facts.chunk_file[chunk]), int(source.facts.chunk_rows[chunk])
        if not self._names:
            return num_rows
        one = source.entries[file]
        with one.root.fs.open_input_file(one.path) as stream:
            reader = pq.ParquetFile(stream, metadata=source.footer(file).arrow, pre_buffer=False)
            table = reader.read_row_group(int(source.facts.chunk_part[chunk]), columns=self._names, use_threads=False)
        for name, (_, work) in self._work.items():
            if work is not None:
                work(table.column(name))
        return num_rows


def _work(column: Column) -> tuple[str, Work | None]:
    """Return, in words and as a function, what has to be done with a column; None: nothing after reading."""
    from penstock.codecs import CompressedImageCodec, NdarrayCodec

    if column.form == "fixed":
        return "as read", None
    if column.form == "objects":
        return "left in Arrow's memory", None
    codec = column.codec
    if isinstance(codec, NdarrayCodec) and column.form == "cells":
        return "cells copied without headers", partial(_each_chunk, partial(_npy, column))
    if isinstance(codec, CompressedImageCodec) and column.form == "cells" and column.dtype == np.uint8:
        decode = {"jpeg": _jpeg, "jpg": _jpeg, "png": _png}.get(codec.image_codec)
        if decode is not None:
            return "decoded into arrays", partial(_each_chunk, partial(_pictures, column, decode))
    return "decoded cell by cell", partial(_one_by_one, column)


def _each_chunk(work: Callable[[NDArray[np.uint8], NDArray[Any]], None], column: Any) -> None:
    """Do the work on the bytes and offsets of each chunk that has any."""
    for chunk in column.chunks:
        _, places, data = chunk.buffers()
        if data is not None and len(chunk):
            width = np.int64 if str(chunk.type).startswith("large") else np.int32
            work(np.frombuffer(data, np.uint8), np.frombuffer(places, width)[chunk.offset :][: len(chunk) + 1])


def _npy(column: Column, data: NDArray[np.uint8], offsets: NDArray[Any]) -> None:
    lengths = np.diff(offsets)
    if (lengths == lengths[0]).all() and lengths[0]:
        cells = data[offsets[0] : offsets[-1]].reshape(len(lengths), -1)
        header = int(lengths[0]) - column.item_bytes
        if (cells[:, :header] == cells[0, :header]).all():
            np.ascontiguousarray(cells[:, header:])
            return
    for start, stop in itertools.pairwise(offsets.tolist()):
        if stop > start:
            np.load(io.BytesIO(data[start:stop].tobytes()))


def _pictures(column: Column, decode: Callable[..., Any], data: NDArray[np.uint8], offsets: NDArray[Any]) -> None:
    view, places = data.data, offsets.tolist()
    for begin in range(0, len(places) - 1, _LIMIT_ROWS):
        end = min(begin + _LIMIT_ROWS, len(places) - 1)
        out = np.empty((end - begin, *column.shape), np.uint8)
        for row, start, stop in zip(out, places[begin:end], places[begin + 1 : end + 1], strict=True):
            if stop > start:
                decode(view[start:stop], row)


def _jpeg(cell: Any, out: NDArray[np.uint8]) -> None:
    import simplejpeg

    space = "GRAY" if out.ndim == 2 else "RGB"
    simplejpeg.decode_jpeg(cell, space, False, False, 0, 0, 1.0, out)


def _png(cell: Any, out: NDArray[np.uint8]) -> None:
    import imagecodecs

    imagecodecs.png_decode(cell, out=out)


def _one_by_one(column: Column, values: Any) -> None:
    decode, field = column.codec.decode, column.field
    for value in values.to_pylist():
        if value is not None:
            decode(field, value)


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
