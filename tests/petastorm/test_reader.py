"""`make_reader` and `make_batch_reader`: rows of Petastorm's own datasets, order, shards, epochs, state, errors."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import ColumnNotFound, DatasetNotFound, LoaderClosed, PenstockWarning, PlanError, StateMismatch
from penstock.petastorm import NoDataAvailableError, Reader, TransformSpec, make_batch_reader, make_reader
from penstock.petastorm.predicates import in_lambda, in_set
from penstock.petastorm.workers_pool.dummy_pool import DummyPool
from penstock.testing import RecordingFileSystem, assert_resumes_exactly, make_parquet
from tests.petastorm.expected import KEYS, assert_row, rows, url

POOLS = ["thread", "dummy", "process"]
SIZES = [[4, 1, 7], [3, 9], [2, 5]]
TOTAL = sum(map(sum, SIZES))


@pytest.fixture
def table(tmp_path):
    return make_parquet(tmp_path / "data", SIZES)


def ids(reader):
    return [int(row.id) for row in reader]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def batch_ids(reader):
    return [batch.id.tolist() for batch in reader]


# -- the datasets that Petastorm wrote -------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", ["all_codecs", "timed"])
def test_rows_of_petastorms_datasets_are_as_they_went_in(name, pool):
    want = rows(name)
    with make_reader(url(name), reader_pool_type=pool, workers_count=2) as reader:
        found = {int(getattr(row, KEYS[name])): row._asdict() for row in reader}
    assert found.keys() == want.keys()
    for key, row in found.items():
        assert_row(row, want[key])


@pytest.mark.parametrize("name", ["all_codecs", "timed"])
def test_decoded_batches_of_petastorms_datasets_are_as_they_went_in(name):
    want, seen = rows(name), set()
    with make_batch_reader(url(name), decode=True) as reader:
        for batch in reader:
            columns = batch._asdict()
            for row in range(len(columns[KEYS[name]])):
                got = {field: values[row] for field, values in columns.items()}
                key = int(got[KEYS[name]])
                seen.add(key)
                nullable = {f: v for f, v in want[key].items() if not isinstance(got[f], float | np.floating)}
                assert_row({f: got[f] for f in nullable}, nullable)
    assert seen == want.keys()


def test_a_batch_reader_gives_encoded_cells_as_bytes_and_says_so():
    with pytest.warns(UserWarning, match="decode=True"), make_batch_reader(url("all_codecs")) as reader:
        batch = next(reader)
    assert isinstance(batch.png[0], bytes)
    assert batch.png[0].startswith(b"\x89PNG")


# -- order -----------------------------------------------------------------------------------------------------------


def test_row_groups_are_permuted_and_rows_are_as_stored(table):
    with make_batch_reader(table, seed=3) as reader:
        groups = batch_ids(reader)
    with make_reader(table, seed=3) as reader:
        assert ids(reader) == flat(groups)
    assert sorted(map(len, groups)) == sorted(flat(SIZES))
    assert all(group == list(range(group[0], group[0] + len(group))) for group in groups)
    assert flat(groups) != list(range(TOTAL))


def test_without_shuffling_rows_come_as_stored(table):
    with make_reader(table, shuffle_row_groups=False) as reader:
        assert ids(reader) == list(range(TOTAL))


def test_defect_5_2_3_every_epoch_has_another_order_and_the_same_again_with_the_seed(table):
    def two():
        with make_reader(table, seed=0, num_epochs=2) as reader:
            return ids(reader)

    first = two()
    assert first == two()
    assert first[:TOTAL] != first[TOTAL:]
    assert sorted(first[:TOTAL]) == sorted(first[TOTAL:]) == list(range(TOTAL))


def test_shuffled_rows_are_the_native_order(table):
    with make_reader(table, shuffle_rows=True, seed=5) as reader:
        found = ids(reader)
    native = penstock.open(table).loader(batch_size=4, shuffle=True, seed=5)
    assert found == [int(i) for batch in native for i in batch["id"]]


def test_batches_of_shuffled_rows_are_as_large_as_row_groups_on_average(table):
    with make_batch_reader(table, shuffle_rows=True, seed=5) as reader:
        found = batch_ids(reader)
    assert sorted(flat(found)) == list(range(TOTAL))
    assert {len(one) for one in found[:-1]} == {-(-TOTAL // 7)}


@pytest.mark.parametrize("parts", [2, 3])
def test_defect_5_2_2_drop_partitions_lose_and_repeat_no_row(table, parts):
    for make in (make_reader, make_batch_reader):
        for shuffle_rows in (False, True):
            with make(table, shuffle_row_drop_partitions=parts, seed=1, shuffle_rows=shuffle_rows) as reader:
                assert sorted(np.concatenate([np.atleast_1d(one.id) for one in reader]).tolist()) == list(range(TOTAL))


def test_the_order_does_not_depend_on_the_pool(table):
    orders = []
    for pool in POOLS:
        with make_reader(table, seed=9, reader_pool_type=pool, workers_count=2) as reader:
            orders.append(ids(reader))
    assert orders[0] == orders[1] == orders[2]


def test_no_seed_draws_one_that_the_state_keeps(table):
    drawn = set()
    for _ in range(3):
        with make_reader(table) as reader:
            drawn.add(reader.state_dict()["seed"])
    assert len(drawn) == 3
    shards = []
    for shard in range(2):
        with make_reader(table, cur_shard=shard, shard_count=2) as reader:
            shards.append(reader.state_dict())
    assert shards[0] == shards[1]


# -- epochs, reset, state --------------------------------------------------------------------------------------------


def test_defect_5_2_0_no_epoch_ends_before_its_last_row(tmp_path):
    data = make_parquet(tmp_path / "one", [[200]])
    for _ in range(30):
        with make_batch_reader(data) as reader:
            assert sum(len(batch.id) for batch in reader) == 200


def test_the_last_row_is_known_as_such_and_reset_begins_the_next_pass(table):
    with make_reader(table, seed=2, num_epochs=2) as reader:
        assert not reader.last_row_consumed
        first = ids(reader)
        assert reader.last_row_consumed
        assert list(reader) == []
        reader.reset()
        assert not reader.last_row_consumed
        assert len(reader) == 2 * TOTAL
        second = ids(reader)
    assert len(first) == len(second) == 2 * TOTAL
    with make_reader(table, seed=2, num_epochs=4) as reader:
        assert ids(reader) == first + second


def test_reset_in_mid_epoch_begins_the_next_pass(table):
    with make_reader(table, seed=2) as reader:
        next(reader)
        reader.reset()
        second = ids(reader)
    with make_reader(table, seed=2, num_epochs=2) as reader:
        assert second == ids(reader)[TOTAL:]


def test_reset_of_a_resumed_reader_begins_the_next_pass(table):
    with make_reader(table, seed=2) as reader:
        next(reader)
        state = reader.state_dict()
        reader.reset()
        second = ids(reader)
    with make_reader(table, seed=2) as reader:
        reader.load_state_dict(state)
        reader.reset()
        assert ids(reader) == second


def test_several_threads_share_a_reader_and_each_row_goes_to_one(tmp_path):
    data = make_parquet(tmp_path / "many", [[500] * 8])
    found, errors = [], []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with make_reader(data) as reader:

            def take():
                try:
                    found.extend(int(row.id) for row in reader)
                except Exception as error:
                    errors.append(error)

            threads = [threading.Thread(target=take) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    assert sorted(found) == list(range(4000))


def test_an_exhausted_reader_has_nothing_left(table):
    with make_reader(table) as reader:
        list(reader)
        assert len(reader) == 0


def test_padding_is_told_from_rows(tmp_path):
    data = make_parquet(tmp_path / "seven", [[7]])
    found = []
    for shard in range(3):
        with make_reader(data, cur_shard=shard, shard_count=3, remainder="pad") as reader:
            found += [(int(row.id), reader.valid) for row in reader]
    assert len(found) == 9
    assert sorted(i for i, valid in found if valid) == list(range(7))


def test_a_loop_after_break_continues(table):
    with make_reader(table, seed=2) as reader:
        first = [int(row.id) for row in itertools.islice(reader, 5)]
        assert len(reader) == TOTAL - 5
        assert sorted(first + ids(reader)) == list(range(TOTAL))


@pytest.mark.parametrize(
    "options", [{}, {"shuffle_rows": True}, {"shuffle_row_groups": False}, {"shuffle_row_drop_partitions": 2}]
)
@pytest.mark.parametrize("make", [make_reader, make_batch_reader])
def test_readers_resume_exactly(table, make, options):
    def fresh():
        reader = make(table, seed=4, num_epochs=2, reader_pool_type="dummy", **options)
        reader.close = reader.stop
        return reader

    assert assert_resumes_exactly(fresh, passes=1, every=5) > 2


def test_a_state_goes_on_with_other_shards_and_takes_its_seed_along(table):
    states, seen = [], []
    for shard in range(2):
        with make_reader(table, cur_shard=shard, shard_count=2) as reader:
            seen += [int(row.id) for row in itertools.islice(reader, 4)]
            states.append(json.loads(json.dumps(reader.state_dict())))
    assert states[0] == states[1]
    for shard in range(3):
        with make_reader(table, cur_shard=shard, shard_count=3) as reader:
            reader.load_state_dict(states[0])
            seen += ids(reader)
    assert sorted(seen) == list(range(TOTAL))


@pytest.mark.parametrize("shuffle_rows", [False, True])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 4)])
def test_a_reader_stopped_inside_a_batch_goes_on_with_other_shards(tmp_path, before, after, shuffle_rows):
    """The engine makes many rows at once; a state is that of the row, and every other row comes once."""
    data = make_parquet(tmp_path / "data", [[40, 25], [33]])
    for taken in (1, 17, 32):
        seen, states = [], []
        for shard in range(before):
            with make_reader(data, seed=3, shuffle_rows=shuffle_rows, cur_shard=shard, shard_count=before) as reader:
                seen += [int(next(reader).id) for _ in range(taken)]
                states.append(json.dumps(reader.state_dict()))
        assert len(set(states)) == 1
        for shard in range(after):
            with make_reader(data, seed=3, shuffle_rows=shuffle_rows, cur_shard=shard, shard_count=after) as reader:
                reader.load_state_dict(json.loads(states[0]))
                left, rest = len(reader), ids(reader)
                assert left == len(rest)
                assert left - (98 - before * taken) // after in (0, 1)
                seen += rest
        assert sorted(seen) == list(range(98))


def test_states_of_rows_and_of_batches_are_not_mixed_up(table):
    with make_reader(table, seed=1) as by_row, make_batch_reader(table, seed=1) as by_batch:
        next(by_row)
        with pytest.raises(StateMismatch):
            by_batch.load_state_dict(by_row.state_dict())


def test_a_stopped_reader_is_at_an_end(table):
    reader = make_reader(table)
    next(reader)
    reader.stop()
    reader.join()
    assert reader.stopped
    with pytest.raises(RuntimeError, match="stopped"):
        next(reader)
    with pytest.raises(LoaderClosed):
        reader.reset()


def test_diagnostics_are_there_after_stop(table):
    reader = make_batch_reader(table, shuffle_row_groups=False)
    num_rows = len(next(reader)[0])
    next(reader)
    reader.stop()
    assert reader.diagnostics["rows"] >= num_rows


def test_endless_epochs_and_diagnostics(table):
    with make_reader(table, num_epochs=None, seed=1) as reader:
        assert len(list(itertools.islice(reader, 3 * TOTAL + 1))) == 3 * TOTAL + 1
        assert reader.diagnostics["output_queue_size"] >= 0
        assert reader.diagnostics["rows"] >= 3 * TOTAL


# -- shards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [make_reader, make_batch_reader])
@pytest.mark.parametrize("world", range(1, 9))
def test_seven_uneven_row_groups_on_shards(table, make, world):
    def read(remainder):
        found = []
        for shard in range(world):
            with make(table, cur_shard=shard, shard_count=world, seed=6, remainder=remainder) as reader:
                found.append([np.atleast_1d(one.id).tolist() for one in reader])
        return found

    uneven = read("uneven")
    assert sorted(flat(flat(uneven))) == list(range(TOTAL))
    for remainder in ("drop", "pad"):
        assert len({len(steps) for steps in read(remainder)}) == 1
    assert set(flat(flat(read("pad")))) == set(range(TOTAL))


def test_more_shards_than_rows_is_an_error(tmp_path):
    data = make_parquet(tmp_path / "tiny", [[2]])
    with pytest.raises(NoDataAvailableError, match=r"3 shards need at least one row each.* 2 rows"):
        make_reader(data, cur_shard=0, shard_count=3)


# -- rows: filters and predicates ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [make_reader, make_batch_reader])
def test_filters_really_filter_rows(table, make):
    with make(table, filters=[("id", ">=", 10), ("id", "<", 15)]) as reader:
        assert sorted(np.concatenate([np.atleast_1d(one.id) for one in reader]).tolist()) == [10, 11, 12, 13, 14]


def test_batches_of_which_a_late_filter_leaves_nothing_do_not_come(table):
    with make_batch_reader(table, predicate=in_set({3, 30}, "id"), exact=False) as reader:
        assert sorted(batch.id.tolist() for batch in reader) == [[3], [30]]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("pool", POOLS)
def test_predicates_keep_what_they_should(table, pool, exact):
    wanted = {3, 4, 11, 30}
    how = {"predicate": in_set(wanted, "id"), "reader_pool_type": pool, "workers_count": 2, "exact": exact}
    with make_reader(table, schema_fields=["value"], **how) as reader:
        found = list(reader)
    assert found[0]._fields == ("value",)
    with make_reader(table, **how) as reader:
        assert sorted(ids(reader)) == sorted(wanted)
    with make_batch_reader(table, **how) as reader:
        assert sorted(flat(batch_ids(reader))) == sorted(wanted)
    assert len(found) == 4


def test_a_predicate_on_delivery_resumes_exactly(table):
    def fresh():
        reader = make_reader(
            table, predicate=in_lambda(["id"], _is_odd), exact=False, seed=1, reader_pool_type="dummy", num_epochs=2
        )
        reader.close = reader.stop
        return _Unsized(reader)

    assert_resumes_exactly(fresh, passes=1)


class _Unsized:
    """A reader without its length, which is that before the filter."""

    def __init__(self, reader):
        self.close, self.state_dict, self.load_state_dict = reader.close, reader.state_dict, reader.load_state_dict
        self._reader = reader

    def __iter__(self):
        return self._reader


def _is_odd(i):
    return i % 2 == 1


def test_defect_5_2_1_shuffled_rows_and_a_predicate_do_not_mix_rows(table):
    with make_reader(table, predicate=in_lambda(["id"], _is_odd), shuffle_rows=True) as reader:
        found = [(int(row.id), float(row.value)) for row in reader]
    native = penstock.open(table)[:]
    right = dict(zip(native["id"].tolist(), native["value"].tolist(), strict=True))
    assert sorted(i for i, _ in found) == [i for i in range(TOTAL) if i % 2]
    assert all(right[i] == value for i, value in found)


def test_defect_5_2_4_integers_stay_integers_under_a_predicate(table):
    with make_batch_reader(table, predicate=in_set({3}, "id")) as reader:
        (batch,) = reader
    assert batch.id.dtype == np.int64


def test_defect_5_2_11_null_texts_null_lists_and_empty_row_groups(tmp_path):
    columns = {"text": pa.array(["a", None, "c"]), "list": pa.array([[1, 2], None, [3]])}
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.table(columns).schema) as writer:
        writer.write_table(pa.table(columns).slice(0, 0))
        writer.write_table(pa.table(columns))
    with make_batch_reader(tmp_path / "a.parquet") as reader:
        (batch,) = reader
    assert batch.text.tolist() == ["a", None, "c"]
    assert [None if one is None else one.tolist() for one in batch.list] == [[1, 2], None, [3]]
    with make_reader(tmp_path / "a.parquet") as reader:
        assert [row.text for row in reader] == ["a", None, "c"]


def test_nothing_selected_warns_and_gives_nothing(table):
    with pytest.warns(UserWarning, match="No matching data"), make_reader(table, filters=[("id", ">", 999)]) as reader:
        assert list(reader) == []


# -- fields ----------------------------------------------------------------------------------------------------------


def test_defect_5_2_10_fields_come_in_the_order_of_the_schema_whatever_the_pattern(table):
    for patterns in (["value|id"], ["id", "value"], ["value", "id"], "id|value"):
        with make_reader(table, schema_fields=patterns) as reader:
            assert next(reader)._fields == ("id", "value")
            assert list(reader.schema.fields) == ["id", "value"]
    with make_reader(table, schema_fields=[]) as reader:
        assert set(next(reader)._fields) == {"id", "value", "text"} & set(reader.schema.fields)


def test_names_that_python_does_not_allow_still_come(tmp_path):
    pq.write_table(pa.table({"class": [1], "_x": [2], "a-b": [3], "7": [4]}), tmp_path / "a.parquet")
    with make_reader(tmp_path / "a.parquet") as reader:
        assert next(reader)._asdict() == {"class_": 1, "f_x": 2, "a_b": 3, "f7": 4}


# -- the oldest forms and arguments without effect -------------------------------------------------------------------


def test_reader_takes_a_url_or_a_filesystem_and_a_path(table):
    from pyarrow.fs import LocalFileSystem

    for reader in (
        Reader(f"file://{table}", shuffle_row_groups=False),
        Reader(LocalFileSystem(), str(table), shuffle_row_groups=False),
        Reader(None, dataset_url=str(table), shuffle_row_groups=False, reader_pool=DummyPool()),
    ):
        with reader:
            assert ids(reader) == list(range(TOTAL))
    with Reader(f"file://{table}", is_batched_reader=True) as reader:
        assert reader.batched_output
        assert sorted(flat(batch_ids(reader))) == list(range(TOTAL))


@pytest.mark.parametrize(
    "given", [{"zmq_copy_buffers": False}, {"hdfs_driver": "libhdfs"}, {"pyarrow_serialize": True}]
)
def test_arguments_without_effect_are_taken_with_one_warning(table, given):
    with pytest.warns(PenstockWarning, match=next(iter(given))) as caught:
        make_reader(table, **given).stop()
    assert len(caught) == 1


def test_ordinary_use_warns_of_nothing(table):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with make_reader(table, seed=1, shuffle_row_groups=True) as reader:
            next(reader)


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"schema_fields": ["nope"]}, RuntimeError, "No fields matching"),
        ({"schema_fields": [penstock.UnischemaField("nope", np.int32, ())]}, ColumnNotFound, "does not belong"),
        ({"schema_fields": 7}, ValueError, "schema_fields must be"),
        ({"reader_pool_type": "fibre"}, ValueError, "Unknown reader_pool_type 'fibre'; use one of"),
        ({"cur_shard": 1}, ValueError, "go together"),
        ({"cur_shard": 2, "shard_count": 2}, ValueError, r"cur_shard must be in \[0, shard_count=2\); got 2"),
        ({"num_epochs": 0}, ValueError, "num_epochs must be a whole number, at least 1, or None; got 0"),
        ({"transform_spec": TransformSpec(removed_fields=["id", "value"])}, RuntimeError, "no fields are left"),
        ({"predicate": lambda x: x}, ValueError, "redicate"),
        ({"predicate": in_set({1}, "nope")}, ColumnNotFound, "nope"),
        ({"transform_spec": lambda x: x}, ValueError, "TransformSpec"),
        ({"shuffle_row_drop_partitions": 0}, ValueError, "shuffle_row_drop_partitions"),
        ({"cache_type": "floppy"}, ValueError, "cache_type"),
        ({"remainder": "lose"}, PlanError, "remainder"),
    ],
)  # fmt: skip
def test_bad_arguments_get_one_clear_error(table, given, error, words):
    with pytest.raises(error, match=words):
        make_reader(table, **given)


def test_a_wrong_url_or_something_else_is_told_so(tmp_path):
    with pytest.raises(DatasetNotFound):
        make_reader(f"file://{tmp_path}/nowhere")
    (tmp_path / "a.txt").write_text("no data", encoding="utf-8")
    with pytest.raises(DatasetNotFound):
        make_reader(f"file://{tmp_path}")
    for wrong in (None, 7, []):
        with pytest.raises(ValueError, match=r"url|URL"):
            make_reader(wrong)


def test_a_rare_predicate_reads_only_its_own_columns_of_the_other_row_groups(tmp_path):
    data = make_parquet(tmp_path / "data", [[9000] * 20])
    watched = RecordingFileSystem()
    how = {"predicate": in_lambda(["id"], _is_70000), "schema_fields": ["value"], "filesystem": watched}
    with make_reader(data, **how) as reader:
        assert len(list(reader)) == 1
    (path,) = watched.reads.paths
    footer = pq.ParquetFile(path).metadata
    names = footer.schema.names
    touched = []
    for group in range(18):  # the end of the file is read with the footer
        column = footer.row_group(group).column(names.index("value"))
        first = column.dictionary_page_offset or column.data_page_offset
        touched.append(watched.reads.touched(path, first, first + column.total_compressed_size))
    assert touched == [group == 7 for group in range(18)]


def _is_70000(i):
    return i == 70000
