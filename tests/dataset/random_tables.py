"""Tables of random types, nested up to three deep, with nulls; and the ways in which Parquet writers store them."""

import datetime
import decimal
import inspect
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

EPOCH = datetime.datetime(2020, 1, 1)
FLAT = {
    pa.int8(): lambda rng: int(rng.integers(-128, 128)),
    pa.int64(): lambda rng: int(rng.integers(-(1 << 62), 1 << 62)),
    pa.uint32(): lambda rng: int(rng.integers(0, 1 << 32)),
    pa.float32(): lambda rng: float(rng.integers(0, 1000)) / 8,
    pa.float64(): lambda rng: float(rng.standard_normal()),
    pa.bool_(): lambda rng: bool(rng.integers(2)),
    pa.string(): lambda rng: "wörter " * int(rng.integers(0, 12)) + str(rng.integers(20)),
    pa.large_string(): lambda rng: "x" * int(rng.integers(0, 40)),
    pa.binary(): lambda rng: rng.bytes(int(rng.integers(0, 200))),
    pa.large_binary(): lambda rng: rng.bytes(3),
    pa.binary(5): lambda rng: rng.bytes(5),
    pa.date32(): lambda rng: datetime.date.fromordinal(int(rng.integers(700_000, 750_000))),
    pa.timestamp("us", "Europe/Berlin"): lambda rng: (
        EPOCH.replace(tzinfo=datetime.UTC) + datetime.timedelta(seconds=int(rng.integers(1 << 30)))
    ),
    pa.timestamp("ns"): lambda rng: EPOCH + datetime.timedelta(seconds=int(rng.integers(1 << 28))),
    pa.duration("ms"): lambda rng: datetime.timedelta(milliseconds=int(rng.integers(1 << 30))),
    pa.decimal128(9, 2): lambda rng: decimal.Decimal(int(rng.integers(-(10**8), 10**8))) / 100,
    pa.decimal128(30, 4): lambda rng: decimal.Decimal(int(rng.integers(-(10**12), 10**12))) / 10_000,
}


def random_type(rng: np.random.Generator, depth: int) -> pa.DataType:
    """Return a type that is nested `depth` times or less."""
    kind = rng.choice(["flat", "list", "large_list", "struct", "map"]) if depth else "flat"
    if kind == "flat":
        return list(FLAT)[int(rng.integers(len(FLAT)))]
    if kind == "struct":
        nullable = rng.integers(2, size=3).astype(bool).tolist()
        fields = [pa.field(f"f{i}", random_type(rng, depth - 1), one) for i, one in enumerate(nullable)]
        return pa.struct(fields[: int(rng.integers(1, 4))])
    if kind == "map":
        return pa.map_(pa.string(), random_type(rng, depth - 1))
    inner = random_type(rng, depth - 1)
    return pa.list_(inner) if kind == "list" else pa.large_list(inner)


def random_value(rng: np.random.Generator, kind: pa.DataType, *, nullable: bool = True) -> Any:
    """Return a value of a type, in some cases None."""
    if nullable and rng.random() < 0.15:
        return None
    if pa.types.is_struct(kind):
        return {one.name: random_value(rng, one.type, nullable=one.nullable) for one in kind}
    count = int(rng.integers(0, 4))
    if pa.types.is_map(kind):
        return [(f"k{i}", random_value(rng, kind.item_type)) for i in range(count)]
    if kind.num_fields:
        return [random_value(rng, kind.value_type) for _ in range(count)]
    return FLAT[kind](rng)


def random_table(rng: np.random.Generator, num_rows: int, *, depth: int = 3, columns: int = 4) -> pa.Table:
    """Return columns of random types: flat ones and nested ones, of few distinct values or many."""
    fields, arrays = [], []
    for number in range(columns):
        kind, nullable = random_type(rng, depth if number else 0), bool(rng.integers(2))
        distinct = [random_value(rng, kind, nullable=nullable) for _ in range(int(rng.choice([3, num_rows])))]
        values = distinct if len(distinct) == num_rows else [distinct[i] for i in rng.integers(3, size=num_rows)]
        fields.append(pa.field(f"c{number}", kind, nullable))
        arrays.append(pa.array(values, kind))
    words = pa.array([f"w{i}" for i in rng.integers(0, 30, num_rows)]).dictionary_encode()
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.standard_normal(num_rows * 3)), 3)
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    return table.append_column("words", words).append_column("vectors", vectors)


def write_options(rng: np.random.Generator) -> dict[str, Any]:
    """Return keywords of `pq.write_table`: page version, sizes, compression, dictionaries with or without fallback."""
    options = {
        "data_page_version": str(rng.choice(["1.0", "2.0"])),
        "data_page_size": int(
            rng.choice([200, 800, 5_000])
        ),  # pyarrow writes empty pages if it is tiny, and cannot read them
        "write_batch_size": int(rng.choice([1, 7, 64, 1024])),
        "compression": str(rng.choice(["none", "snappy", "zstd", "gzip", "lz4", "brotli"])),
        "use_dictionary": bool(rng.integers(4)),
        "dictionary_pagesize_limit": int(rng.choice([1, 400, 1 << 20])),
        "store_schema": bool(rng.integers(3)),
        "use_compliant_nested_type": bool(rng.integers(2)),
        "write_page_index": True,
    }
    if "write_page_checksum" in inspect.signature(pq.write_table).parameters:
        options["write_page_checksum"] = bool(rng.integers(2))
    return options
