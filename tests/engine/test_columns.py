"""Columns of every type are the same by index, by take and through every loader; and the views of a dataset."""

from __future__ import annotations

import datetime
import decimal
import io
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import NdarrayCodec
from penstock.errors import ColumnNotFound, PlanError, SchemaError
from penstock.schema.arrow import flatten_structs
from penstock.source import may_hold_nulls
from penstock.testing import ODD_FILES, RecordingFileSystem, assert_same, make_parquet, mixed
from tests.codecs.arrow_cases import CASES, same
from tests.codecs.arrow_plain import plain_rows
from tests.depth import depth
from tests.engine.make import column, ids

POOLS = ["thread", "serial", "process"]


def row_of(values, i):
    """One row of a batch column as a row value: None for null."""
    value = values[i]
    return plain(None if value is np.ma.masked else value)


def plain(value):
    """An array whose elements are all masked cannot be told from a null row; one without masks is plain."""
    if isinstance(value, np.ma.MaskedArray):
        hidden = np.ma.getmaskarray(value)
        return None if hidden.all() else value if hidden.any() else value.data
    return value


def parquet_keeps(array):
    """Tell whether Parquet can store an array and give it back."""
    try:
        file = io.BytesIO()
        pq.write_table(pa.table({"c": array}), file, row_group_size=1)
        pq.read_table(file)
    except (pa.ArrowException, OSError):
        return False
    return True


STORED = ["null", *(name for name, case in CASES.items() if name != "null" and parquet_keeps(case.example(nulls=True)))]


