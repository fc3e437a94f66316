"""Filters against plain Python: extreme values, NaN, floats against integers, with and without statistics."""

import datetime
import math
import operator
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.dataset import open_parquet
from penstock.dataset.predicates import in_set
from penstock.errors import SchemaError
from tests.dataset.filtering import kept
from tests.dataset.make import write
from tests.depth import depth

NAN, INF = math.nan, math.inf
SIGNS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
WIDTHS = {
    **{f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}
EDGES = sorted(
    {sign * (1 << bits) + by for bits in (0, 7, 8, 24, 31, 32, 53, 63, 64) for by in (-1, 0, 1) for sign in (1, -1)}
)
DOUBLES = st.sampled_from([0.0, -0.0, 0.5, -0.5, 0.1, INF, -INF, NAN, 1e308, 5e-324, *map(float, EDGES)])
SINGLES = st.sampled_from([0.0, -0.0, 0.5, INF, -INF, NAN, 16777216.0, -16777216.0, 2.0**63, float(np.float32(0.1))])
NUMBERS = st.sampled_from(EDGES) | st.integers() | DOUBLES | st.sampled_from([Decimal("0.5"), Decimal(2**53 + 1)])
NUMBERS |= st.sampled_from([np.int8(-1), np.uint64(2**64 - 1), np.float32(0.5), np.float64(NAN), 10**400])
MOMENTS = st.sampled_from(
    [datetime.datetime(1970, 1, 1), datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)]
) | st.datetimes(datetime.datetime(1969, 12, 31), datetime.datetime(1970, 1, 2))


def column(kind):
    """Cells of a column of that type."""
    text = str(kind)
    if text in WIDTHS:
        least, most = WIDTHS[text]
        near = [edge for edge in EDGES if least <= edge <= most]
        return st.integers(least, most) | st.sampled_from([*near, least, most])
    if text == "decimal128(5, 2)":
        return st.integers(-99999, 99999).map(lambda n: Decimal(n).scaleb(-2))
    return {"float": SINGLES, "double": DOUBLES}.get(text, MOMENTS.map(lambda one: fitted(one, kind)))


def fitted(moment, kind):
    if pa.types.is_date(kind):
        return moment.date()
    if kind.unit == "ns":
        moment = moment.replace(year=min(max(moment.year, 1700), 2200))
    return {"s": moment.replace(microsecond=0), "ms": moment.replace(microsecond=0)}.get(kind.unit, moment)


