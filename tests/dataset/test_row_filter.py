"""Row filters on delivery: they keep what the same filter keeps up front, and states record which one it was."""

import datetime
import threading
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import halt
from penstock.codecs.arrow import Fixed, column_kind, fixed_view, mask, objects
from penstock.dataset.arrow_filter import ArrowFilter, delivered_schema, to_arrow
from penstock.dataset.row_filter import RowFilter, make_row_filter
from penstock.errors import ColumnNotFound, LoaderClosed, SchemaError, StateMismatch
from penstock.predicates import (
    PredicateBase,
    in_intersection,
    in_lambda,
    in_negate,
    in_pseudorandom_split,
    in_reduce,
    in_set,
)
from tests.codecs.arrow_cases import CASES
from tests.dataset.make import write
from tests.dataset.test_arrow_filter import expressions, tables
from tests.dataset.test_filter_tuples import cases
from tests.depth import depth


class Own(PredicateBase):
    """A predicate of the user's."""

    def __init__(self, field, most):
        self.field, self.most = field, most

    def get_fields(self):
        return [self.field]

    def do_include(self, values):
        return values[self.field] < self.most


class Narrower(in_set):
    def do_include(self, values):
        return super().do_include(values) and values["a"] > 0


def digest(predicate):
    return RowFilter(predicate).digest


def first(answers):
    return answers[0]


DIFFERENT = [
    in_set([1, 2], "a"),
    in_set([1], "a"),
    in_set([-1], "a"),
    in_set([-2], "a"),
    in_set([1, 2], "b"),
    in_set(["1", "2"], "a"),
    in_set([b"1", b"2"], "a"),
    in_set([None], "a"),
    in_set([0.1], "a"),
    in_set([Decimal("0.1")], "a"),
    in_set([float("inf")], "a"),
    in_set([2**53], "a"),
    in_set([2**53 + 1], "a"),
    in_set([datetime.date(2024, 1, 1)], "a"),
    in_intersection([1, 2], "a"),
    in_negate(in_set([1, 2], "a")),
    in_pseudorandom_split([0.5, 0.5], 0, "a"),
    in_pseudorandom_split([0.5, 0.5], 1, "a"),
    in_pseudorandom_split([0.4, 0.6], 0, "a"),
    in_reduce([in_set([1], "a"), in_set([2], "b")], all),
    in_reduce([in_set([1], "a"), in_set([2], "b")], any),
    in_reduce([in_set([1], "a"), in_set([2], "b")], first),
    in_reduce([in_set([2], "b"), in_set([1], "a")], first),
    in_lambda(["a"], lambda a: a > 1),
    in_lambda(["b"], lambda b: b > 1),
]
SAME = [
    (in_set([1, 2], "a"), in_set({2.0, np.int8(1), True}, "a")),
    (in_set([datetime.date(2024, 1, 1)], "a"), in_set([np.datetime64("2024-01-01", "ns")], "a")),
    (in_set([1, float("nan")], "a"), in_set([1], "a")),
    (
        in_reduce([in_set([1], "a"), in_set([2], "b")], all),
        in_reduce((in_set([2], "b"), in_set([1], "a")), np.all),
    ),
    (in_pseudorandom_split([0.5, 0.5], 0, "a"), in_pseudorandom_split((0.5, np.float64(0.5)), np.int64(0), "a")),
    (in_lambda(["a"], lambda a: a > 1), in_lambda(["a"], lambda a: a > 2)),
    (Own("a", 3), Own("a", 4)),
    (Narrower([1], "a"), Narrower([2], "a")),
]


def test_shipped_predicates_that_differ_have_other_digests():
    assert len({digest(predicate) for predicate in DIFFERENT}) == len(DIFFERENT)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_in_other_words_and_other_functions_have_one_digest(one, other):
    assert digest(one) == digest(other)