@pytest.mark.parametrize("name", STORED)
@settings(max_examples=depth(2, 40), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_type_is_the_same_by_index_by_take_and_by_loader(tmp_path_factory, name, data):
    case = CASES[name]
    array = case.build(data.draw(st.lists(st.none() | case.values, min_size=1, max_size=12)))
    assume(parquet_keeps(array))  # seconds become milliseconds there, and may overflow
    path = tmp_path_factory.mktemp("types") / "x.parquet"
    table = pa.table({"id": pa.array(range(len(array))), "c": array})
    pq.write_table(table, path, row_group_size=data.draw(st.integers(1, 5)))
    ds = penstock.open(path)
    truth = flatten_structs(pq.read_table(path).combine_chunks())
    wanted = {n: [plain(row) for row in plain_rows(truth[n].chunk(0))] for n in ds.columns}
    check_rows(ds, wanted)
    for shuffle in (False, True):
        with ds.loader(batch_size=3, shuffle=shuffle, epochs=2) as loader:
            for batch in loader:
                check_batch(batch, wanted)


def check_rows(ds, wanted):
    picked = ds.take([*range(len(ds)), 0])
    for i in range(len(ds)):
        row = ds[i]
        for n, rows in wanted.items():
            assert same(plain(row[n]), rows[i]), f"ds[{i}][{n!r}] is {row[n]!r}, not {rows[i]!r}"
            assert same(row_of(picked[n], i), rows[i])
    for n, rows in wanted.items():
        assert same(row_of(picked[n], len(ds)), rows[0])


def check_batch(batch, wanted):
    for at, i in enumerate(batch["id"].tolist()):
        for n, rows in wanted.items():
            assert same(row_of(batch[n], at), rows[i])


def rich(rows):
    """Columns of nested and dressed-up types."""
    some = rows.tolist()
    points = pa.array([None if i % 5 == 0 else {"x": i, "name": f"p{i}", "at": [i, None]} for i in some], _POINT)
    return {
        "id": pa.array(rows),
        "point": points,
        "colour": pa.array([_COLOURS[i % 3] for i in some], pa.string()).dictionary_encode(),
        "when": pa.array([None if i % 4 == 1 else i * 10**9 for i in some], pa.timestamp("ns", tz="UTC")),
        "day": pa.array([None if i % 4 == 2 else i for i in some], pa.date32()),
        "money": pa.array([None if i % 3 == 1 else decimal.Decimal(i) / 4 for i in some], pa.decimal128(20, 4)),
        "flags": pa.array([[bool(i % 2), None, True] for i in some], pa.list_(pa.bool_(), 3)),
        "words": pa.array([None if i % 7 == 3 else ["a"] * (i % 3) + [None] for i in some], pa.list_(pa.string())),
        "deep": pa.array([[[i], [], [i, i]][: i % 4] for i in some], pa.list_(pa.list_(pa.int16()))),
        "pairs": pa.array([[("k", i), ("k", None)] for i in some], pa.map_(pa.string(), pa.int32())),
        "clock": pa.array([None if i % 8 == 0 else i * 1000 for i in some], pa.time64("us")),
        "nothing": pa.nulls(len(some)),
    }


_COLOURS = ("red", None, "green")
_POINT = pa.struct([("x", pa.int32()), ("name", pa.string()), ("at", pa.list_(pa.int8()))])


@pytest.fixture(scope="module", params=[mixed, rich])
def ds(request, tmp_path_factory):
    return penstock.open(make_parquet(tmp_path_factory.mktemp("columns") / "data", columns=request.param))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("shuffle", [False, "groups", True])
def test_batches_are_the_rows_that_take_gives(ds, pool, shuffle):
    with ds.loader(batch_size=6, shuffle=shuffle, pool=pool, workers=2) as loader:
        batches = list(loader)
    assert sorted(ids(batches)) == list(range(51))
    for batch in batches:
        assert_same(batch, ds.take(batch["id"]))


def test_rows_are_the_rows_that_were_written(ds):
    table = pa.concat_tables(pq.read_table(file) for file in files_of(ds))
    flat = flatten_structs(table.combine_chunks())
    assert ds.columns == tuple(flat.column_names)
    check_rows(ds, {name: [plain(row) for row in plain_rows(flat[name].chunk(0))] for name in ds.columns})


def files_of(ds):
    return [ds.source.locate(chunk).path for chunk, (_, group, _) in enumerate(ds.chunks) if group == 0]


# -- what nulls and variable shapes look like -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed_ds(tmp_path_factory):
    return penstock.open(make_parquet(tmp_path_factory.mktemp("columns") / "mixed", columns=mixed))


def test_nulls_are_masked_and_hold_the_fill(mixed_ds):
    with mixed_ds.loader(batch_size=51) as loader:
        batch = next(iter(loader))
    small, when = batch["small"], batch["when"]
    assert small.mask.tolist() == [i % 5 == 2 for i in range(51)]
    assert set(small.data[small.mask].tolist()) == {0}
    assert small.dtype == np.int8
    assert np.isnat(when.data[when.mask]).all()
    assert when.dtype == "M8[us]"
    assert not isinstance(batch["id"], np.ma.MaskedArray)
    assert type(batch["pair"]) is np.ndarray
    assert batch["text"].dtype == object
    assert batch["text"][1] is None
    assert batch["money"][7] == decimal.Decimal("0.07")
    assert isinstance(batch["ragged"], list)
    assert batch["ragged"][3] is None
    assert batch["ragged"][2].tolist() == [0, 1]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("pad", [-1, {"ragged": -1}])
def test_variable_shapes_are_padded_on_demand(mixed_ds, pool, pad):
    with mixed_ds.loader(batch_size=4, pad=pad, pool=pool, workers=1) as loader:
        batches = list(loader)
    for batch in batches:
        ragged = batch["ragged"]
        assert ragged.dtype == np.int32
        for i, row in zip(batch["id"].tolist(), ragged.tolist(), strict=True):
            want = [] if i % 7 == 3 else list(range(i % 4))
            assert row == want + [-1] * (len(row) - len(want))
        assert ragged.shape[1] == max(0 if i % 7 == 3 else i % 4 for i in batch["id"])
    assert batches[0]["text"].dtype == object


def test_only_the_columns_named_are_padded(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[4]], columns=two_lists))
    with ds.loader(batch_size=4, pad={"a": 9}) as loader:
        batch = next(iter(loader))
    assert batch["a"].tolist() == [[9, 9, 9], [0, 9, 9], [0, 1, 9], [0, 1, 2]]
    assert isinstance(batch["b"], list)
    with pytest.raises(PlanError, match=r"pad= names the column 'c'.*there are: a, b|did you mean"):
        ds.loader(batch_size=4, pad={"c": 9})


def two_lists(rows):
    lists = [list(range(i)) for i in rows.tolist()]
    return {"a": pa.array(lists, pa.list_(pa.int16())), "b": pa.array(lists, pa.list_(pa.int16()))}


def test_padding_keeps_dtype_and_rank_where_a_batch_has_no_values(tmp_path):
    field = UnischemaField("a", np.float32, (None, 2), NdarrayCodec(), True)
    rows = [{"a": None}, {"a": None}, {"a": np.ones((3, 2), np.float32)}, {"a": np.ones((1, 2), np.float32)}]
    penstock.write(rows, tmp_path / "x", Unischema("S", [field]))
    with penstock.open(tmp_path / "x").loader(batch_size=2, pad=0) as loader:
        empty, full = list(loader)
    assert empty["a"].dtype == full["a"].dtype == np.float32
    assert empty["a"].shape == (2, 0, 2)
    assert full["a"].shape == (2, 3, 2)
    assert full["a"][1].tolist() == [[1, 1], [0, 0], [0, 0]]