NUMERIC = [*map(pa.type_for_alias, WIDTHS), pa.float32(), pa.float64(), pa.decimal128(5, 2)]
TIMES = [pa.date32(), *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns"))]


def passes(cell, sign, value, kind):
    """The plain twin: what a term says of one cell, in Python's exact arithmetic."""
    if sign in ("in", "not in"):
        found = any(_same(cell, _python(one, kind)) for one in value)
        return found == (sign == "in")
    plain = _python(value, kind)
    if cell is None or cell != cell or plain != plain:  # Python orders no Decimal with NaN
        return cell is not None and sign == "!="
    return bool(SIGNS[sign](_moment(cell), _moment(plain)))


def _same(cell, value):
    if cell is None or value is None:
        return cell is value
    both_nan = isinstance(cell, float) and cell != cell and value != value
    return both_nan or _moment(cell) == _moment(value)


def _python(value, kind):
    if isinstance(value, np.datetime64):
        return value.astype("M8[us]").item()
    value = value.item() if isinstance(value, np.generic) else value
    short = isinstance(value, float) and math.isfinite(value) and pa.types.is_decimal(kind)
    return Decimal(repr(value)) if short else value  # beside decimals 0.1 is one tenth


def _moment(value):
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return datetime.datetime(value.year, value.month, value.day)
    return value


@st.composite
def cases(draw):
    kind = draw(st.sampled_from(NUMERIC + TIMES))
    if kind in TIMES:
        moments = MOMENTS | MOMENTS.map(lambda one: one.date()) | MOMENTS.map(lambda one: np.datetime64(one, "us"))
        values = moments | MOMENTS.map(lambda one: np.datetime64(one, "D"))
    else:
        values = NUMBERS
        if pa.types.is_decimal(kind):
            values |= st.decimals(-2000, 2000, places=3, allow_nan=False) | st.sampled_from([0.1, -1.25, 999.99, 0.005])
    cells = draw(st.lists(st.none() | column(kind), min_size=1, max_size=9))
    terms = []
    for _ in range(draw(st.integers(1, 2))):
        sign = draw(st.sampled_from([*SIGNS, "in", "not in"]))
        shared = (
            values | st.sampled_from(cells).filter(lambda one: one is not None)
            if any(cell is not None for cell in cells)
            else values
        )
        terms.append(("x", sign, draw(st.lists(shared | st.none(), max_size=4) if "in" in sign else shared)))
    return kind, cells, terms


@settings(
    max_examples=depth(300, 10_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=cases(), statistics=st.booleans(), rows=st.integers(1, 4), either=st.booleans())
def test_a_filter_keeps_what_python_says(tmp_path, case, statistics, rows, either):
    kind, cells, terms = case
    table = pa.table({"x": pa.array(cells, kind, from_pandas=False)})
    write(tmp_path / "x.parquet", table, rows_per_group=rows, write_statistics=statistics)
    source = open_parquet(tmp_path)
    filters = [[term] for term in terms] if either else terms
    combine = any if either else all
    said = [combine(passes(cell, sign, value, kind) for _, sign, value in terms) for cell in cells]
    assert kept(source, filters) == np.flatnonzero(said).tolist(), (kind, cells, filters)


@settings(
    max_examples=depth(150, 5_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(kind=st.sampled_from(NUMERIC[:-1]), data=st.data(), statistics=st.booleans(), rows=st.integers(1, 4))
def test_in_set_keeps_what_python_says(tmp_path, kind, data, statistics, rows):
    cells = data.draw(st.lists(st.none() | column(kind), min_size=1, max_size=9))
    values = data.draw(st.lists(NUMBERS | st.none() | st.sampled_from(cells), max_size=4))
    table = pa.table({"x": pa.array(cells, kind, from_pandas=False)})
    write(tmp_path / "x.parquet", table, rows_per_group=rows, write_statistics=statistics)
    source = open_parquet(tmp_path)
    plain = [_python(value, kind) for value in values]
    said = [any(cell is value or cell == value for value in plain if value == value) for cell in cells]
    assert kept(source, in_set(values, "x")) == np.flatnonzero(said).tolist(), (cells, values)


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("many", [0, 50])
def test_nan_among_the_values_of_in_finds_every_nan(tmp_path, statistics, many):
    cells = [1.0, 2.0, NAN, 5.0, NAN, NAN]
    write(tmp_path / "x.parquet", {"x": pa.array(cells)}, rows_per_group=2, write_statistics=statistics)
    source = open_parquet(tmp_path)
    values = [*range(100, 100 + many // 2), NAN, 1.0, *range(200, 200 + many // 2)]
    for filters in ([("x", "in", values)], pc.field("x").isin(list(map(float, values)))):
        assert kept(source, filters) == [0, 2, 4, 5]


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(
    ("kind", "cells", "expression"),
    [
        (pa.int64(), [0, 2**24 + 1], pc.field("x") > 0.5),
        (pa.uint64(), [0, 2**64 - 1], pc.field("x") > 5),
        (pa.timestamp("ms"), [0, 2**62], pc.field("x") > datetime.datetime(1970, 1, 1, 0, 0, 0, 1)),
    ],
)
def test_an_expression_that_arrow_cannot_evaluate_names_the_place_and_a_cure(
    tmp_path, kind, cells, expression, statistics
):
    write(tmp_path / "x.parquet", {"x": pa.array(cells, kind)}, rows_per_group=1, write_statistics=statistics)
    source = open_parquet(tmp_path)
    with pytest.raises(SchemaError, match=r"x\.parquet, row group 1: .*\.cast\("):
        kept(source, expression)


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(
    ("kind", "cells", "value", "rows"),
    [
        (pa.float32(), [0.1, INF, 0.5], 0.1, []),
        (pa.float32(), [0.1, INF, 0.5], 1e308, []),
        (pa.float32(), [0.1, INF, 0.5], np.float32(0.1), [0]),
        (pa.decimal128(20, 2), ["9007199254740993.00", "0.10", "-1.00"], 9007199254740992.0, []),
        (pa.decimal128(20, 2), ["9007199254740993.00", "0.10", "-1.00"], 0.1, [1]),
        (pa.decimal128(20, 2), ["9007199254740993.00", "0.10", "-1.00"], INF, []),
    ],
)
def test_in_and_equals_round_neither_the_value_nor_the_cell(tmp_path, kind, cells, value, rows, statistics):
    column = pa.array(map(Decimal, cells) if pa.types.is_decimal(kind) else cells, kind)
    write(tmp_path / "x.parquet", {"x": column}, rows_per_group=1, write_statistics=statistics)
    source = open_parquet(tmp_path)
    for filters in ([("x", "=", value)], [("x", "in", [value])], [("x", "in", [value, 7, 2**60])]):
        assert kept(source, filters) == rows, filters


@pytest.mark.skipif(not hasattr(pa, "string_view"), reason="pyarrow without views")
def test_views_of_text_and_bytes_are_filtered_like_text_and_bytes(tmp_path):
    columns = {
        "t": pa.array(["a", "b", None, "b"], pa.string_view()),
        "b": pa.array([b"a", b"b", None, b"b"], pa.binary_view()),
    }
    write(tmp_path / "x.parquet", columns, rows_per_group=2)
    source = open_parquet(tmp_path)
    for filters in ([("t", "=", "b")], [("b", "=", b"b")], [("t", "in", ["b"])], pc.field("t") > "a"):
        assert kept(source, filters) == [1, 3]


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.date32(), pa.binary(), pa.bool_()])
@pytest.mark.parametrize("encoded", [True, False])
def test_in_no_values_keeps_no_row(tmp_path, kind, encoded):
    column = pa.nulls(3, kind)
    write(tmp_path / "x.parquet", {"x": column.dictionary_encode() if encoded else column}, rows_per_group=2)
    assert len(penstock.open(tmp_path, filters=[("x", "in", [])])) == 0
    assert len(penstock.open(tmp_path, filters=[("x", "not in", [])])) == 3


def test_in_with_values_of_another_type_is_what_pyarrow_makes_of_them(tmp_path):
    write(tmp_path / "a.parquet", pa.table({"x": [1, 2, None]}))
    assert len(penstock.open(tmp_path, filters=[("x", "in", ["2"])])) == 1
    with pytest.raises(SchemaError, match=r"does not fit.*int64 vs string"):
        penstock.open(tmp_path, filters=[("x", "in", ["a"])])
