"""What the fuzzing of offset indexes and pages runs in a child process: rows of a damaged file, read by pages.

Every read must give the rows of the sound file or an error that names the file and the column. Where the pages
themselves are damaged, it may also give what pyarrow's whole read of the same file gives: only checksums tell more.
"""

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dataset.page_index import ChunkPages, parse_offset_index, read_page_header
from penstock.dataset.pages import open_pages
from penstock.dataset.parquet import open_parquet
from penstock.errors import BadFile
from tests.fuzz.harness import Case
from tests.fuzz.parquet_files import mutated

NUM_ROWS = 240


@cache
def table() -> pa.Table:
    rng = np.random.default_rng(0)
    turns = [[{"role": f"r{j}", "text": "word " * int(rng.integers(9))} for j in range(i % 3)] for i in range(NUM_ROWS)]
    return pa.table(
        {
            "id": np.arange(NUM_ROWS),
            "name": [None if i % 7 == 0 else f"name {i % 9}" for i in range(NUM_ROWS)],
            "image": pa.array([rng.bytes(int(k)) for k in rng.integers(10, 90, NUM_ROWS)]),
            "turns": turns,
        }
    )


def write(path: Path, version: str) -> None:
    pq.write_table(
        table(), path, row_group_size=NUM_ROWS // 2, data_page_version=version, data_page_size=200, write_batch_size=8,
        dictionary_pagesize_limit=400, write_page_index=True,
    )  # fmt: skip


def places(path: Path, *, headers: bool) -> list[tuple[int, int]]:
    """Return where the offset indexes, or the page headers, of a file lie."""
    source, found = open_parquet(path), []
    data = path.read_bytes()
    for number in range(2):
        group = source.part(number)
        for leaf in range(len(group.index.chunks.leaves)):
            chunk = ChunkPages.of(group.index.tail, group.index.chunks, number, leaf, num_rows=group.num_rows)
            start, stop = chunk.index_range(len(data))
            if not headers:
                found.append((start, stop))
                continue
            index = parse_offset_index(data[start:stop], chunk)
            starts = [*index.offsets[:-1].tolist(), index.start]
            found += [(place, read_page_header(data, place).stop) for place in starts]
    return found


def cases(folder: Path, count: int, seed: int, *, headers: bool) -> Iterator[Case]:
    """Yield files of which an offset index, or a page header, was changed; nothing has moved."""
    rng = random.Random(seed)
    for number in range(count):
        version = rng.choice(["1.0", "2.0"])
        path = folder / f"sound-{version}-{headers}.parquet"
        if not path.exists():
            write(path, version)
        good = path.read_bytes()
        start, stop = rng.choice(places(path, headers=headers))
        data, what = good, ""
        while data == good or len(data) != len(good):
            data, what = mutated(good, start, stop, rng)
        yield Case(f"version {version}: {what} ({seed}/{number})", (data, number, headers))


def check(case: tuple[bytes, int, bool], folder: Path) -> str | None:
    """Read rows of a damaged file; return what is wrong with them."""
    data, seed, pages_are_damaged = case
    path = folder / "damaged.parquet"
    path.write_bytes(data)
    rng = random.Random(seed)
    source = open_parquet(path)
    for number in range(2):
        sound = table().slice(number * NUM_ROWS // 2, NUM_ROWS // 2)
        for _ in range(4):
            start = rng.randrange(NUM_ROWS // 2)
            stop = rng.randrange(start, NUM_ROWS // 2) + 1
            names = rng.sample(table().column_names, rng.randint(1, 4))
            try:
                found = open_pages(source.part(number), names).read(start, stop)
            except BadFile as exc:
                if exc.path != str(path) or exc.row_group != number or exc.column is None or path.name not in str(exc):
                    return f"the error does not say where: {exc!r}"
                continue
            wanted = [sound.select(names).slice(start, stop - start).to_pylist()]
            if found.to_pylist() not in wanted and pages_are_damaged:
                whole = pq.ParquetFile(path).read_row_group(number, columns=names).select(names)
                wanted.append(whole.slice(start, stop - start).to_pylist())
            if found.to_pylist() not in wanted:
                return f"rows {start} to {stop} of row group {number}, columns {names}, are wrong"
    return None