def test_tuples_that_mean_the_same_have_one_digest_and_others_another():
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    same = [
        [("a", "=", 3), ("b", "in", ["x", "y"])],
        [[("b", "in", {"y", "x"}), ("a", "==", 3.0)]],
    ]
    different = [
        [("a", "=", 3)],
        [("a", "!=", 3)],
        [("a", "=", 4)],
        [("a", "in", [3])],
        [("a", "not in", [3])],
        [[("a", "=", 3)], [("b", "in", ["x", "y"])]],
        pc.field("a") == 3,
        in_set([3], "a"),
    ]
    digests = [make_row_filter(one, schema).digest for one in same + different]
    assert digests[0] == digests[1]
    assert len(set(digests)) == len(digests) - 1
    # Only the columns of an expression count: pyarrow shows no more of it that stays the same across versions.
    assert make_row_filter(pc.field("a") > 7, schema).digest == make_row_filter(pc.field("a") == 3, schema).digest


def test_digests_are_pinned():
    # Users resume across versions: a digest that changes refuses their states.
    pinned = in_reduce([in_set([1, "x", None], "a"), in_negate(in_pseudorandom_split([0.8, 0.2], 1, "b"))], all)
    assert digest(pinned) == "eaaf8fb185ad5a0e7f3fcf922f1698c2"
    tuples = [[("a", "=", 1.5), ("b", "in", ["x", None, b"y"])], [("a", "!=", datetime.date(2024, 1, 1))]]
    schema = pa.schema([("a", pa.float64()), ("b", pa.string())])
    assert digest(ArrowFilter(None, schema, tuples)) == "0315341a8b7369e875a39a5d6cfa6db0"
    assert digest(ArrowFilter(None, schema, None)) == "8a4edddb4beeae63e12f5708ed647a0c"


@pytest.fixture
def ds(tmp_path):
    penstock.write(pa.table({"a": range(40), "b": [i % 3 for i in range(40)]}), tmp_path / "d", row_group_bytes=80)
    return penstock.open(tmp_path / "d")


def state_of(ds, steps=2):
    with ds.loader(batch_size=4, shuffle=True) as loader:
        running = iter(loader)
        for _ in range(steps):
            next(running)
        return loader.state_dict()


def load(ds, state):
    with ds.loader(batch_size=4, shuffle=True) as loader:
        loader.load_state_dict(state)
        return [i for batch in loader for i in batch["a"].tolist()]


def test_a_state_under_another_predicate_is_refused(ds):
    state = state_of(ds.where(in_set([0, 1], "b"), exact=False))
    assert len(load(ds.where(in_set({1, 0}, "b"), exact=False), state)) > 0
    for other in (ds.where(in_set([0, 2], "b"), exact=False), ds):
        with pytest.raises(StateMismatch, match=r"predicate of the state is .*exact=False"):
            load(other, state)


def test_functions_are_not_compared_and_states_without_the_entry_load(ds):
    under = ds.where(in_lambda(["b"], lambda b: b > 0), exact=False)
    state = state_of(under)
    other = ds.where(in_lambda(["b"], lambda b: b < 2), exact=False)
    assert len(load(other, state)) > 0
    older = {name: value for name, value in state.items() if name != "predicate"}
    assert load(ds.where(in_set([0, 2], "b"), exact=False), older) is not None
    assert "predicate" not in state_of(ds)
    with pytest.raises(StateMismatch, match="damaged state: entry 'predicate'"):
        load(under, state | {"predicate": 3})


def test_predicates_one_after_the_other_are_both_digested(ds):
    both = ds.where(in_set([0, 1], "b"), exact=False).where(in_set(range(30), "a"), exact=False)
    turned = ds.where(in_set(range(30), "a"), exact=False).where(in_set([1, 0], "b"), exact=False)
    assert load(both, state_of(turned)) == load(turned, state_of(both))
    with pytest.raises(StateMismatch, match="predicate"):
        load(ds.where(in_set([0, 1], "b"), exact=False), state_of(both))


# -- on delivery as up front ------------------------------------------------------------------------------------------


def delivered(ds, **options):
    """Return the ids of the rows that a loader gives, in order."""
    with ds.loader(batch_size=5, **options) as loader:
        return [i for batch in loader for i in batch["id"].tolist()]