def test_null_elements_are_padded_with_the_fill_too(tmp_path):
    table = pa.table({"a": pa.array([[1, None, 3], [4]], pa.list_(pa.int32()))})
    pq.write_table(table, tmp_path / "x.parquet")
    with penstock.open(tmp_path / "x.parquet").loader(batch_size=2, pad=-7) as loader:
        assert next(iter(loader))["a"].tolist() == [[1, -7, 3], [4, -7, -7]]


def test_a_fill_that_does_not_fit_the_column_is_refused_when_the_loader_is_made(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[4]], columns=two_lists))
    for fill in (np.nan, 1 << 20, "x"):
        with pytest.raises(PlanError, match=r"pad=.* does not fit column 'a' of int16"):
            ds.loader(batch_size=4, pad=fill)


def test_structs_are_columns_by_path(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, ODD_FILES, columns=rich))
    assert [name for name in ds.columns if name.startswith("point")] == ["point.x", "point.name", "point.at"]
    assert ds.select(["point.x"])[5] == {"point.x": None}
    row = ds.select(["point.name", "point.x", "point.at"])[6]
    assert list(row) == ["point.name", "point.x", "point.at"]
    assert (row["point.name"], row["point.x"], type(row["point.x"])) == ("p6", 6, np.int32)
    assert row["point.at"].mask.tolist() == [False, True]
    when = ds.where([("point.x", ">", 40)]).select(["id"])
    with when.loader(batch_size=20) as loader:
        assert ids(loader) == [i for i in range(41, 51) if i % 5]


# -- rows and views of a dataset ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def numbers_ds(tmp_path_factory):
    return penstock.open(make_parquet(tmp_path_factory.mktemp("columns") / "numbers"))


def test_one_row_is_a_dict_of_scalars(numbers_ds):
    row = numbers_ds[7]
    assert row == {"id": 7, "value": 3.5}
    assert (type(row["id"]), type(row["value"])) == (np.int64, np.float32)
    assert numbers_ds[-1] == numbers_ds[50] == numbers_ds[np.int32(50)]
    assert numbers_ds[-51]["id"] == 0


@pytest.mark.parametrize("index", [51, -52, 10**12, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, np.uint64(2**64 - 1)])
def test_a_row_beyond_the_end_is_an_index_error(numbers_ds, index):
    with pytest.raises(IndexError, match=f"row {index} is outside of a dataset of 51 rows"):
        numbers_ds[index]
    with pytest.raises(IndexError, match=f"row {index} is outside"):
        numbers_ds.take([0, index])
    if index > 0:
        assert numbers_ds[50:index]["id"].tolist() == [50]


def test_unsigned_and_mixed_integers_are_row_numbers(numbers_ds):
    assert numbers_ds.take(np.array([3, 50], np.uint64))["id"].tolist() == [3, 50]
    assert numbers_ds.take([np.uint64(3), -1])["id"].tolist() == [3, 50]
    with pytest.raises(IndexError, match=f"row {2**64 - 51} is outside"):
        numbers_ds.take(np.array([0, 2**64 - 51], np.uint64))


@pytest.mark.parametrize("index", [1.5, "id", None, True, np.bool_(True), [0.5], [True, False], [[1, 2], [3, 4]]])
def test_what_is_no_index_is_a_type_error(numbers_ds, index):
    with pytest.raises(TypeError):
        numbers_ds[index]


@pytest.mark.parametrize(
    "rows", [slice(3, 9), slice(None, None, 10), slice(45, 99), slice(9, 3), slice(None, None, -7)]
)
def test_slices_give_batches(numbers_ds, rows):
    assert numbers_ds[rows]["id"].tolist() == list(range(51))[rows]


def test_take_keeps_order_and_repeats(numbers_ds):
    for rows in ([7, 3, 7, 50, 0, -1], np.array([5, 5, 5], np.uint8), range(40, 3, -5), iter([2, 1])):
        rows = list(rows) if not isinstance(rows, np.ndarray) else rows
        assert numbers_ds.take(rows)["id"].tolist() == [int(i) % 51 for i in rows]
    assert numbers_ds.take(i for i in (4, 2))["id"].tolist() == [4, 2]


