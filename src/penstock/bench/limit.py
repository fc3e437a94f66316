"""The least work by hand for any dataset: read row groups in threads, turn columns into arrays in the shortest way.

The reference of `measure`. It does not shuffle rows, build batches, keep an order, bound its memory or check what it
reads, and delivers nothing: a loader that reaches 0.85 of it spends 15% on all of that. Takes an open dataset for its
list of files and footers, and reads them with pyarrow itself.
"""

from __future__ import annotations

import io
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.dataset import as_parquet
from penstock.engine.inputs import columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from penstock.api import Dataset
    from penstock.engine.inputs import Column

    Work = Callable[[Any], None]

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
    for data, offsets in _cells(column):
        work(data, offsets)


def _cells(column: Any) -> Iterator[tuple[NDArray[np.uint8], NDArray[Any]]]:
    """Yield bytes and offsets of each chunk that has any."""
    for chunk in column.chunks:
        _, places, data = chunk.buffers()
        if data is not None and len(chunk):
            width = np.int64 if str(chunk.type).startswith("large") else np.int32
            yield np.frombuffer(data, np.uint8), np.frombuffer(places, width)[chunk.offset :][: len(chunk) + 1]


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
