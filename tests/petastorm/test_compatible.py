"""What programs written for Petastorm look at besides rows: names, the order of columns, counters, shards, clean-up."""

from __future__ import annotations

import inspect
import pickle
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import PenstockWarning
from penstock.petastorm import make_batch_reader, make_reader
from penstock.petastorm.ngram import NGram
from penstock.petastorm.reader import Reader
from penstock.petastorm.unischema import Unischema, UnischemaField, match_unischema_fields
from penstock.petastorm.weighted_sampling_reader import WeightedSamplingReader
from penstock.schema.rows import row_type
from penstock.testing import make_parquet

FACTORIES = [make_reader, make_batch_reader]


# -- signatures -------------------------------------------------------------------------------------------------------

_SHARED = (
    "results_queue_size=50, seed=None, shuffle_rows=False, shuffle_row_groups=True, shuffle_row_drop_partitions=1, "
    "predicate=None, rowgroup_selector=None, num_epochs=1, cur_shard=None, shard_count=None, shard_seed=None, "
    "cache_type='null', cache_location=None, cache_size_limit=None, cache_row_size_estimate=None, "
    "cache_extra_settings=None, hdfs_driver='libhdfs3', transform_spec=None, filters=None, storage_options=None, "
    "zmq_copy_buffers=True, filesystem=None, convert_early_to_numpy=False"
)
_FIRST = "schema_fields=None, reader_pool_type='thread', workers_count=10"
SIGNATURES = {
    make_reader: f"dataset_url, {_FIRST}, pyarrow_serialize=False, {_SHARED}, *, remainder='uneven', exact=True, "
    "memory_bytes=None, lanes=None, format=None",
    make_batch_reader: f"dataset_url_or_urls, {_FIRST}, {_SHARED}, *, remainder='uneven', exact=True, "
    "memory_bytes=None, lanes=None, decode=False, format=None",
    Reader: "pyarrow_filesystem=None, dataset_path=None, schema_fields=None, seed=None, shuffle_rows=False, "
    "shuffle_row_groups=True, shuffle_row_drop_partitions=1, predicate=None, rowgroup_selector=None, "
    "reader_pool=None, num_epochs=1, cur_shard=None, shard_count=None, cache=None, worker_class=None, "
    "transform_spec=None, is_batched_reader=False, filters=None, shard_seed=None, convert_early_to_numpy=False, *, "
    "dataset_url=None, storage_options=None, remainder='uneven'",
}


