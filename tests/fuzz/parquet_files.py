"""Parquet files to mutate, of all kinds of columns and by several writers, and the mutations themselves.

`damaged_files` draws from here. A mutation is decided by its `random.Random` alone, so that a number names a case.
"""

import datetime
import io
import random
import tempfile
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock.codecs import CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from penstock.dataset.column_chunks import ColumnChunks
from penstock.dataset.read import CAN_VERIFY
from penstock.schema import Unischema, UnischemaField

SPARK = Path(__file__).parents[1] / "data" / "petastorm" / "0.13.1"
ROWS = 60
CHECKSUMS = {"write_page_checksum": True} if CAN_VERIFY else {}


def table() -> pa.Table:
    """Sixty rows of many types; `id` numbers them."""
    rows = range(ROWS)
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "small": pa.array([None if i % 3 == 0 else i % 100 for i in rows], pa.int8()),
            "big": pa.array([2**63 + i for i in rows], pa.uint64()),
            "real": np.random.default_rng(0).standard_normal(ROWS),
            "single": pa.array(np.arange(ROWS, dtype=np.float32)),
            "truth": [i % 2 == 0 for i in rows],
            "text": [f"text {i}" for i in rows],
            "word": pa.array([f"word {i % 3}" for i in rows]).dictionary_encode(),
            "blob": [bytes([i]) * (i % 40) for i in rows],
            "fixed": pa.array([bytes([i]) * 16 for i in rows], pa.binary(16)),
            "moment": pa.array(rows, pa.timestamp("us", tz="UTC")),
            "day": pa.array([datetime.date(2024, 1, 1 + i % 28) for i in rows]),
            "span": pa.array(rows, pa.duration("ns")),
            "price": pa.array([Decimal(i).scaleb(-2) for i in rows], pa.decimal128(9, 2)),
            "list": [None if i % 7 == 0 else list(range(i % 5)) for i in rows],
            "texts": [[f"t{i}", None] * (i % 3) for i in rows],
            "vector": pa.array([[i, i + 1, i + 2] for i in rows], pa.list_(pa.float32(), 3)),
            "part": [{"a": i, "b": None if i % 4 else str(i)} for i in rows],
            "pairs": pa.array([[("k", i)] for i in rows], pa.map_(pa.string(), pa.int32())),
            "deep": [[[i], []] for i in rows],
            "nothing": pa.nulls(ROWS),
        }
    )


@dataclass(frozen=True)
class Source:
    """A sound file, and what stands beside it in a dataset."""

    data: bytes
    checked: bool = False
    """Whether every page has a checksum."""
    folder: str = "."
    """Where in its dataset the file lies: a partition's folder."""
    common: bytes | None = None
    """`_common_metadata` of its dataset."""


def _written(columns: list[str] | None = None, row_group_size: int = 20, **options: object) -> bytes:
    sink = io.BytesIO()
    written = table() if columns is None else table().select(columns)
    pq.write_table(written, sink, row_group_size=row_group_size, **options)
    return sink.getvalue()


def _ours() -> bytes:
    """A file of `penstock.write`, with cells of codecs."""
    schema = Unischema(
        "Cells",
        [
            UnischemaField("id", np.int64, (), ScalarCodec()),
            UnischemaField("array", np.float32, (4, 3), NdarrayCodec()),
            UnischemaField("free", np.int16, (None,), NdarrayCodec(), nullable=True),
            UnischemaField("packed", np.uint8, (8,), CompressedNdarrayCodec()),
            UnischemaField("text", np.str_, (), ScalarCodec()),
        ],
    )
    rows = [
        {
            "id": i,
            "array": np.full((4, 3), i, np.float32),
            "free": None if i % 5 == 0 else np.arange(i % 7, dtype=np.int16),
            "packed": np.full(8, i, np.uint8),
            "text": f"text {i}",
        }
        for i in range(ROWS)
    ]
    with tempfile.TemporaryDirectory() as folder:
        penstock.write(rows, f"{folder}/ours", schema=schema, row_group_bytes=4000)
        [path] = Path(folder, "ours").rglob("*.parquet")
        return path.read_bytes()


