"""`TransformSpec` in every reader and pool, and in the native loader: what comes out, what is checked, what is told."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

import penstock
from penstock.errors import PenstockWarning, SchemaError, TransformError
from penstock.petastorm import TransformSpec, make_batch_reader, make_reader
from penstock.petastorm.predicates import in_lambda
from penstock.petastorm.transform import edit_field, transform_schema
from penstock.testing import assert_resumes_exactly, make_parquet

POOLS = ["thread", "dummy", "process"]


@pytest.fixture
def table(tmp_path):
    return make_parquet(tmp_path / "data", [[4, 6], [10]])


def add_square(row):
    row["square"] = np.array([row["id"], row["id"] ** 2], np.float32)
    del row["value"]
    return row


def below_five(i):
    return i < 5


SQUARE = TransformSpec(
    add_square, edit_fields=[edit_field("square", np.float32, (2,), False)], removed_fields=["value"]
)


# -- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", POOLS)
def test_rows_are_transformed(table, pool):
    with make_reader(table, transform_spec=SQUARE, reader_pool_type=pool, workers_count=2, seed=1) as reader:
        assert list(reader.schema.fields) == ["id", "square"]
        found = sorted((int(row.id), row.square.tolist()) for row in reader)
    assert found == [(i, [i, i**2]) for i in range(20)]


@pytest.mark.parametrize("options", [{"shuffle_rows": True}, {"cache_type": "memory"}, {"exact": False}])
def test_a_transform_goes_with_predicate_cache_and_shuffle(table, options):
    predicate = in_lambda(["id"], below_five)
    with make_reader(table, transform_spec=SQUARE, predicate=predicate, seed=1, **options) as reader:
        assert sorted(int(row.square[1]) for row in reader) == [0, 1, 4, 9, 16]


def test_fields_are_removed_and_selected_without_a_function(table):
    with make_reader(table, transform_spec=TransformSpec(removed_fields=["value"])) as reader:
        assert next(reader)._fields == ("id",)
    with make_reader(table, transform_spec=TransformSpec(selected_fields=["value"])) as reader:
        assert next(reader)._fields == ("value",)
    with make_batch_reader(table, transform_spec=TransformSpec(removed_fields=["value"])) as reader:
        assert next(reader)._fields == ("id",)


def test_a_transform_reads_what_it_needs_and_its_rows_resume_exactly(table):
    def fresh():
        reader = make_reader(table, transform_spec=SQUARE, seed=1, num_epochs=2, reader_pool_type="dummy")
        reader.close = reader.stop
        return reader

    assert_resumes_exactly(fresh, passes=1, every=7)


def wrong_dtype(row):
    return {**row, "square": np.zeros(2, np.float64)}


def wrong_rank(row):
    return {**row, "square": np.zeros((2, 2), np.float32)}


def null(row):
    return {**row, "square": None}


def forgets(row):
    return {"id": row["id"]}


def fails(row):
    raise KeyError("no such luck")


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (wrong_dtype, "'square' the dtype float64 where edit_fields says float32"),
        (wrong_rank, r"'square' the shape \(2, 2\) where edit_fields says \(2,\)"),
        (null, "None for 'square', which edit_fields says is not nullable"),
        (forgets, "has no field 'value'"),
        (fails, "the transform raised KeyError: 'no such luck'"),
    ],
)
def test_a_transform_that_breaks_its_promise_is_an_error_with_its_place(table, function, words, pool):
    spec = TransformSpec(function, edit_fields=[edit_field("square", np.float32, (2,))])
    how = {"transform_spec": spec, "reader_pool_type": pool, "workers_count": 1, "shuffle_row_groups": False}
    with make_reader(table, **how) as reader, pytest.raises(TransformError, match=words) as caught:
        next(reader)
    assert "row group 0" in str(caught.value)
    assert ".parquet" in str(caught.value)


def plain_text(row):
    return {**row, "square": "abc"}


def test_values_of_pythons_own_are_checked_too(table):
    spec = TransformSpec(plain_text, edit_fields=[("square", np.int64, (), False)])
    with make_reader(table, transform_spec=spec) as reader, pytest.raises(TransformError, match=r"a str .* int64"):
        next(reader)


def unannounced(row):
    return {**row, "new": 1}


def test_a_new_field_that_nobody_announced_is_an_error(table):
    words = "fields that the schema lacks: 'new'; name them in edit_fields"
    with (
        make_reader(table, transform_spec=TransformSpec(unannounced)) as reader,
        pytest.raises(TransformError, match=words),
    ):
        next(reader)


def lists(frame):
    return frame.assign(pair=[[float(i), 1.0] for i in frame["id"]])


def test_cells_of_lists_become_an_array_of_the_declared_shape(table):
    pytest.importorskip("pandas")
    with make_batch_reader(table, transform_spec=TransformSpec(lists, [("pair", np.float64, (2,), False)])) as reader:
        batch = next(reader)
    assert batch.pair.shape == (len(batch.id), 2)
    assert batch.pair.dtype == np.float64


def narrow(row):
    return {**row, "value": np.float16(row["value"])}


def test_a_field_that_is_not_listed_may_change_with_one_warning(table):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with make_reader(table, transform_spec=TransformSpec(narrow), shuffle_row_groups=False) as reader:
            assert {row.value.dtype for row in reader} == {np.dtype(np.float16)}
    told = [str(one.message) for one in caught if one.category is PenstockWarning]
    assert len(told) == 1
    assert "edit_fields=[('value', np.float16, (), " in told[0]


class Tensor:
    """Something like a tensor of another library: a shape, a dtype with a prefix, and no NumPy array."""

    def __init__(self, value):
        self.value, self.shape, self.dtype = value, (1,), "torch.float32"


def to_tensor(row):
    return {**row, "value": Tensor(float(row["value"]))}


@pytest.mark.parametrize("pool", POOLS)
def test_rows_may_hold_what_is_not_numpys(table, pool):
    spec = TransformSpec(to_tensor, edit_fields=[("value", np.float32, (1,), False)])
    with make_reader(table, transform_spec=spec, reader_pool_type=pool, workers_count=1) as reader:
        assert {type(row.value).__name__ for row in reader} == {"Tensor"}


def test_a_function_that_cannot_be_pickled_is_told_so_or_taken_along(table):
    spec = TransformSpec(lambda row: {**row, "value": np.float64(1)}, edit_fields=[("value", np.float64, (), False)])
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        with pytest.raises(penstock.errors.PlanError, match="cannot be pickled"):
            make_reader(table, transform_spec=spec, reader_pool_type="process")
    else:
        with make_reader(table, transform_spec=spec, reader_pool_type="process", workers_count=1) as reader:
            assert {float(row.value) for row in reader} == {1.0}


# -- batches ---------------------------------------------------------------------------------------------------------


def same(frame):
    return frame


def even_ids(frame):
    frame = frame[frame["id"] % 2 == 0].copy()
    frame["pair"] = [np.array([i, i], np.int32) for i in frame["id"]]
    return frame.drop(columns="value")


@pytest.mark.parametrize("pool", POOLS)
def test_batches_are_transformed_as_data_frames_and_may_change_their_rows(table, pool):
    pytest.importorskip("pandas")
    spec = TransformSpec(even_ids, edit_fields=[("pair", np.int32, (2,), False)], removed_fields=["value"])
    with make_batch_reader(table, transform_spec=spec, reader_pool_type=pool, workers_count=1) as reader:
        batches = list(reader)
    assert len(batches) == 3
    assert sorted(np.concatenate([batch.id for batch in batches]).tolist()) == list(range(0, 20, 2))
    assert all(batch.pair.shape == (len(batch.id), 2) and batch.pair.dtype == np.int32 for batch in batches)


def test_an_identity_changes_nothing(table):
    pytest.importorskip("pandas")
    with (
        make_batch_reader(table, seed=1) as plain,
        make_batch_reader(table, seed=1, transform_spec=TransformSpec(same)) as frames,
    ):
        for one, two in zip(plain, frames, strict=True):
            assert one.id.tolist() == two.id.tolist()
            assert one.value.dtype == two.value.dtype
            assert two.value.flags.writeable
            assert two.id.flags.writeable


def test_defect_5_2_4_a_transform_without_function_and_a_predicate(table):
    how = {"predicate": in_lambda(["id"], below_five_vector), "transform_spec": TransformSpec(removed_fields=["value"])}
    pytest.importorskip("pandas")
    with make_batch_reader(table, **how) as reader:
        assert sorted(np.concatenate([batch.id for batch in reader]).tolist()) == list(range(5))


def below_five_vector(column):
    return column < 5


def extra_column(frame):
    frame["more"] = 1
    return frame


def test_columns_that_do_not_fit_the_schema_are_an_error(table):
    pytest.importorskip("pandas")
    words = r"not in the schema: \['more'\].*row group"
    with (
        make_batch_reader(table, transform_spec=TransformSpec(extra_column)) as reader,
        pytest.raises(TransformError, match=words),
    ):
        next(reader)


# -- the native loader and the spec itself -----------------------------------------------------------------------------


def test_the_native_loader_takes_a_spec(table):
    with penstock.open(table).loader(batch_size=5, transform=SQUARE, shuffle=True, seed=1) as loader:
        batches = list(loader)
    assert batches[0]["square"].shape == (5, 2)
    assert batches[0]["square"].dtype == np.float32
    assert sorted(np.concatenate([batch["id"] for batch in batches]).tolist()) == list(range(20))


def test_the_schema_after_a_transform():
    schema = penstock.Unischema(
        "S", [penstock.UnischemaField("a", np.int32, ()), penstock.UnischemaField("b", np.int8, (3,))]
    )
    spec = TransformSpec(edit_fields=[("b", np.float32, (2,), True), ("c", np.int64, (), False)], removed_fields=["a"])
    changed = transform_schema(schema, spec)
    assert list(changed.fields) == ["b", "c"]
    assert changed.b == penstock.UnischemaField("b", np.float32, (2,), None, True)
    with pytest.warns(UserWarning, match="removed_fields names fields that are not part of the schema: z"):
        transform_schema(schema, TransformSpec(removed_fields=["z"]))
    assert list(transform_schema(schema, TransformSpec(selected_fields=["b", "a"])).fields) == ["b", "a"]
    with pytest.raises(SchemaError, match="either removed_fields or selected_fields"):
        TransformSpec(removed_fields=["a"], selected_fields=["b"])
    with pytest.raises(SchemaError, match="edit_fields takes"):
        TransformSpec(edit_fields=["a"])
    assert pickle.loads(pickle.dumps(SQUARE)) == SQUARE