@pytest.mark.parametrize("n", [0, 1, 5, 51, 99])
def test_head_gives_the_first_rows(numbers_ds, n):
    assert numbers_ds.head(n)["id"].tolist() == list(range(min(n, 51)))


def test_no_rows_keep_the_columns(mixed_ds):
    none = mixed_ds.take([])
    assert list(none) == list(mixed_ds.columns)
    assert all(len(values) == 0 for values in none.values())
    assert none["pair"].shape == (0, 2)
    assert none["small"].dtype == np.int8


def test_take_gives_memory_of_its_own(numbers_ds):
    one, two = numbers_ds.take([1, 2]), numbers_ds.take([1, 2])
    one["id"][:] = 99
    assert two["id"].tolist() == numbers_ds.take([1, 2])["id"].tolist() == [1, 2]


def test_columns_are_selected_by_name_field_and_pattern(mixed_ds):
    assert mixed_ds.select(["text", "id"]).columns == ("text", "id")
    assert mixed_ds.select([mixed_ds.schema.fields["when"]]).columns == ("when",)
    assert mixed_ds.select(["text", "[fp].*", "id"]).columns == ("text", "flag", "pair", "id")
    assert list(mixed_ds.select(["text", "id"])[3]) == ["text", "id"]
    assert list(mixed_ds.select(["text", "id"]).schema.fields) == ["text", "id"]
    with mixed_ds.select(["text", "id"]).loader(batch_size=4) as loader:
        assert list(next(iter(loader))) == ["text", "id"]
    with pytest.raises(ColumnNotFound, match="did you mean 'text'"):
        mixed_ds.select(["texts"])
    with pytest.raises((PlanError, SchemaError)):
        mixed_ds.select([]).loader(batch_size=4)


def test_filters_combine_partitions_and_columns(tmp_path):
    parts = np.array(["red", "green", "blue"])[np.arange(60) % 3]
    penstock.write({"id": np.arange(60), "x": np.arange(60) * 0.5, "colour": parts}, tmp_path, partition_by="colour")
    ds = penstock.open(tmp_path)
    kept = ds.where([("colour", "in", ["red", "blue"]), ("x", "<", 20)]).where([("id", ">=", 6)])
    expected = [i for i in range(6, 40) if i % 3 != 1]
    assert len(kept) == len(expected)
    assert sorted(column([kept.take(range(len(kept)))], "id")) == expected
    assert {kept[i]["colour"] for i in range(len(kept))} == {"red", "blue"}
    for shuffle in (False, "groups", True):
        with kept.loader(batch_size=7, shuffle=shuffle) as loader:
            assert len(loader) == -(-len(expected) // 7)
            batches = list(loader)
        assert sorted(ids(batches)) == expected
        assert all(parts[i] == c for b in batches for i, c in zip(b["id"], b["colour"], strict=True))
    assert len(ds.where([("colour", "=", "pink")])) == 0
    assert len(ds) == 60
    assert penstock.open(tmp_path, filters=[("id", "<", 6)], columns=["x"]).head(9)["x"].tolist() != []


def test_a_dataset_says_what_it_is(mixed_ds):
    text, html = repr(mixed_ds), mixed_ds._repr_html_()
    assert text.startswith("Dataset: 51 rows x 9 columns in 5 files, 10 row groups, ")
    for name in mixed_ds.columns:
        assert name in text
        assert f"<td style='text-align:left'>{name}</td>" in html
    few = mixed_ds.select(["id"]).where([("id", "<", 3)])
    assert repr(few).startswith("Dataset: 3 rows x 1 column in")
    assert [rows for _, _, rows in few.chunks if rows] == [3]


def test_mistakes_with_a_dataset_are_told_with_the_cure(tmp_path, mixed_ds):
    with pytest.raises(TypeError, match=r"ds\.select\(\['id'\]\) chooses columns"):
        mixed_ds["id"]
    with pytest.raises(PlanError, match="on_error must be one of 'raise', 'skip'; got 'ignore'"):
        penstock.open(tmp_path, on_error="ignore")
    with pytest.raises(TypeError, match=r"schema= takes a penstock\.Unischema; got dict"):
        penstock.open(tmp_path, schema={"id": "int64"})


def test_dates_come_as_numpy_dates(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[9]], columns=rich))
    assert ds[4]["day"] == np.datetime64(datetime.date(1970, 1, 5))
    assert ds[2]["day"] is None


