"""Filters keep exactly the rows that the same filter keeps on the whole table, and read no more than they must."""

import datetime
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.dataset import open_parquet
from penstock.dataset.arrow_filter import filter_columns, make_arrow_filter
from penstock.dataset.row_filter import make_row_filter
from penstock.errors import BadFile, ColumnNotFound, SchemaError
from penstock.source import Selection
from penstock.testing import RecordingFileSystem
from tests.dataset.filtering import chosen, rows
from tests.dataset.make import ids, read_all, write, write_ids
from tests.depth import depth

ANY = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64()), ("label", pa.int64())])


def mask(filters, table):
    """Return which rows of a table a filter keeps."""
    return make_arrow_filter(filters, table.schema).mask(table, table.num_rows)


def plain_rows(source, filters):
    """The plain twin: the filter over the whole table."""
    table = read_all(source)
    table = table.append_column("__row", pa.array(range(table.num_rows)))
    expression = filters if isinstance(filters, pc.Expression) else pq.filters_to_expression(filters)
    return table.filter(expression)["__row"].to_pylist()


class TestForms:
    def test_nothing_filters_nothing(self):
        for nothing in (None, [], [[]]):
            assert make_row_filter(nothing, ANY) is None

    def test_all_forms_mean_the_same(self):
        term = ("a", "=", 3)
        forms = [
            [term],
            [[term]],
            term,
            [("a", "==", 3)],
            pc.field("a") == 3,
            [["a", "=", 3]],
            [("a", "=", np.int32(3))],
        ]
        assert {str(make_arrow_filter(form, ANY)) for form in forms} == {"(a == 3)"}

    def test_lists_of_lists_are_or_of_and(self):
        text = str(make_arrow_filter([[("a", "<", 1), ("b", "in", {2, 1})], [("c", "not in", (3,))]], ANY))
        assert " or " in text
        assert " and " in text

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            ("a = 3", "filters are"),
            (3, "filters are"),
            (lambda row: True, "filters are .* or a predicate"),
            ([("a", "=")], "term"),
            ([("a", "=", 1), [("b", "=", 1)]], "side by side"),
            ([("a", "~", 1)], "unknown operator '~'"),
            ([("a", "in", "xyz")], "wants a list"),
            ([("a", "in", 3)], "wants a list"),
        ],
    )
    def test_what_is_no_filter_says_the_form(self, wrong, says):
        with pytest.raises(SchemaError, match=says):
            make_row_filter(wrong, ANY)

    def test_unknown_columns_list_near_names(self):
        schema = pa.schema([("label", pa.int64())])
        for filters in ([("lable", "=", 1)], pc.field("lable") == 1):
            with pytest.raises(ColumnNotFound, match="did you mean 'label'"):
                make_arrow_filter(filters, schema)

    def test_values_of_another_type_are_told(self):
        schema = pa.schema([("label", pa.int64()), ("text", pa.string())])
        with pytest.raises(SchemaError, match="does not fit"):
            make_arrow_filter([("text", ">", 3)], schema)
        with pytest.raises(SchemaError, match=r"where a condition \(bool\) is wanted"):
            make_arrow_filter(pc.field("label") + 1, schema)
        with pytest.raises(SchemaError, match=r"pc\.field\('s\.a'\)"):
            make_arrow_filter(pc.field("s", "a") == 1, schema)

    def test_decimals_take_the_columns_scale(self):
        schema = pa.schema([("price", pa.decimal128(7, 2))])
        table = pa.table({"price": [Decimal("1.25"), Decimal("1.50"), None]}, schema=schema)
        for term, kept in (
            ((">", Decimal("1.3")), 1),
            (("in", [Decimal("1.5")]), 1),
            ((">", Decimal("1.249")), 2),
            (("=", Decimal("1.255")), 0),
            (("<=", 10**30), 2),
            (("in", [1, Decimal("1.250")]), 1),
        ):
            assert mask([("price", *term)], table).sum() == kept, term

    def test_bounds_beside_in_change_nothing(self):
        schema = pa.schema([("a", pa.int64()), ("t", pa.string()), ("f", pa.float64())])
        table = pa.table({"a": [1, 2, None], "t": ["a", "b", None], "f": [NAN, 1.0, None]}, schema=schema)
        for name, values in (("a", [1, 7]), ("a", [1, None]), ("a", []), ("t", {"b", "c"}), ("f", [1.0, NAN])):
            for sign in ("in", "not in"):
                expected = pq.filters_to_expression([(name, sign, list(values))])
                found = mask([(name, sign, values)], table)
                assert (found == mask(expected, table)).all(), (name, sign, values)

    def test_columns_of_an_expression(self):
        names = ["a", "b", "ab", "a.b", "x y", "is_in"]
        schema = pa.schema([(name, pa.int64()) for name in names])
        expression = (pc.field("ab") == 1) | pc.field("x y").isin([1]) & (pc.field("a.b") > pc.scalar(3))
        assert filter_columns(expression, schema) == ["ab", "a.b", "x y"]
        assert filter_columns(pc.scalar(True), schema) == []


