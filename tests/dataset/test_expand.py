"""Reading within a limit: the same columns as without one, or a BudgetError before they are in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.dataset import open_parquet
from penstock.errors import BudgetError

WORDS = ["", "ä", None, "word", "z" * 300]
COLUMNS = {
    "text": pa.array([WORDS[i % 5] for i in range(3000)]),
    "large": pa.array([WORDS[i % 5] for i in range(3000)], pa.large_string()),
    "bytes": pa.array([b"ab" * (i % 7) for i in range(3000)]),
    "unique": pa.array([f"{i:08}" for i in range(3000)]),
    "number": pa.array(range(3000)),
    "struct": pa.array([{"a": WORDS[i % 5], "b": i} for i in range(3000)]),
    "list": pa.array([[WORDS[i % 5]] * (i % 4) for i in range(3000)]),
    "category": pa.array([WORDS[i % 5] for i in range(3000)]).dictionary_encode(),
}


def forget_sizes(source):
    """As files of older writers are, whose footers do not tell what dictionaries stand for."""
    for file in range(len(source.facts.files)):
        source.footer(file).chunks.unencoded_bytes[:] = -1
    return source


@pytest.fixture(params=["told", "not told"])
def opened(tmp_path, request):
    pq.write_table(pa.table(COLUMNS), tmp_path / "x.parquet", row_group_size=1500)
    source = open_parquet(tmp_path)
    return forget_sizes(source) if request.param == "not told" else source


@pytest.mark.parametrize(
    "columns", [[name] for name in COLUMNS if name != "struct"] + [["list", "text", "struct.a", "number"]]
)
def test_within_the_limit_the_columns_are_the_same(opened, columns):
    plain = opened.read(1, columns)
    assert opened.read(1, columns, limit_bytes=100 << 20).equals(plain)
    assert opened.read(1, columns, limit_bytes=700_000).equals(plain)


@pytest.mark.parametrize("columns", [["text"], ["large"], ["bytes"], ["list"], ["struct.a"], ["number", "text"]])
def test_beyond_the_limit_is_an_error_that_names_the_row_group(opened, columns):
    size = opened.read(1, columns).nbytes
    with pytest.raises(BudgetError, match=r"x\.parquet, row group 1: .*memory_bytes leaves .* for one row group"):
        opened.read(1, columns, limit_bytes=size // 2)


def test_delta_encoded_text_of_which_pyarrow_makes_no_dictionaries(tmp_path):
    columns = {name: COLUMNS[name] for name in ("unique", "bytes", "number", "list")}
    paths = ("unique", "bytes", "list.list.element", "list.list.item")  # an item before pyarrow 15
    known = {leaf.path for leaf in pq.ParquetFile(_written(tmp_path, columns)).schema}
    encodings = {path: "DELTA_BYTE_ARRAY" for path in paths if path in known}
    _written(tmp_path, columns, use_dictionary=False, column_encoding=encodings)
    source = forget_sizes(open_parquet(tmp_path))
    plain, names = source.read(1, list(columns)), list(columns)
    assert source.read(1, names, limit_bytes=700_000).equals(plain)
    with pytest.raises(BudgetError, match=r"x\.parquet, row group 1: .*memory_bytes leaves .* for one row group"):
        source.read(1, names, limit_bytes=plain.nbytes // 3)


def _written(folder, columns, **options):
    pq.write_table(pa.table(columns), folder / "x.parquet", row_group_size=1500, **options)
    return folder / "x.parquet"


@pytest.mark.skipif(not hasattr(pa, "json_"), reason="an extension type of newer versions of pyarrow")
def test_extension_types_which_pyarrow_does_not_read_as_dictionaries(tmp_path):
    cells = pa.array([f'"{"z" * 300}{i % 5}"' for i in range(3000)], pa.json_())
    pq.write_table(pa.table({"x": cells}), tmp_path / "x.parquet")
    source = forget_sizes(open_parquet(tmp_path))
    assert source.read(0, ["x"], limit_bytes=2 << 20).column("x").combine_chunks().equals(cells)
    with pytest.raises(BudgetError, match=r"x\.parquet, row group 0"):
        source.read(0, ["x"], limit_bytes=500_000)


@pytest.mark.parametrize("name", ["text", "large", "bytes", "unique", "list", "struct.a"])
@pytest.mark.parametrize("rows", [3000, 1501])
def test_bytes_of_a_row_are_those_of_the_column_spelled_out(tmp_path, name, rows):
    # Lanes and block are computed from them: a byte more or less is another order.
    pq.write_table(pa.table(COLUMNS).slice(0, rows), tmp_path / "x.parquet")
    outer = name.split(".")[0]
    spelled_out = next(pq.ParquetFile(tmp_path / "x.parquet").iter_batches(rows, columns=[name]))
    assert spelled_out.schema.names == [outer]
    for source in (open_parquet(tmp_path), forget_sizes(open_parquet(tmp_path))):
        assert source.row_bytes([name]) == spelled_out.nbytes / rows


def test_row_groups_that_stand_out_are_judged_by_their_own_footers(tmp_path):
    for file, sizes in enumerate([(10, 10, 900), (10, 500, 10), (10, 10, 10)]):
        parts = [pa.table({"a": ["x" * size] * 100, "b": range(100), "c": ["y"] * 100}) for size in sizes]
        with pq.ParquetWriter(tmp_path / f"{file}.parquet", parts[0].schema, use_dictionary=False) as writer:
            for part in parts:
                writer.write_table(part)
    source = open_parquet(tmp_path)
    plain = source.row_bytes(["c", "b", "a"]) * 100
    found = source.chunk_bytes(["c", "b", "a"])
    assert found[[0, 1, 3, 5, 6, 7, 8]].tolist() == [plain] * 7
    for chunk in (2, 4):
        size = source.read(chunk, ["c", "b", "a"]).nbytes
        assert size <= found[chunk] < 1.1 * size
    assert source.chunk_bytes(["b", "c"]).max() < plain


@pytest.mark.parametrize("inside", ["list", "map", "struct of lists"])
def test_one_row_that_stands_for_far_more_is_refused_before_it_is_spelled_out(tmp_path, inside):
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), ["x" * 3000]).cast(pa.string())
    offsets = pa.array([0, 50_000, 100_000], pa.int32())
    column = pa.ListArray.from_arrays(offsets, words)
    if inside == "map":
        column = pa.MapArray.from_arrays(offsets, pa.array(range(100_000)), words)
    if inside == "struct of lists":
        column = pa.StructArray.from_arrays([column], ["a"])
    name = "c.a" if inside == "struct of lists" else "c"
    pq.write_table(pa.table({"c": column}), tmp_path / "x.parquet", use_dictionary=True)
    plain = open_parquet(tmp_path).read(0, [name])
    del words, column
    source = forget_sizes(open_parquet(tmp_path))
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before, pa_pool = pool.bytes_allocated(), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(BudgetError, match=r"x\.parquet, row group 0"):
            source.read(0, [name], limit_bytes=64 << 20)
        assert source.row_bytes([name]) > 150_000_000
    finally:
        pa.set_memory_pool(pa_pool)
    assert pool.max_memory() - before < 64 << 20
    assert source.read(0, [name], limit_bytes=1 << 30).equals(plain)


NESTED = {
    "large_list": pa.large_list(pa.string()),
    "fixed list": pa.list_(pa.string(), 2),
    "list of lists": pa.list_(pa.list_(pa.binary())),
    "list of structs": pa.list_(pa.struct([("a", pa.string()), ("b", pa.int64())])),
    "list of large": pa.list_(pa.large_string()),
    "map of lists": pa.map_(pa.string(), pa.list_(pa.string())),
    "list of maps": pa.list_(pa.map_(pa.string(), pa.struct([("a", pa.string())]))),
    "list of dictionaries": pa.list_(pa.dictionary(pa.int32(), pa.string())),
    "list of decimals": pa.list_(pa.decimal128(30, 2)),
    "list of numbers": pa.list_(pa.int64()),
}


def value_of(kind, number):
    if number % 7 == 0 and not pa.types.is_fixed_size_list(kind):  # pyarrow 14 cannot read null ones
        return None
    if pa.types.is_struct(kind):
        return {field.name: value_of(field.type, number) for field in kind}
    if pa.types.is_map(kind):
        return [(f"k{i}", value_of(kind.item_type, number + i)) for i in range(number % 3)]
    if kind.num_fields:
        return [value_of(kind.value_type, number + i) for i in range(2)]
    if pa.types.is_decimal(kind) or pa.types.is_integer(kind):
        return number % 5
    return b"word" * (number % 5) if pa.types.is_binary(kind) else "word" * (number % 5)


@pytest.mark.parametrize("kind", NESTED.values(), ids=NESTED)
def test_nested_columns_of_every_kind_are_the_same_within_the_limit(tmp_path, kind):
    column = pa.array([value_of(kind, number) for number in range(3000)], kind)
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet", use_dictionary=True)
    source = forget_sizes(open_parquet(tmp_path))
    plain = source.read(0, ["x"])
    assert source.read(0, ["x"], limit_bytes=2 * plain.nbytes).equals(plain)


class TestLoader:
    def test_a_heavy_row_group_that_the_footer_tells_is_refused_at_once(self, tmp_path):
        for number in range(8):
            rows = [b"x" * 1000] * 100 if number != 5 else [np.random.default_rng(0).bytes(8 << 20), *[b"x"] * 99]
            pq.write_table(pa.table({"x": pa.array(rows)}), tmp_path / f"{number}.parquet", use_dictionary=False)
        ds = penstock.open(tmp_path)
        with pytest.raises(BudgetError) as error:
            ds.loader(batch_size=4, shuffle=True, memory_bytes=16 << 20, shuffle_bytes=1 << 20)
        with ds.loader(batch_size=4, shuffle=True, memory_bytes=error.value.least, shuffle_bytes=1 << 20) as loader:
            assert sum(len(batch["x"]) for batch in loader) == 800

    @pytest.mark.parametrize("on_error", ["raise", "skip"])
    def test_one_that_it_does_not_tell_is_refused_when_it_is_read(self, tmp_path, on_error):
        for number in range(8):
            word = "x" * (10 if number != 5 else 100_000)
            pq.write_table(pa.table({"x": [word] * 1000}), tmp_path / f"{number}.parquet")
        ds = penstock.open(tmp_path, on_error=on_error)
        forget_sizes(ds.source)
        loader = ds.loader(batch_size=10, memory_bytes=16 << 20, shuffle_bytes=1 << 20, on_error=on_error)
        with loader, pytest.raises(BudgetError, match=r"5\.parquet, row group 0"):
            list(loader)

    def test_lanes_and_block_do_not_change(self, tmp_path):
        # Pinned: what a run of an older version has chosen.
        for number in range(32):
            pq.write_table(pa.table(COLUMNS), tmp_path / f"{number:02}.parquet", row_group_size=200)
        loader = penstock.open(tmp_path).loader(batch_size=16, shuffle=True, shuffle_bytes=8 << 20)
        assert (loader.state_dict()["lanes"], loader.state_dict()["block"]) == (48, 305)