@pytest.mark.parametrize("dtype", [np.complex64, np.float32, np.int8, np.bool_])
def test_null_cells_hold_the_fill_value_that_the_mask_names(tmp_path, dtype):
    fields = [UnischemaField("x", dtype, (2,), NdarrayCodec(), nullable=True)]
    rows = [{"x": None if i == 1 else np.ones(2, dtype)} for i in range(3)]
    penstock.write(rows, tmp_path / "data", Unischema("Cells", fields))
    (batch,) = penstock.open(tmp_path / "data").loader(batch_size=3)
    below, filled = batch["x"].data[1], batch["x"].filled()[1]
    np.testing.assert_array_equal(below, filled)
    np.testing.assert_array_equal(below, np.full(2, np.nan if np.dtype(dtype).kind in "fc" else 0, dtype))


def test_a_list_of_nulls_is_a_list_also_by_index(tmp_path):
    lists = [[1, None], [None], [None, None], [], None]
    pq.write_table(pa.table({"x": pa.array(lists, pa.list_(pa.int32()))}), tmp_path / "a.parquet")
    ds = penstock.open(tmp_path)
    assert [None if ds[i]["x"] is None else ds[i]["x"].tolist() for i in range(5)] == lists


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"pool": "process", "workers": 1}], ids=str)
def test_a_column_has_one_type_in_every_batch(tmp_path, options):
    """Masked where it is nullable and the footers do not prove that there is no null; the same in a single batch."""
    schema = pa.schema([pa.field("never", pa.int64(), nullable=False), pa.field("none", pa.int64())])
    schema = schema.append(pa.field("some", pa.float32())).append(pa.field("silent", pa.int16()))
    for number in range(3):
        some = [None if number == 2 and i == 4 else i for i in range(10)]
        table = pa.table([range(10), range(10), some, range(10)], schema=schema)
        pq.write_table(
            table, tmp_path / f"{number}.parquet", row_group_size=5, write_statistics=["never", "none", "some"]
        )
    ds = penstock.open(tmp_path)
    with ds.loader(batch_size=4, rank=0, world=1, **options) as loader:
        batches = list(loader)
    assert sum(np.ma.count_masked(batch["some"]) for batch in batches) == 1
    for batch in [*batches, ds.take([0]), ds.head(1), ds[3:5], ds.where([("never", "<", 3)]).take([1])]:
        assert [isinstance(batch[name], np.ma.MaskedArray) for name in schema.names] == [False, False, True, True]
        assert batch["some"].mask.shape == batch["some"].shape
    assert ds[0] == {"never": 0, "none": 0, "some": 0.0, "silent": 0}
    assert ds[24]["some"] is None


def test_the_type_of_a_column_is_known_for_any_number_of_files(tmp_path):
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "000.parquet")
    for number in range(1, 300):
        shutil.copy(tmp_path / "000.parquet", tmp_path / f"{number:03}.parquet")
    assert type(penstock.open(tmp_path).take([0])["x"]) is np.ndarray
    pq.write_table(pa.table({"x": [1, None]}), tmp_path / "299.parquet")
    assert isinstance(penstock.open(tmp_path).take([0])["x"], np.ma.MaskedArray)


def test_the_type_of_a_column_needs_no_footers_where_metadata_has_them(tmp_path):
    collected = []
    for number in range(12):
        table = pa.table({"x": [1, None if number == 7 else 2], "y": [1, 2]})
        pq.write_table(table, tmp_path / f"{number:02}.parquet", metadata_collector=collected)
        collected[-1].set_file_path(f"{number:02}.parquet")
    pq.write_metadata(table.schema, tmp_path / "_metadata", collected)
    fs = RecordingFileSystem()
    ds = penstock.open(tmp_path, filesystem=fs)
    fs.reads.clear()
    assert may_hold_nulls(ds.source, ["x", "y"]) == {"x"}
    assert not fs.reads.paths


def test_a_damaged_row_does_not_change_the_type_of_its_batch(tmp_path):
    schema = Unischema("S", [UnischemaField("a", np.float32, (2,), NdarrayCodec(), False)])
    penstock.write(({"a": np.full(2, i, np.float32)} for i in range(6)), tmp_path / "d", schema)
    [path] = (tmp_path / "d").glob("*.parquet")
    table = pq.read_table(path)
    cells = table["a"].to_pylist()
    cells[3] = b"damaged"
    pq.write_table(table.set_column(0, "a", pa.array(cells, pa.binary())), path)
    with penstock.open(tmp_path / "d").loader(batch_size=6, on_error="skip", rank=0, world=1) as loader:
        [batch] = loader
    assert batch["a"][:, 0].tolist() == [0, 1, 2, 4, 5]
    assert type(batch["a"]) is np.ndarray
