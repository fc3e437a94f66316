"""The migration guide: behind every row of its tables stands a test, here or elsewhere; all parameters are in it.

Each test here shows one behaviour that differs from Petastorm's, in the words of docs/migrate_from_petastorm.md.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, ScalarCodec
from penstock.engine.host import cores
from penstock.errors import TransformError
from penstock.petastorm import TransformSpec, make_batch_reader, make_reader
from penstock.petastorm.ngram import NGram
from penstock.petastorm.predicates import (
    in_intersection,
    in_lambda,
    in_negate,
    in_pseudorandom_split,
    in_reduce,
    in_set,
)
from penstock.testing import make_parquet
from tests.house import ROOT
from tests.test_docs import blocks

GUIDE = ROOT / "docs" / "migrate_from_petastorm.md"
HERE = "tests/petastorm/test_migration.py"
SIZES = [[4, 1, 7], [3, 9], [2, 5]]
TOTAL = sum(map(sum, SIZES))


@pytest.fixture
def table(tmp_path):
    return make_parquet(tmp_path / "data", SIZES)


def ids(reader):
    with reader:
        return [int(row.id) for row in reader]


def batches(reader):
    with reader:
        return [batch.id.tolist() for batch in reader]


# -- the guide -------------------------------------------------------------------------------------------------------


def proofs():
    """Return (what, file, test) for every row of the tables whose last column is called "test"."""
    found, inside = [], False
    for line in GUIDE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            inside = False
        elif cells[-1] == "test":
            inside = True
        elif inside and not set(line) <= set("|- "):
            found += [(cells[0], *place(name)) for name in re.findall(r"`([^`]+)`", cells[-1]) or [""]]
    return found


def place(name):
    file, _, test = name.rpartition("::")
    return file or HERE, test


def test_every_row_of_the_guide_has_a_test():
    rows = proofs()
    assert len(rows) >= 30
    for what, file, test in rows:
        path = ROOT / file
        assert path.is_file(), (what, file)
        assert re.search(rf"^ *def {test}\(", path.read_text(encoding="utf-8"), re.M), f"{what}: no {test} in {file}"


def test_every_test_here_is_in_the_guide():
    named = {test for _, file, test in proofs() if file == HERE}
    own = {"test_every_row_of_the_guide_has_a_test", "test_every_test_here_is_in_the_guide"}
    own |= {"test_every_parameter_is_in_the_guide", "test_the_example_finds_every_row_the_same"}
    own |= {"test_the_alias_of_the_guide_is_what_it_says"}
    here = set(re.findall(r"^def (test_\w+)", (ROOT / HERE).read_text(encoding="utf-8"), re.M))
    assert named == here - own


@pytest.mark.parametrize("factory", [make_reader, make_batch_reader])
def test_every_parameter_is_in_the_guide(factory):
    guide = GUIDE.read_text(encoding="utf-8")
    for name in inspect.signature(factory).parameters:
        assert f"| `{name}`" in guide or f", `{name}`" in guide, name


def test_the_alias_of_the_guide_is_what_it_says():
    """An alias lasts as long as its process, so this block of the guide runs in one of its own."""
    code = next(block.code for block in blocks(GUIDE) if "install_as_petastorm()" in block.code)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_example_finds_every_row_the_same(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "migrate_from_petastorm.py"), "--output", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[NO]" not in done.stdout
    assert "rows that differ: 0, missing: 0, added: 0" in done.stdout


# -- rows and their order --------------------------------------------------------------------------------------------


def test_no_row_is_lost(tmp_path):
    one = make_parquet(tmp_path / "one", [[200]])
    for _ in range(20):
        assert sum(map(len, batches(make_batch_reader(one)))) == 200


def test_every_epoch_has_an_order_of_its_own(table):
    found = ids(make_reader(table, seed=4, num_epochs=3))
    epochs = [found[start : start + TOTAL] for start in range(0, 3 * TOTAL, TOTAL)]
    assert all(sorted(epoch) == list(range(TOTAL)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3


def test_a_seed_is_one_order_in_every_pool(table):
    for seed in (0, 7):
        orders = [
            ids(make_reader(table, seed=seed, reader_pool_type=pool, workers_count=workers))
            for pool, workers in (("thread", 1), ("thread", 10), ("dummy", 1), ("process", 2))
        ]
        assert orders.count(orders[0]) == 4
    assert ids(make_reader(table, seed=0)) != ids(make_reader(table, seed=7))


def test_a_seed_that_is_drawn_is_kept(table):
    with make_reader(table) as reader:
        first, state = int(next(reader).id), json.dumps(reader.state_dict())
        rest = ids(reader)
    with make_reader(table) as reader:
        reader.load_state_dict(json.loads(state))
        assert ids(reader) == rest
    assert sorted([first, *rest]) == list(range(TOTAL))
    assert len({tuple(ids(make_reader(table))) for _ in range(5)}) > 1
    assert len({tuple(ids(make_reader(table, cur_shard=0, shard_count=2))) for _ in range(5)}) == 1


def test_shuffled_rows_come_from_everywhere(tmp_path):
    url = make_parquet(tmp_path / "data", [[50, 50], [50, 50]])
    first = batches(make_batch_reader(url, shuffle_rows=True, seed=1))[0]
    assert len(first) == 50
    assert {row // 50 for row in first} == {0, 1, 2, 3}


def test_drop_partitions_give_every_row_once(table):
    for shuffle_rows in (False, True):
        reader = make_reader(table, shuffle_row_drop_partitions=3, shuffle_rows=shuffle_rows)
        assert sorted(ids(reader)) == list(range(TOTAL))


# -- shards, passes, state -------------------------------------------------------------------------------------------


def test_shards_differ_by_one_row_at_most(table):
    for world in (2, 5, 12):  # there are 7 row groups
        parts = [ids(make_reader(table, cur_shard=shard, shard_count=world)) for shard in range(world)]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert sorted(row for part in parts for row in part) == list(range(TOTAL))


def test_a_shard_gets_other_rows_in_every_epoch(tmp_path):
    url = make_parquet(tmp_path / "data", [[10] * 10])
    found = ids(make_reader(url, cur_shard=0, shard_count=2, num_epochs=2, seed=1))
    assert set(found[:50]) != set(found[50:])
    fixed = [ids(make_reader(url, filters=[("id", "<", 50)], seed=seed)) for seed in (1, 2)]  # how to pin a part
    assert set(fixed[0]) == set(fixed[1]) == set(range(50))


def test_equal_steps_on_every_shard_can_be_had(table):
    for remainder, rows in (("drop", TOTAL // 4), ("pad", -(-TOTAL // 4))):
        for shard in range(4):
            reader = make_reader(table, cur_shard=shard, shard_count=4, remainder=remainder)
            assert len(ids(reader)) == rows


def test_a_shard_that_does_not_exist_is_refused(table):
    with pytest.raises(ValueError, match=r"must be in \[0, shard_count=2\); got 2"):
        make_reader(table, cur_shard=2, shard_count=2)


def test_reset_comes_at_any_moment(table):
    with make_reader(table, seed=1) as reader:
        next(reader)
        reader.reset()
        assert sorted(int(row.id) for row in reader) == list(range(TOTAL))


def test_a_reader_has_a_length_and_resumes(table):
    with make_reader(table, seed=1) as reader:
        for _ in range(10):
            next(reader)
        assert len(reader) == TOTAL - 10
        state = reader.state_dict()
        rest = ids(reader)
    with make_reader(table, seed=1, reader_pool_type="dummy") as reader:
        reader.load_state_dict(state)
        assert ids(reader) == rest


# -- which rows and fields -------------------------------------------------------------------------------------------


def test_filters_filter_rows(table):
    assert sorted(ids(make_reader(table, filters=[("id", ">=", 5), ("id", "<", 9)]))) == [5, 6, 7, 8]


def test_every_predicate_works_in_batches(tmp_path):
    rows = {"id": [1, 2, 3, 4], "tags": [[1, 2], [2], [3], None]}
    pq.write_table(pa.table(rows), tmp_path / "x.parquet")
    for predicate, kept in (
        (in_set([1, 4], "id"), [1, 4]),
        (in_intersection([2], "tags"), [1, 2]),
        (in_negate(in_set([1], "id")), [2, 3, 4]),
        (in_reduce([in_set([1, 2], "id"), in_set([2, 3], "id")], all), [2]),
        (in_pseudorandom_split([1.0], 0, "id"), [1, 2, 3, 4]),
    ):
        found = batches(make_batch_reader(tmp_path / "x.parquet", predicate=predicate))
        assert found == [kept]


def test_a_predicate_changes_no_value(table):
    predicate = in_set([3, 4, 20], "id")
    for options in ({}, {"shuffle_rows": True}):
        with make_batch_reader(table, predicate=predicate, **options) as reader:
            rows = {}
            for batch in reader:
                assert batch.id.dtype == np.int64
                rows.update(zip(batch.id.tolist(), zip(*batch, strict=True), strict=True))
        with make_reader(table) as reader:
            want = {int(row.id): tuple(row) for row in reader if row.id in (3, 4, 20)}
        assert rows == want


def test_one_text_is_one_pattern(table):
    with make_reader(table, schema_fields="id") as reader:
        assert next(reader)._fields == ("id",)


def test_fields_come_in_the_order_of_the_schema(tmp_path):
    penstock.write({name: np.arange(2) for name in ("b", "a", "c")}, tmp_path / "set")
    with make_reader(tmp_path / "set", schema_fields=["[a-c]"]) as reader:
        assert next(reader)._fields == ("b", "a", "c")


# -- transforms and windows ------------------------------------------------------------------------------------------


def test_edit_fields_are_kept_to(table):
    spec = TransformSpec(lambda row: {**row, "x": np.zeros(3)}, edit_fields=[("x", np.float64, (2,), False)])
    with (
        make_reader(table, transform_spec=spec) as reader,
        pytest.raises(TransformError, match=r"'x' the shape \(3,\)"),
    ):
        next(reader)


def test_selected_fields_are_all_that_comes(table):
    with make_reader(table, transform_spec=TransformSpec(lambda row: row, selected_fields=["id"])) as reader:
        assert next(reader)._fields == ("id",)


def test_an_error_in_a_transform_names_its_place(table):
    with make_reader(table, transform_spec=TransformSpec(lambda row: 1 / 0)) as reader:
        with pytest.raises(RuntimeError, match=r"ZeroDivisionError.*\.parquet, row group") as caught:
            next(reader)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_windows_may_be_shuffled_and_batched(tmp_path):
    url = make_parquet(tmp_path / "data", [[5, 5]])
    pairs = NGram({0: ["id"], 1: ["id"]}, 1, "id")
    with make_reader(url, schema_fields=pairs, shuffle_rows=True, seed=2) as reader:
        found = [(int(window[0].id), int(window[1].id)) for window in reader]
    assert sorted(found) == [(0, 1), (1, 2), (2, 3), (3, 4), (5, 6), (6, 7), (7, 8), (8, 9)] != found
    with make_batch_reader(url, schema_fields=pairs, shuffle_row_groups=False) as reader:
        assert next(reader)[1].id.tolist() == [1, 2, 3, 4]


def test_the_timestamp_need_not_be_asked_for(table):
    with make_reader(table, schema_fields=NGram({0: ["value"], 1: []}, 1, "id")) as reader:
        assert next(reader)[0]._fields == ("value",)


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def odd(tmp_path):
    columns = {
        "text": ["a", None, "c"],
        "list": [[1, 2], [3], None],
        "unsigned": pa.array([1, 2, 3], pa.uint32()),
        "point": [{"x": 1}, {"x": 2}, {"x": 3}],
    }
    pq.write_table(pa.table(columns), tmp_path / "odd.parquet")
    return tmp_path / "odd.parquet"


def test_null_is_none(odd):
    with make_batch_reader(odd) as reader:
        batch = next(reader)
    assert batch.text.tolist() == ["a", None, "c"]
    assert batch.list[2] is None
    with make_reader(odd) as reader:
        assert [row.text for row in reader] == ["a", None, "c"]


def test_lists_may_differ_in_length(odd):
    with make_batch_reader(odd) as reader:
        assert [len(one) for one in next(reader).list[:2]] == [2, 1]


def test_no_column_is_left_out(odd):
    with make_batch_reader(odd) as reader:
        batch = next(reader)
    assert batch.unsigned.dtype == np.uint32
    assert batch.point_x.tolist() == [1, 2, 3]


def test_images_lie_in_one_stretch(tmp_path):
    schema = Unischema("One", [UnischemaField("image", np.uint8, (4, 6, 3), CompressedImageCodec("png"), False)])
    penstock.write([{"image": np.zeros((4, 6, 3), np.uint8)}], tmp_path / "set", schema)
    with make_reader(tmp_path / "set") as reader:
        assert next(reader).image.flags.c_contiguous


def test_plain_parquet_needs_no_metadata(table, recwarn):
    pq.write_metadata(pa.schema([("other", pa.int8())]), f"{table}/_common_metadata")
    assert len(ids(make_reader(table))) == TOTAL
    assert not recwarn.list


def test_a_bytes_column_is_asked_for_by_decode(tmp_path):
    schema = Unischema("One", [UnischemaField("image", np.uint8, (4, 6), CompressedImageCodec("png"), False)])
    penstock.write([{"image": np.zeros((4, 6), np.uint8)}] * 2, tmp_path / "set", schema)
    with make_batch_reader(tmp_path / "set", decode=True) as reader:
        assert next(reader).image.shape == (2, 4, 6)


# -- cache, pools ----------------------------------------------------------------------------------------------------


def test_the_cache_stays_and_your_files_too(table, tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    options = {"cache_type": "local-disk", "cache_location": str(folder), "cache_size_limit": 10**8}
    ids(make_reader(table, **options))
    with make_reader(table, **options, predicate=in_set([1, 2], "id"), shuffle_row_drop_partitions=2) as reader:
        assert sorted(int(row.id) for row in reader) == [1, 2]
        assert reader.cache.stats["hits"]
    assert (folder / "mine.txt").read_text() == "mine"


def test_workers_are_no_more_than_cores(table):
    with make_reader(table, workers_count=10_000) as reader:
        assert reader.loader.report().workers <= max(2, cores())


def test_a_transform_of_the_script_goes_to_processes(table, tmp_path):
    script = f"""