@cache
def sources() -> dict[str, Source]:
    """Every kind of file, by name."""
    [codecs, *_] = sorted((SPARK / "all_codecs").rglob("*.parquet"))
    [timed, *_] = sorted((SPARK / "timed").rglob("*.parquet"))
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False, "write_page_index": True}
    return {
        "pyarrow": Source(_written()),
        # Enough column chunks to be read by a pattern: see `dataset/chunk_pattern.py`.
        "many row groups": Source(_written(["id", "small", "real", "text", "word", "list", "part", "price"], 2)),
        "pages of version 2": Source(
            _written(data_page_version="2.0", compression="zstd", data_page_size=64, **CHECKSUMS), bool(CHECKSUMS)
        ),
        "plain values": Source(_written(**plain)),
        "plain values, checksums": Source(_written(**plain, **CHECKSUMS), bool(CHECKSUMS)),
        "without Arrow's schema": Source(_written(store_schema=False, use_deprecated_int96_timestamps=True)),
        "penstock": Source(_ours(), bool(CHECKSUMS)),
        "Spark": Source(codecs.read_bytes(), folder=codecs.parent.name, common=_common("all_codecs")),
        "Spark, no codecs": Source(codecs.read_bytes()),
        "Spark, timed": Source(timed.read_bytes(), common=_common("timed")),
    }


def _common(name: str) -> bytes:
    return (SPARK / name / "_common_metadata").read_bytes()


def footer_start(data: bytes) -> int:
    """Return where the footer of a sound file begins."""
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def column_chunks(data: bytes) -> list[tuple[int, int]]:
    """Return start and stop of every column chunk that has bytes."""
    found = ColumnChunks(data[footer_start(data) : -8])
    groups, leaves = found.num_values.shape
    ranges = [found.range_of(group, leaf) for group in range(groups) for leaf in range(leaves)]
    return [(start, stop) for start, stop in ranges if start < stop]


@cache
def numbers(footer: bytes) -> list[tuple[int, int]]:
    """Return start and stop of every integer, and every length of text or list, in a footer (compact Thrift)."""
    found: list[tuple[int, int]] = []

    def number(at: int) -> tuple[int, int]:
        stop = at
        while footer[stop] > 127:
            stop += 1
        found.append((at, stop + 1))
        return sum((byte & 127) << 7 * i for i, byte in enumerate(footer[at : stop + 1])), stop + 1

    def value(at: int, kind: int) -> int:
        if kind <= 3:  # booleans in lists, bytes
            return at + 1
        if kind <= 6:
            return number(at)[1]
        if kind == 8:
            size, at = number(at)
            return at + size
        if kind == 12:
            while header := footer[at]:
                # A long form of the field number does not occur in footers; booleans are in the header.
                at = at + 1 if header & 15 in (1, 2) else value(at + 1, header & 15)
            return at + 1
        size, inner, at = footer[at] >> 4, footer[at] & 15, at + 1
        if size == 15:
            size, at = number(at)
        for _ in range(size):
            at = value(at, inner)
        return at

    assert value(0, 12) == len(footer)
    return found


def renumbered(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Write another number over one of the footer's, which stays well-formed."""
    footer = data[footer_start(data) : -8]
    start, stop = rng.choice(numbers(footer))
    number = rng.choice(
        [0, 1, 2, 3, 127, 1 << rng.randrange(1, 64), (1 << 64) - rng.randrange(1, 9), rng.getrandbits(31)]
    )
    written = bytearray()
    rest = number
    while rest > 127:
        written.append(rest & 127 | 128)
        rest >>= 7
    changed = footer[:start] + bytes(written) + bytes([rest]) + footer[stop:]
    return data[: footer_start(data)] + changed + len(changed).to_bytes(4, "little") + data[-4:], f"{number} at {start}"


def mutated(data: bytes, start: int, stop: int, rng: random.Random) -> tuple[bytes, str]:
    """Change some bytes between `start` and `stop`; return the result and what was done to it.

    Most often one bit is flipped. Inserted and deleted bytes keep the length of the footer right in half of the cases.
    """
    kind = rng.choice(["bit"] * 10 + ["bits", "byte", "zeros", "delete", "insert"])
    changed, at = bytearray(data), rng.randrange(start, stop)
    span = min(rng.choice([1, 1, 2, 4, 16]), stop - at)
    if kind in ("bit", "bits"):
        bits = [(at if number == 0 else rng.randrange(start, stop), rng.randrange(8)) for number in range(span)]
        for position, bit in bits if kind == "bits" else bits[:1]:
            changed[position] ^= 1 << bit
        return bytes(changed), f"{kind} {bits if kind == 'bits' else bits[0]}"
    if kind in ("byte", "zeros"):
        changed[at : at + span] = bytes(span) if kind == "zeros" else rng.randbytes(span)
    elif kind == "delete":
        del changed[at : at + span]
    else:
        changed[at:at] = rng.randbytes(span)
    if len(changed) != len(data) and start >= footer_start(data) and rng.random() < 0.5:
        length = int.from_bytes(data[-8:-4], "little") + len(changed) - len(data)
        changed[-8:-4] = length.to_bytes(4, "little")
    return bytes(changed), f"{kind} {span} at {at}"