class TestSelect:
    @pytest.fixture
    def source(self, tmp_path):
        return open_parquet(write_ids(tmp_path, files=4, rows=20, rows_per_group=6))

    @pytest.mark.parametrize(
        "filters",
        [
            [("id", "<", 7)],
            [("id", ">=", 73)],
            [("id", "in", [3, 50, 999])],
            [("id", "not in", [3, 50])],
            [("id", "!=", 5)],
            [[("id", "=", 5)], [("value", ">", 35.0), ("value", "<=", 37.0)]],
            [("id", "<", -1)],
            [("id", ">", -1)],
            pc.field("id") % 7 == 3 if hasattr(pc.Expression, "__mod__") else (pc.field("id") > 70),
            pc.scalar(True),
            pc.scalar(False),
        ],
    )
    def test_rows(self, source, filters):
        assert rows(source, chosen(source, filters)) == plain_rows(source, filters)

    def test_none_changes_nothing(self, source):
        everything = Selection.all(source.facts.chunk_rows)
        assert chosen(source, None, everything) is everything

    def test_filters_add_up(self, source):
        first = chosen(source, [("id", ">", 10)])
        second = chosen(source, [("id", "<", 30), ("id", "!=", 20)], first)
        both = chosen(source, [("id", ">", 10), ("id", "<", 30), ("id", "!=", 20)])
        assert rows(source, second) == [i for i in range(11, 30) if i != 20]
        assert second.digest() == both.digest()

    def test_the_result_does_not_depend_on_workers(self, source):
        digests = {chosen(source, [("value", ">", 13.3)], workers=workers).digest() for workers in (1, 2, 5)}
        assert len(digests) == 1

    def test_statistics_rule_out_row_groups_unread(self, tmp_path):
        write_ids(tmp_path, files=4, rows=20, rows_per_group=6)
        fs = RecordingFileSystem()
        source = open_parquet(str(tmp_path), filesystem=fs)
        fs.reads.clear()
        assert chosen(source, [("id", "in", [25, 27])]).total == 2
        group = source.footer(1).arrow.row_group(0)
        end = group.column(0).data_page_offset + group.column(0).total_compressed_size
        assert fs.reads.paths == {source.locate(4).path}
        assert fs.reads.touched(source.locate(4).path, group.column(0).data_page_offset, end)
        assert fs.reads.num_bytes < 1000

    def test_only_the_filters_own_columns_are_read(self, tmp_path):
        write(tmp_path / "x.parquet", {"a": [1, 2, 3], "big": [b"x" * 100_000] * 3})
        fs = RecordingFileSystem()
        source = open_parquet(str(tmp_path), filesystem=fs)
        fs.reads.clear()
        assert chosen(source, [("a", "!=", 2)]).total == 2
        assert fs.reads.num_bytes < 1000

    def test_nested_leaves_and_names_with_dots(self, tmp_path):
        write(tmp_path / "x.parquet", {"s": [{"a": 1}, {"a": 5}, None], "p.q": [1, 2, 3]}, rows_per_group=1)
        source = open_parquet(tmp_path)
        assert rows(source, chosen(source, [("s.a", ">", 2)])) == [1]
        assert rows(source, chosen(source, [("p.q", ">", 2)])) == [2]
        assert rows(source, chosen(source, pc.field("s.a").is_null())) == [2]

    def test_a_bad_row_group_is_told_or_left_out(self, tmp_path):
        from tests.dataset.test_bad_files import spoil_page

        write_ids(tmp_path)
        spoil_page(tmp_path / "part-1.parquet", 1, 1)
        filters = [("value", ">", 3.0)]
        with pytest.raises(BadFile, match=r"part-1\.parquet, row group 1, column 'value'"):
            chosen(open_parquet(tmp_path), filters)
        source = open_parquet(tmp_path, on_error="skip")
        found = chosen(source, filters)
        assert rows(source, found) == [i for i in range(7, 30) if not 14 <= i < 18]
        assert len(found.skipped) == 1


