"""The least work by hand: what any reader of these files has to do, with no generality at all.

The yardstick of `run.py`. Each workload reads its row groups in two threads (or as many as there are cores), with the
footers parsed once, and turns the columns into arrays in the shortest way: libjpeg-turbo or libpng into fresh batches,
one strided copy for `.npy` cells, plain views for numbers. It does not shuffle rows, build batches of tables, bound its
memory, check what it reads or hand anything over: a loader that reaches 0.85 of it spends 15% on all of that.

Usage: `python bench/limit.py DATA WORKLOAD` prints one line of JSON. Opening counts, imports do not.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import imagecodecs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg
from cases import Case, find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

WORKERS = os.cpu_count() or 1


class Files:
    """The row groups of a folder; one open reader for each thread and file, because readers are not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.paths = [
            entry.path for entry in sorted(os.scandir(folder), key=lambda e: e.name) if ".parquet" in entry.name
        ]
        self._local = threading.local()
        with ThreadPoolExecutor(WORKERS) as pool:
            self.footers = list(pool.map(_footer, self.paths, chunksize=64))
        self.groups = [(file, g) for file, footer in enumerate(self.footers) for g in range(footer.num_row_groups)]

    def read(self, file: int, group: int, columns: list[str] | None) -> pa.Table:
        """Read one row group."""
        readers = self._local.__dict__.setdefault("readers", {})
        if file not in readers:
            readers[file] = pq.ParquetFile(self.paths[file], metadata=self.footers[file], pre_buffer=False)
        return readers[file].read_row_group(group, columns=columns, use_threads=False)


def _footer(path: str) -> Any:
    return pq.ParquetFile(path).metadata


def _cells(column: pa.ChunkedArray) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int32]]]:
    for chunk in column.chunks:
        offsets = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        yield np.frombuffer(chunk.buffers()[2], np.uint8), offsets


def _decode(table: pa.Table, name: str, shape: tuple[int, ...], decode: Callable[..., Any], batch_size: int) -> None:
    for data, offsets in _cells(table[name]):
        ends = offsets.tolist()
        view = memoryview(data)
        for start in range(0, len(ends) - 1, batch_size):
            stop = min(start + batch_size, len(ends) - 1)
            for image, a, b in zip(
                np.empty((stop - start, *shape), np.uint8), ends[start:], ends[start + 1 :], strict=False
            ):
                decode(view[a:b], image)


def _jpeg(cell: memoryview, out: NDArray[np.uint8]) -> None:
    simplejpeg.decode_jpeg(cell, buffer=out, fastdct=False, fastupsample=False)  # pixels as OpenCV has them


def _png(cell: memoryview, out: NDArray[np.uint8]) -> None:
    imagecodecs.png_decode(cell, out=out)


def _npy(table: pa.Table, name: str) -> None:
    for data, offsets in _cells(table[name]):
        cells = data[offsets[0] : offsets[-1]].reshape(len(offsets) - 1, -1)
        header = 10 + int(cells[0, 8]) + 256 * int(cells[0, 9])
        if not (cells[:, :header] == cells[0, :header]).all():
            raise SystemExit("the cells differ in shape or type; this limit is for equal ones")
        np.ascontiguousarray(cells[:, header:])


def _numbers(table: pa.Table) -> None:
    for column in table.columns:
        for chunk in column.chunks:
            np.frombuffer(chunk.buffers()[1], f"V{chunk.type.bit_width // 8}")  # to_numpy() would import pandas


def _images(table: pa.Table, case: Case, name: str, shape: tuple[int, ...]) -> None:
    _decode(table, name, shape, _jpeg if case.dataset == "p_jpeg" else _png, case.batch_size)


def _hello(table: pa.Table, case: Case) -> None:
    _images(table, case, "image1", (128, 256, 3))
    _npy(table, "array_4d")


def _work(case: Case) -> Callable[[pa.Table], None]:
    return {
        "p_jpeg": partial(_images, case=case, name="image", shape=(256, 256, 3)),
        "p_mnistpng": partial(_images, case=case, name="image", shape=(28, 28)),
        "p_mnist": partial(_npy, name="image"),
        "p_lidar": partial(_npy, name="xyz"),
        "p_hello": partial(_hello, case=case),
        "table": _numbers,
        "wide": _numbers,
    }[case.dataset]


def measure(case: Case, data: Path) -> dict[str, Any]:
    """Do the work once and return what it took; `rows` is the number of files where only opening is measured."""
    pa.set_cpu_count(1)  # the threads are ours
    start = time.perf_counter()
    first: list[float] = []
    files = Files(data / case.dataset)
    rows = 0 if case.epochs else len(files.paths)
    if case.epochs:
        work = _work(case)

        def job(place: tuple[int, int]) -> int:
            table = files.read(*place, None)
            work(table)
            first.append(time.perf_counter() - start)
            return int(table.num_rows)

        with ThreadPoolExecutor(WORKERS) as pool:
            rows = sum(pool.map(job, files.groups * case.epochs))
    seconds = time.perf_counter() - start
    return {"rows": rows, "seconds": seconds, "first_s": min(first, default=seconds), "peak_bytes": peak_bytes()}


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    scale = 1 if os.uname().sysname == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def main() -> None:
    """Measure the workload named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("workload", type=find)
    args = parser.parse_args()
    print(json.dumps({"workload": args.workload.name, **measure(args.workload, args.data)}))


if __name__ == "__main__":
    main()