@settings(
    max_examples=depth(60, 3000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_expressions_keep_the_same_rows_on_delivery(tmp_path, data):
    table = data.draw(tables())
    expression = data.draw(expressions(table.column_names))
    write(tmp_path / "x.parquet", table.append_column("id", pa.array(range(table.num_rows))), rows_per_group=4)
    ds = penstock.open(tmp_path)
    up_front = ds.where(expression)
    assert delivered(ds.where(expression, exact=False)) == up_front.head(99)["id"].tolist()
    # The plain twin: one row after the other.
    fields = ds.schema.fields
    schema = delivered_schema(table.schema, fields)
    one_by_one = make_row_filter(expression, schema).predicate
    assert [ds[i]["id"] for i in range(len(ds)) if one_by_one.do_include(ds[i])] == up_front.head(99)["id"].tolist()


@settings(
    max_examples=depth(100, 5000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=cases(), either=st.booleans())
def test_tuples_keep_the_same_rows_on_delivery(tmp_path, case, either):
    kind, cells, terms = case
    table = pa.table({"x": pa.array(cells, kind, from_pandas=False), "id": range(len(cells))})
    write(tmp_path / "x.parquet", table, rows_per_group=3)
    ds = penstock.open(tmp_path)
    filters = [[term] for term in terms] if either else terms
    assert delivered(ds.where(filters, exact=False)) == ds.where(filters).head(99)["id"].tolist()


@pytest.mark.parametrize("name", CASES)
def test_delivered_columns_become_the_arrow_they_came_from(name):
    for nulls in (False, True):
        try:
            column = CASES[name].example(nulls=nulls)
        except pa.ArrowInvalid:
            pytest.skip("no such values")
        kind = column_kind(column.type, name="c")
        values = mask(*fixed_view(column, kind)) if isinstance(kind, Fixed) else objects(column, kind)
        schema = delivered_schema(
            pa.schema([("c", column.type)]), {"c": penstock.UnischemaField("c", None, (), None, True)}
        )
        found = to_arrow(values, schema.field("c").type)
        wanted = (column.storage if name == "uuid" else column).to_pylist()
        if found.type == pa.struct([]):  # only whether it is null is known
            wanted = [None if value is None else {} for value in wanted]
        if name != "fixed_size_list<item: int16>[0]":  # null rows without elements cannot be told from empty ones
            assert found.to_pylist() == wanted


def test_arrays_and_cells_can_be_tested_for_null_on_delivery(tmp_path):
    schema = penstock.Unischema(
        "S",
        [
            penstock.UnischemaField("id", np.int64, (), None, False),
            penstock.UnischemaField("image", np.uint8, (2, 2), penstock.codecs.NdarrayCodec(), True),
        ],
    )
    data = [{"id": i, "image": None if i % 3 else np.full((2, 2), i, np.uint8)} for i in range(9)]
    penstock.write(data, tmp_path / "d", schema=schema)
    ds = penstock.open(tmp_path / "d")
    assert delivered(ds.select(["id"]).where(pc.field("image").is_valid(), exact=False)) == [0, 3, 6]
    with pytest.raises(SchemaError, match="such as in_lambda"):
        ds.where([("image", "=", b"x")], exact=False)


def test_values_are_compared_as_they_are_delivered(tmp_path):
    write(tmp_path / "x.parquet", {"id": [0, 1, 2], "x": ["1", "2", "30"]})
    fields = [penstock.UnischemaField("id", np.int64, (), None, False)]
    fields.append(penstock.UnischemaField("x", Decimal, (), None, False))
    ds = penstock.open(tmp_path, schema=penstock.Unischema("S", fields))
    assert delivered(ds.where([("x", "=", "30")])) == [2]  # up front: as stored
    with pytest.raises(SchemaError, match="does not fit"):
        ds.where([("x", "=", "30")], exact=False)


@pytest.mark.parametrize(
    ("stored", "asked", "value"),
    [
        (pa.array([1, 2, None, 30]), np.int16, 2),
        (pa.array([1, 2, None, 30]), np.float64, 1.5),
        (pa.array([1, 2, None, 30]), np.str_, "2"),
        (pa.array([0.1, 0.5, None, 2.5]), np.float32, np.float32(0.1)),
        (pa.array(["a", "b", None, "c"]), np.bytes_, b"b"),
        (pa.array(["a", "b", None, "c"]).dictionary_encode(), np.str_, "b"),
        (pa.array([1, 2, None, 30], pa.timestamp("s")), np.dtype("M8[us]"), datetime.datetime(1970, 1, 1, 0, 0, 2)),
        (pa.array([True, False, None, True]), np.uint8, 1),
    ],
)
@pytest.mark.parametrize("sign", ["=", ">", "in"])
def test_converted_values_are_compared_after_the_conversion(tmp_path, stored, asked, value, sign):
    write(tmp_path / "x.parquet", {"id": [0, 1, 2, 3], "x": stored})
    fields = [penstock.UnischemaField("id", np.int64, (), None, False)]
    fields.append(penstock.UnischemaField("x", asked, (), None, True))
    ds = penstock.open(tmp_path, schema=penstock.Unischema("S", fields))
    term = ("x", sign, [value] if sign == "in" else value)
    plain = value.item() if isinstance(value, np.generic) else value
    cells = [row["x"].item() if isinstance(row["x"], np.generic) else row["x"] for row in ds]
    said = [i for i, cell in enumerate(cells) if cell is not None and (cell > plain if sign == ">" else cell == plain)]
    assert delivered(ds.where([term], exact=False)) == said


def test_filters_of_all_kinds_combine_on_delivery(tmp_path):
    ids = np.arange(60)
    table = pa.table({"id": ids, "t": [f"c{i % 4}" for i in ids], "when": ids.astype("M8[s]")})
    penstock.write(table, tmp_path / "d", row_group_bytes=200)
    ds = penstock.open(tmp_path / "d")
    late = ds.where([("t", "in", ["c1", "c3"])], exact=False)
    late = late.where(pc.field("when") > datetime.datetime(1970, 1, 1, 0, 0, 9), exact=False)
    late = late.where(in_lambda(["id"], lambda i: i % 5 == 0), exact=False).where([("id", "<", 50)])
    assert len(late) == 50
    assert delivered(late) == [i for i in range(10, 50) if i % 2 and i % 5 == 0]
    assert late.where(None, exact=False) is late
    assert delivered(late.select(["id"]), shuffle=True, seed=1, pool="process") == delivered(late, shuffle=True, seed=1)
    loaded = load_ids(late, shuffled_state(late))
    assert loaded[0] + loaded[1] == delivered(late, shuffle=True, seed=1)
    with pytest.raises(StateMismatch, match="predicate"):
        load_ids(late.where([("id", "<", 40)], exact=False), shuffled_state(late))


def shuffled_state(ds):
    with ds.loader(batch_size=5, shuffle=True, seed=1) as loader:
        running = iter(loader)
        first = [i for _ in range(4) for i in next(running)["id"].tolist()]
        return first, loader.state_dict()


def load_ids(ds, given):
    first, state = given
    with ds.loader(batch_size=5, shuffle=True, seed=1) as loader:
        loader.load_state_dict(state)
        return first, [i for batch in loader for i in batch["id"].tolist()]


def test_unknown_columns_list_near_names_without_exact(ds):
    for filters in ([("aa", "=", 1)], pc.field("aa") == 1, in_set([1], "aa")):
        with pytest.raises(ColumnNotFound, match="did you mean 'a'"):
            ds.where(filters, exact=False)


def test_a_function_is_not_called_for_more_rows_once_its_loader_is_stopped():
    halted, seen = threading.Event(), []

    def keep(number):
        seen.append(number)
        if len(seen) == 3:
            halted.set()
        return True

    kept = RowFilter(in_lambda(["x"], keep))
    with halt.until(halted), pytest.raises(LoaderClosed, match="closed while its filter"):
        kept({"x": np.arange(100)}, 100)
    assert len(seen) == 3