def test_large_row_groups_keep_their_order():
    parts = [pa.table({"a": np.arange(start, start + 700_000)}) for start in range(0, 4_200_000, 700_000)]
    keep = mask((pc.field("a") >= 1_000_000) & (pc.field("a") != 3_000_000), pa.concat_tables(parts))
    expected = np.arange(4_200_000) >= 1_000_000
    expected[3_000_000] = False
    assert (keep == expected).all()


class TestPartitions:
    @pytest.fixture
    def root(self, tmp_path):
        for year in (2022, 2023, 2024):
            for city in ("Bern", "Oslo", "__HIVE_DEFAULT_PARTITION__"):
                write(tmp_path / f"year={year}" / f"city={city}" / "x.parquet", ids(year, year + 4), rows_per_group=3)
        return tmp_path

    FILTERS = [
        [("year", "=", 2023)],
        [("year", ">", 2022), ("city", "in", ["Oslo"])],
        [("city", "!=", "Oslo")],
        [("city", "not in", ["Oslo"])],
        pc.field("city").is_null(),
        [[("year", "=", 2022), ("city", "=", "Bern")], [("year", "=", 2024)]],
        [("year", "=", 1900)],
    ]

    @pytest.mark.parametrize("filters", FILTERS)
    def test_partition_filters_touch_no_file(self, root, filters):
        fs = RecordingFileSystem()
        source = open_parquet(str(root), filesystem=fs)
        fs.reads.clear()
        selection = chosen(source, filters)
        assert fs.reads.opened == []
        assert selection.bitmaps == {}
        assert rows(source, selection) == plain_rows(source, filters)

    def test_both_kinds_of_columns(self, root):
        fs = RecordingFileSystem()
        source = open_parquet(str(root), filesystem=fs)
        fs.reads.clear()
        filters = [("year", "=", 2023), ("city", "=", "Bern"), ("id", "=", 2024)]
        assert chosen(source, filters).total == 1
        assert len(fs.reads.paths) == 1
        either = [[("year", "=", 2023)], [("id", "=", 2024)]]
        assert rows(source, chosen(source, either)) == plain_rows(source, either)


NAN = math.nan
COLUMNS = {
    "i": (pa.int32(), st.integers(-3, 3)),
    "u": (pa.uint64(), st.sampled_from([0, 1, 2**63, 2**64 - 1])),
    "f": (pa.float64(), st.sampled_from([NAN, -0.0, 0.0, 1.5, -1.5, math.inf, -math.inf])),
    "g": (pa.float32(), st.sampled_from([NAN, 0.1, 2.0])),
    "t": (pa.string(), st.sampled_from(["", "a", "b", "ab", "\u00e9", "z" * 70])),
    "y": (pa.binary(), st.sampled_from([b"", b"a", b"\xff", b"\x80b"])),
    "b": (pa.bool_(), st.booleans()),
    "d": (pa.date32(), st.dates(datetime.date(2020, 1, 1), datetime.date(2020, 1, 4))),
    "w": (pa.timestamp("us"), st.datetimes(datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2))),
    "z": (
        pa.timestamp("ms", "UTC"),
        st.sampled_from([datetime.datetime(2020, 1, n, tzinfo=datetime.UTC) for n in (1, 2)]),
    ),
    "n": (pa.timestamp("ns"), st.sampled_from([datetime.datetime(2020, 1, n) for n in (1, 2, 3)])),
    "m": (pa.decimal128(7, 2), st.sampled_from([Decimal("-1.50"), Decimal("0.25"), Decimal("99999.99")])),
    "k": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b"])),
}


@st.composite
def tables(draw):
    count = draw(st.integers(1, 12))
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3, unique=True))
    arrays = []
    for name in names:
        kind, values = COLUMNS[name]
        cells = draw(st.lists(st.none() | values, min_size=count, max_size=count))
        arrays.append(pa.array(cells, kind))
    return pa.table(arrays, names=names)


