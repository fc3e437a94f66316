"""`penstock.write` against the least work by hand, in pairs, as a Markdown table.

Each side runs in a process of its own, the first of a pair changing places, the ratio the median of the pairs. Both
sides write or encode one row before the clock starts, so that imports do not count.

- **jpeg**: colour images of 256x256, encoded as JPEG of quality 90. The limit is the encoder's own rate on as many
  threads as there are cores: nothing is collected, nothing is written. Given as a generator of rows, whose arrays may
  be used again and are copied; as a list of rows; and as a dict of columns.
- **jpeg-file**: the generator once more; the limit encodes the same way and writes a Parquet file, by hand.
- **table**: 40 columns of numbers. The limit is `pyarrow.parquet.write_table` with its defaults, of the same table to
  the same disk. Given as an Arrow table, and as a dict of arrays.

How to read it: what JPEG misses of 1.00 is the price of rows in Python, of copying them (a row may be used again) and
of Parquet. The table may exceed 1.00: `write` spares the dictionaries of floats that `write_table` builds and throws
away. Both sides leave the disk to the system, but `write` waits until it has it (fsync), which `write_table` does not.

Usage: `python bench/write.py --folder FOLDER [--workload NAME]... [--pairs 5] [--threads 2]`. The machine should be
quiet.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock.codecs import CompressedImageCodec, ScalarCodec
from penstock.engine.host import cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IMAGES = 24_000
TABLE_ROWS = 1_000_000
QUALITY = 90
GROUP = 600
"""Images of a row group of about 16 MiB."""
SCHEMA = penstock.Unischema(
    "Images",
    [
        penstock.UnischemaField("id", np.int64, (), ScalarCodec(), False),
        penstock.UnischemaField("image", np.uint8, (256, 256, 3), CompressedImageCodec("jpeg", QUALITY), False),
    ],
)


def pictures() -> list[Any]:
    """Return images with smooth and busy places, like photographs; few enough to stay in memory."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (64, 32, 32, 3), dtype=np.uint8).repeat(8, axis=1).repeat(8, axis=2)
    noise = rng.integers(-12, 12, (64, 256, 256, 3), dtype=np.int16)
    return list(np.clip(coarse + noise, 0, 255).astype(np.uint8))


def table() -> pa.Table:
    """Return 40 columns: whole numbers small and large, floats of both widths, flags."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"f{i}": rng.random(TABLE_ROWS, np.float32) for i in range(16)}
    columns |= {f"d{i}": rng.random(TABLE_ROWS) for i in range(8)}
    columns |= {f"i{i}": rng.integers(0, 1 << 30, TABLE_ROWS) for i in range(8)}
    columns |= {f"s{i}": rng.integers(0, 100, TABLE_ROWS, np.int32) for i in range(6)}
    columns |= {f"b{i}": rng.random(TABLE_ROWS) < 0.5 for i in range(2)}
    return pa.table(columns)


def jpeg_ours(folder: Path, threads: int) -> tuple[int, float]:
    """Write the images as rows that come one by one."""
    images = pictures()
    return _write_images(({"id": i, "image": images[i % 64]} for i in range(IMAGES)), folder, threads)


def jpeg_list_ours(folder: Path, threads: int) -> tuple[int, float]:
    """Write the images as a list of rows."""
    images = pictures()
    return _write_images([{"id": i, "image": images[i % 64]} for i in range(IMAGES)], folder, threads)


def jpeg_columns_ours(folder: Path, threads: int) -> tuple[int, float]:
    """Write the images as a column."""
    images = pictures()
    columns = {"id": np.arange(IMAGES), "image": [images[i % 64] for i in range(IMAGES)]}
    return _write_images(columns, folder, threads)


def _write_images(data: Any, folder: Path, threads: int) -> tuple[int, float]:
    blank = np.zeros((256, 256, 3), np.uint8)
    penstock.write([{"id": 0, "image": blank}], folder, SCHEMA)  # imports what both sides need
    return IMAGES, timed(lambda: penstock.write(data, folder, SCHEMA, overwrite=True, workers=threads))


def jpeg_limit(_folder: Path, threads: int) -> tuple[int, float]:
    """Encode the images, and forget them."""
    encode, images = encoder(), pictures()

    def work(start: int) -> None:
        for i in range(start, IMAGES, threads):
            encode(images[i % 64])

    with ThreadPoolExecutor(threads) as pool:
        return IMAGES, timed(lambda: list(pool.map(work, range(threads))))


def jpeg_file_limit(folder: Path, threads: int) -> tuple[int, float]:
    """Encode the images, and write each row group while the next is being encoded."""
    encode, images = encoder(), pictures()
    schema = pa.schema([("id", pa.int64()), ("image", pa.binary())])
    folder.mkdir(parents=True)

    def work(share: tuple[range, list[Any], int]) -> None:
        ids, cells, offset = share
        for i in range(offset, len(ids), threads):
            cells[i] = encode(images[ids[i] % 64])

    def encode_all() -> None:
        options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        with (
            pq.ParquetWriter(folder / "images.parquet", schema, **options) as writer,
            ThreadPoolExecutor(threads) as pool,
            ThreadPoolExecutor(1) as storer,
        ):
            for start in range(0, IMAGES, GROUP):
                ids = range(start, min(start + GROUP, IMAGES))
                cells: list[Any] = [None] * len(ids)
                list(pool.map(work, [(ids, cells, offset) for offset in range(threads)]))
                storer.submit(lambda table: writer.write_table(pa.table(table, schema=schema)), [ids, cells])

    pa.array(np.arange(2))  # looks for pandas
    return IMAGES, timed(encode_all)


def encoder() -> Callable[[Any], bytes]:
    """Return what makes a JPEG of an image, imported and tried."""
    import simplejpeg

    def encode(image: Any) -> bytes:
        return simplejpeg.encode_jpeg(image, QUALITY, "RGB", "420", False)  # type: ignore[no-any-return]

    encode(np.zeros((256, 256, 3), np.uint8))
    return encode


def table_ours(folder: Path, threads: int) -> tuple[int, float]:
    """Write an Arrow table."""
    data = table()
    penstock.write(data.slice(0, 1), folder)
    return TABLE_ROWS, timed(lambda: penstock.write(data, folder, overwrite=True, workers=threads))


def arrays_ours(folder: Path, threads: int) -> tuple[int, float]:
    """Write a dict of arrays."""
    data = {name: column.to_numpy() for name, column in zip(table().column_names, table().columns, strict=True)}
    penstock.write(table().slice(0, 1), folder)
    return TABLE_ROWS, timed(lambda: penstock.write(data, folder, overwrite=True, workers=threads))


def table_limit(folder: Path, _threads: int) -> tuple[int, float]:
    """Write the table by pyarrow's own function."""
    data = table()
    folder.mkdir(parents=True)
    pq.write_table(data.slice(0, 1), folder / "table.parquet")
    return TABLE_ROWS, timed(lambda: pq.write_table(data, folder / "table.parquet"))


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