from penstock.petastorm import TransformSpec, make_reader
def same(row): return row
{{guard}}
    spec = TransformSpec(same)
    with make_reader({str(table)!r}, reader_pool_type="process", workers_count=1, transform_spec=spec) as reader:
        print(len(list(reader)))
"""
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "cloudpickle.py").write_text("raise ImportError")

    def run(guard, *paths):
        (tmp_path / "script.py").write_text(script.format(guard=guard))
        path = os.pathsep.join([*map(str, paths), *sys.path])
        command = [sys.executable, str(tmp_path / "script.py")]
        env = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=env)

    pytest.importorskip("cloudpickle")
    assert run("if True:").stdout == f"{TOTAL}\n"
    assert run("if __name__ == '__main__':", tmp_path / "without").stdout == f"{TOTAL}\n"
    assert "needs `if __name__ == '__main__':`" in run("if True:", tmp_path / "without").stderr


def test_text_is_str(tmp_path):
    schema = Unischema("One", [UnischemaField("name", np.str_, (), ScalarCodec(), False)])
    penstock.write([{"name": "x"}], tmp_path / "set", schema)
    with make_reader(tmp_path / "set") as reader:
        assert type(next(reader).name) is str


def test_lambdas_go_to_processes_in_a_predicate(table):
    reader = make_reader(table, reader_pool_type="process", predicate=in_lambda(["id"], lambda row: row < 2))
    assert sorted(ids(reader)) == [0, 1]