@pytest.mark.parametrize("function", SIGNATURES)
def test_arguments_have_the_names_order_and_defaults_of_petastorm(function):
    shown = inspect.signature(function)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in shown.parameters.values()]
    text = str(shown.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    assert text == f"({SIGNATURES[function]})"


def test_arguments_may_be_given_by_position(odd_names):
    with make_reader(odd_names, ["a_b"], "dummy", 1, False, 50, None, False, False) as reader:
        assert [int(row.a_b) for row in reader] == [30, 31, 32, 33]
    with make_batch_reader(odd_names, ["a_b"], "dummy", 1, 50, None, False, False) as reader:
        assert [batch.a_b.tolist() for batch in reader] == [[30, 31, 32, 33]]


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_wrong_argument_names_the_function_and_near_matches(odd_names, factory):
    with pytest.raises(TypeError, match=rf"{factory.__name__}\(\) .*'num_epoch'; did you mean 'num_epochs'"):
        factory(odd_names, num_epoch=1)
    with pytest.raises(TypeError, match=rf"{factory.__name__}\(\) missing a required argument: 'dataset_url"):
        factory()
    with pytest.raises(TypeError, match=rf"{factory.__name__}\(\) multiple values for argument 'schema_fields'"):
        factory(odd_names, None, schema_fields=None)


@pytest.mark.parametrize("factory", FACTORIES)
def test_warnings_point_to_the_line_that_made_the_reader(odd_names, factory):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        factory(odd_names, hdfs_driver="other", shard_seed=3, filters=[("a_b", ">", 99)]).stop()
    assert len(found) == 3
    assert {one.filename for one in found} == {__file__}


# -- names of fields --------------------------------------------------------------------------------------------------


@pytest.fixture
def odd_names(tmp_path):
    """A struct's field and a column with a space, before the real columns that their made-up names belong to."""
    structs = pa.array([{"a": i} for i in range(4)])
    columns = {"s": structs, "a b": [10, 11, 12, 13], "s_a": [20, 21, 22, 23], "a_b": [30, 31, 32, 33]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    return tmp_path


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_exact_name_wins_over_a_made_up_one(odd_names, factory):
    with factory(odd_names, shuffle_row_groups=False) as reader:
        row = next(reader)
    assert row._fields == ("s_a_2", "a_b_2", "s_a", "a_b")
    assert [int(np.ravel(value)[0]) for value in row] == [0, 10, 20, 30]
    assert pickle.loads(pickle.dumps(row))._fields == row._fields


def test_a_made_up_name_also_avoids_exact_names_that_have_a_number():
    assert row_type("S", ("s.a", "s a", "s_a_2", "s_a"))._fields == ("s_a_3", "s_a_4", "s_a_2", "s_a")
    assert row_type("S", ("class", "class_"))._fields == ("class__2", "class_")
    assert row_type("S", ("s.a", "x"))._fields == ("s_a", "x")


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_field_chosen_by_its_name_is_not_a_pattern(odd_names, factory):
    """As a pattern "s.a" matches "s_a" as well."""
    with factory(odd_names, schema_fields=["s.a"], shuffle_row_groups=False) as reader:
        assert list(reader.schema.fields) == ["s.a"]
        assert int(np.ravel(next(reader)[0])[0]) == 0


def test_names_that_are_no_pattern_can_be_chosen():
    schema = Unischema("S", [UnischemaField(name, np.int64, ()) for name in ("a+b", "aab", "x(")])
    assert [field.name for field in match_unischema_fields(schema, ["a+b", "x("])] == ["a+b", "x("]
    assert [field.name for field in match_unischema_fields(schema, ["a{2}b"])] == ["aab"]


# -- the order of columns ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", FACTORIES)
def test_partition_columns_of_plain_parquet_come_first(tmp_path, factory):
    for number in (1, 2):
        (tmp_path / f"q=b/p={number}").mkdir(parents=True)
        pq.write_table(pa.table({"x": [number], "a": [0]}), tmp_path / f"q=b/p={number}/a.parquet")
    with factory(tmp_path) as reader:
        assert list(reader.schema.fields) == ["q", "p", "x", "a"]
        assert next(reader)._fields == ("q", "p", "x", "a")
    with factory(tmp_path, schema_fields=["x", "p", "a"]) as reader:
        assert next(reader)._fields == ("p", "x", "a")
    assert list(penstock.open(tmp_path).columns) == ["x", "a", "q", "p"]


def test_a_stored_schema_keeps_its_order(tmp_path):
    fields = [UnischemaField("x", np.int64, ()), UnischemaField("p", np.str_, ()), UnischemaField("a", np.int64, ())]
    rows = [{"x": 1, "p": "k", "a": 2}]
    penstock.write(rows, tmp_path / "d", Unischema("S", fields), partition_by=["p"])
    for factory in FACTORIES:
        with factory(tmp_path / "d") as reader:
            assert next(reader)._fields == ("x", "p", "a")


# -- n-grams ----------------------------------------------------------------------------------------------------------


def test_an_ngram_with_patterns_is_resolved_in_place(tmp_path):
    pq.write_table(pa.table({"ts": range(5), "v1": range(5), "v2": range(5)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"ts": range(5), "v3": range(5)}), tmp_path / "b.parquet")
    ngram = NGram({0: ["v."], 1: ["t.*"]}, 1, "^ts$")
    with make_reader(tmp_path / "a.parquet", schema_fields=ngram) as reader:
        assert {step: [field.name for field in fields] for step, fields in ngram.fields.items()} == {
            0: ["v1", "v2"],
            1: ["ts"],
        }
        assert ngram.get_field_names_at_timestep(0) == ["v1", "v2"]
        assert ngram.timestamp_field.name == "ts"
        assert reader.ngram == ngram
        with make_reader(tmp_path / "b.parquet", schema_fields=ngram) as other:
            assert next(other)[0]._fields == ("v3",)
        assert next(reader)[0]._fields == ("v1", "v2")  # whatever others have done to it since


# -- counters ---------------------------------------------------------------------------------------------------------


def test_the_process_pool_has_petastorms_counters(tmp_path):
    table = make_parquet(tmp_path / "d", [[10] * 6])
    with make_batch_reader(table, reader_pool_type="process", workers_count=1) as reader:
        found = reader.diagnostics
        assert [found[f"items_{what}"] for what in ("consumed", "produced", "inprocess")] == [0, 0, 0]
        assert found["zmq_copy_buffers"] is True
        list(reader)
        found = reader.diagnostics
        assert [found[f"items_{what}"] for what in ("consumed", "produced", "inprocess")] == [6, 6, 0]


def test_items_in_process_are_those_that_workers_hold(tmp_path):
    table = make_parquet(tmp_path / "d", [[10] * 6])
    with make_batch_reader(table, reader_pool_type="process", workers_count=1) as reader:
        next(reader)
        for _ in range(100):
            found = reader.diagnostics
            assert found["items_consumed"] == found["items_produced"] + found["items_inprocess"] <= 6
            assert found["items_produced"] >= 1


def test_zmq_copy_buffers_is_reported_as_given(tmp_path):
    table = make_parquet(tmp_path / "d", [[10]])
    with (
        pytest.warns(PenstockWarning, match="no effect"),
        make_reader(table, reader_pool_type="process", workers_count=1, zmq_copy_buffers=False) as reader,
    ):
        assert reader.diagnostics["zmq_copy_buffers"] is False
    with make_reader(table) as reader:
        assert "items_consumed" not in reader.diagnostics


# -- the cache at the end ---------------------------------------------------------------------------------------------


class BrokenCache:
    """Stands for a cache whose files cannot be deleted."""

    def __init__(self, error):
        self.error = error

    def cleanup(self):
        raise self.error


def reader_with(table, error):
    reader = make_reader(table)
    reader.cache = BrokenCache(error)
    return reader


@pytest.mark.parametrize("error", [OSError("busy"), ValueError("broken")])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_failing_cleanup_does_not_replace_the_error_of_the_block(tmp_path, error, mixed):
    table = make_parquet(tmp_path / "d", [[10]])
    reader = reader_with(table, error)
    made = WeightedSamplingReader([reader, make_reader(table)], [0.5, 0.5]) if mixed else reader
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError, match="of the block") as caught, made:
            raise KeyError("of the block")
    assert "the cache was not cleaned up" in caught.value.__notes__[0]
    assert str(error) in caught.value.__notes__[0]


def test_a_cleanup_that_fails_alone_warns_or_raises(tmp_path):
    table = make_parquet(tmp_path / "d", [[10]])
    with pytest.warns(PenstockWarning, match="not cleaned up: busy"), reader_with(table, OSError("busy")):
        pass
    with pytest.raises(ValueError, match="broken"), reader_with(table, ValueError("broken")):
        pass


# -- shards of shuffled rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", FACTORIES)
def test_lanes_keep_shards_from_reading_everything(tmp_path, factory):
    table = make_parquet(tmp_path / "d", [[20] * 60])

    def read(**options):
        rows, chunks, said = [], 0, []
        for shard in range(3):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                reader = factory(table, shuffle_rows=True, seed=5, cur_shard=shard, shard_count=3, **options)
            said += [str(one.message) for one in caught]
            with reader:
                rows += [int(one) for row in reader for one in np.ravel(row.id)]
                chunks += reader.diagnostics["chunks_read"]
        assert sorted(rows) == list(range(1200))
        return chunks, said, rows

    chunks, said, _ = read()
    assert chunks == 3 * 60
    lanes = {int(text.split("lanes=")[1].split()[0]) for text in said}
    assert len(said) == 3
    assert len(lanes) == 1
    chunks, said, rows = read(lanes=lanes.pop())
    assert chunks < 1.3 * 60
    assert not said
    assert rows != sorted(rows)


@pytest.mark.parametrize("factory", FACTORIES)
def test_lanes_that_would_do_nothing_are_refused(tmp_path, factory):
    table = make_parquet(tmp_path / "d", [[10]])
    with pytest.raises(ValueError, match="lanes=3 needs shuffle_rows=True"):
        factory(table, lanes=3)
    with pytest.raises(ValueError, match="lanes must be at least 1; got 0"):
        factory(table, shuffle_rows=True, lanes=0)