Work = tuple[str, "Callable[[Path, int], tuple[int, float]]", "Callable[[Path, int], tuple[int, float]]", float]
WORKLOADS: dict[str, Work] = {
    "jpeg": (f"{IMAGES:,} images of 256x256 as JPEG, rows of a generator", jpeg_ours, jpeg_limit, 0.8),
    "jpeg-list": (f"{IMAGES:,} images of 256x256 as JPEG, a list of rows", jpeg_list_ours, jpeg_limit, 0.8),
    "jpeg-columns": (f"{IMAGES:,} images of 256x256 as JPEG, columns", jpeg_columns_ours, jpeg_limit, 0.8),
    "jpeg-file": (f"{IMAGES:,} images as JPEG, a generator, against Parquet by hand", jpeg_ours, jpeg_file_limit, 0.8),
    "table": (f"{TABLE_ROWS:,} rows of 40 numbers, an Arrow table", table_ours, table_limit, 0.8),
    "arrays": (f"{TABLE_ROWS:,} rows of 40 numbers, a dict of arrays", arrays_ours, table_limit, 0.8),
}


def measure(name: str, side: str, folder: Path, threads: int) -> float:
    """Return the rows/s of one side, in a process of its own."""
    command = [sys.executable, __file__, "--folder", str(folder), "--threads", str(threads), "--one", f"{name}:{side}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["rows_per_s"])


def pairs(name: str, count: int, folder: Path, threads: int) -> Iterator[tuple[float, float]]:
    """Yield the rates of both sides, measured next to each other, the first changing places."""
    for number in range(count):
        sides = ("ours", "limit") if number % 2 == 0 else ("limit", "ours")
        rates = {side: measure(name, side, folder, threads) for side in sides}
        yield rates["ours"], rates["limit"]


def run_one(choice: str, folder: Path, threads: int) -> None:
    """Measure one side and print the rate as JSON."""
    name, side = choice.split(":")
    _, ours, limit, _ = WORKLOADS[name]
    target = folder / f"bench-write-{name}-{side}"
    shutil.rmtree(target, ignore_errors=True)
    try:
        rows, seconds = (ours if side == "ours" else limit)(target, threads)
    finally:
        shutil.rmtree(target, ignore_errors=True)
    print(json.dumps({"rows_per_s": rows / seconds}))


def main() -> None:
    """Measure what was asked for and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where to write; emptied of what was written")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.one:
        run_one(arguments.one, arguments.folder, arguments.threads)
        return
    print("| workload | penstock.write, rows/s | limit, rows/s | ratio | range | wanted |\n|---|---|---|---|---|---|")
    for name in arguments.workload or WORKLOADS:
        title, _, _, aim = WORKLOADS[name]
        rates = list(pairs(name, arguments.pairs, arguments.folder, arguments.threads))
        ratios = sorted(ours / limit for ours, limit in rates)
        ours, limit = (statistics.median(side) for side in zip(*rates, strict=True))
        shown = f"**{statistics.median(ratios):.2f}** | {ratios[0]:.2f} to {ratios[-1]:.2f} | {aim:.2f}"
        print(f"| {title} | {ours:,.0f} | {limit:,.0f} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