@st.composite
def expressions(draw, names, *, level=2):
    if level and draw(st.integers(0, 3)):
        form = draw(st.sampled_from(["and", "or", "not"]))
        left = draw(expressions(names, level=level - 1))
        if form == "not":
            return ~left
        right = draw(expressions(names, level=level - 1))
        return left & right if form == "and" else left | right
    name = draw(st.sampled_from(names))
    kind, values = COLUMNS[name]
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    here, value = pc.field(name), pa.scalar(draw(values), plain)
    sign = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "null", "valid", "nan"]))
    if sign in ("<", "<=", ">", ">=") and name == "b":
        sign = "=="
    if sign == "in" and name != "k":
        return here.isin(pa.array([draw(values), draw(st.none() | values)], plain))
    return {
        "==": here == value,
        "!=": here != value,
        "<": here < value,
        "<=": here <= value,
        ">": here > value,
        ">=": here >= value,
        "in": here == value,
        "null": here.is_null(),
        "valid": here.is_valid(),
        "nan": here.is_null(nan_is_null=True),
    }[sign]


@settings(
    max_examples=depth(60, 3000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_pruning_never_loses_a_row(tmp_path, data):
    table = data.draw(tables())
    statistics = data.draw(st.booleans())
    expression = data.draw(expressions(table.column_names))
    write(tmp_path / "x.parquet", table, rows_per_group=data.draw(st.integers(1, 4)), write_statistics=statistics)
    source = open_parquet(tmp_path)
    assert rows(source, chosen(source, expression)) == np.flatnonzero(mask(expression, table)).tolist()


@pytest.mark.parametrize(
    ("cells", "expression", "kept"),
    [
        ([3.0, NAN], pc.field("x") != 3.0, [1]),
        ([3.0, NAN], ~(pc.field("x") <= 5.0), [1]),
        ([NAN, NAN], pc.field("x") != 3.0, [0, 1]),
        ([NAN, 1.0], pc.field("x") > 5.0, []),
        ([NAN, None], pc.field("x").is_null(), [1]),
        ([NAN, None], pc.field("x").is_null(nan_is_null=True), [0, 1]),
        ([1.0, NAN], pc.is_nan(pc.field("x")), [1]),
        ([1.0, None], pc.field("x") != 1.0, []),
        ([None, None], pc.field("x").is_null(), [0, 1]),
        ([None, None], pc.field("x").is_valid(), []),
        ([1.0, NAN], pc.if_else(pc.field("x") <= 1.0, pc.scalar(False), pc.scalar(True)), [1]),
        ([-0.0, -0.0], pc.field("x") == 0.0, [0, 1]),
    ],
)
def test_nan_and_null(tmp_path, cells, expression, kept):
    write(tmp_path / "x.parquet", {"x": pa.array(cells, pa.float64(), from_pandas=False)})
    source = open_parquet(tmp_path)
    assert rows(source, chosen(source, expression)) == kept


@pytest.mark.parametrize(
    "make",
    [
        pa.scalar,
        float,
        lambda i: pa.scalar(i, pa.int8()),
        lambda i: f"{i:03}",
        lambda i: datetime.date(2020, 1, 1) + datetime.timedelta(i),
        lambda i: datetime.datetime(2020, 1, 1) + datetime.timedelta(hours=i),
        lambda i: datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(hours=i),
        lambda i: Decimal(i) / 4,
    ],
)
def test_statistics_of_these_types_do_prune(tmp_path, make):
    write(tmp_path / "x.parquet", {"x": pa.array([make(i) for i in range(100)])}, rows_per_group=10)
    fs = RecordingFileSystem()
    source = open_parquet(str(tmp_path), filesystem=fs)
    fs.reads.clear()
    assert chosen(source, [("x", ">", make(94))]).total == 5
    assert fs.reads.num_reads == 1


@pytest.mark.parametrize("sign", ["=", "!=", "<"])
def test_a_comparison_with_none_is_refused_with_the_cure(sign):
    with pytest.raises(SchemaError, match=r"field\('a'\)\.is_null\(\)"):
        make_arrow_filter([("a", sign, None)], ANY)
