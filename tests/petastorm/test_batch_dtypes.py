"""The dtypes of `make_batch_reader`: one for each column, decided at open, and no value is changed on the way."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.petastorm import TransformSpec, make_batch_reader
from penstock.petastorm.etl.petastorm_generate_metadata import generate_petastorm_metadata
from penstock.petastorm.ngram import NGram
from penstock.petastorm.predicates import in_set
from penstock.petastorm.unischema import Unischema, UnischemaField
from tests.depth import depth

LIMIT = 2**53
BIG = LIMIT + 1
"""The first integer that a float64 changes."""
POOLS = ["thread", "dummy", "process"]


def write_groups(path, *groups, **options):
    """Write each table as a row group of one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, groups[0].schema, **options) as writer:
        for group in groups:
            writer.write_table(group.cast(groups[0].schema))
    return path


def read(path, pool="dummy", **options):
    with make_batch_reader(path, reader_pool_type=pool, shuffle_row_groups=False, workers_count=2, **options) as reader:
        return [batch._asdict() for batch in reader]


def element_dtypes(batches, name):
    """Return the dtypes of the arrays in a column of lists, over all batches."""
    cells = [cell for batch in batches for cell in batch[name] if cell is not None]
    return {cell.dtype for cell in cells}


NUMBERS = {
    "none": (pa.int64(), [BIG, -BIG, 3], [4, 5, 6], "int64"),
    "small": (pa.int32(), [1, 2, 3], [None, 5, 6], "float64"),
    "within": (pa.int64(), [LIMIT, -LIMIT, 3], [None, 5, 6], "float64"),
    "above": (pa.int64(), [BIG, 2, 3], [None, 5, 6], "object"),
    "below": (pa.int64(), [-BIG, 2, 3], [None, 5, 6], "object"),
    "beside": (pa.int64(), [1, 2, 3], [None, BIG, 6], "object"),
    "unsigned": (pa.uint64(), [2**64 - 1, 2, 3], [None, 5, 6], "object"),
    "few": (pa.uint64(), [LIMIT, 2, 3], [None, 5, 6], "float64"),
    "empty": (pa.int64(), [None] * 3, [None] * 3, "float64"),
    "flag": (pa.bool_(), [True, False, True], [None, True, False], "object"),
    "sure": (pa.bool_(), [True, False, True], [True, True, False], "bool"),
    "half": (pa.float32(), [1.5, 2, 3], [None, 5, 6], "float32"),
    "text": (pa.string(), ["a", "b", "c"], [None, "e", "f"], "object"),
    "words": (pa.string(), ["a", "b", "c"], ["d", "e", "f"], "<U1"),
}


@pytest.mark.parametrize("pool", POOLS)
def test_a_column_has_one_dtype_whichever_batch_has_the_nulls(tmp_path, pool):
    groups = [
        pa.table({name: pa.array(values[which], values[0]) for name, values in NUMBERS.items()}) for which in (1, 2)
    ]
    batches = read(write_groups(tmp_path / "a.parquet", *groups), pool)
    for name, (_, first, second, dtype) in NUMBERS.items():
        for batch, stored in zip(batches, (first, second), strict=True):
            assert batch[name].dtype == np.dtype(dtype), name
            back = [None if value is None or value != value else value for value in batch[name].tolist()]
            assert back == stored, name


LISTS = {
    "none": ([[BIG, 2], [3, 4]], [[5, 6], [7, 8]], "int64"),
    "within": ([[LIMIT, 2], [3, 4]], [[None, 6], [7, 8]], "float64"),
    "above": ([[BIG, 2], [3, 4]], [[None, 6], [7, 8]], "object"),
    "ragged": ([[BIG, 2], [3]], [[None, 6], [7, 8, 9]], "object"),
    "unequal": ([[1, 2], [3]], [[None, 6], [7, 8, 9]], "float64"),
}


@pytest.mark.parametrize("pool", POOLS)
def test_elements_of_lists_have_one_dtype_too(tmp_path, pool):
    groups = [pa.table({name: values[which] for name, values in LISTS.items()}) for which in (0, 1)]
    batches = read(write_groups(tmp_path / "a.parquet", *groups), pool)
    for name, (first, second, dtype) in LISTS.items():
        assert element_dtypes(batches, name) == {np.dtype(dtype)}, name
        found = [cell.tolist() for batch in batches for cell in batch[name]]
        back = [[None if value != value else value for value in cell] for cell in found]
        assert back == [*first, *second], name


@pytest.mark.parametrize("fixed", [False, True])
def test_lists_of_fixed_length_as_well(tmp_path, fixed):
    kind = pa.list_(pa.int64(), 2) if fixed else pa.list_(pa.int64())
    groups = [pa.table({"l": pa.array(rows, kind)}) for rows in ([[BIG, 2], [3, 4]], [[None, 6], [7, 8]])]
    batches = read(write_groups(tmp_path / "a.parquet", *groups))
    assert [batch["l"].shape for batch in batches] == [(2, 2)] * 2
    assert [batch["l"].tolist() for batch in batches] == [[[BIG, 2], [3, 4]], [[None, 6], [7, 8]]]


def test_a_list_of_nulls_is_no_null_list(tmp_path):
    pq.write_table(pa.table({"l": [[None, None], None, [1, 2], [3]]}), tmp_path / "a.parquet")
    [batch] = read(tmp_path / "a.parquet")
    assert np.isnan(batch["l"][0]).tolist() == [True, True]
    assert batch["l"][1] is None


@pytest.mark.skipif(int(pa.__version__.split(".")[0]) < 19, reason="writes no size statistics")
def test_empty_and_null_lists_are_not_null_elements(tmp_path):
    pq.write_table(pa.table({"l": [[BIG], [], None, [2, 3]]}), tmp_path / "a.parquet")
    assert element_dtypes(read(tmp_path / "a.parquet"), "l") == {np.dtype(np.int64)}


def test_elements_that_cannot_be_null_keep_their_dtype_in_any_file(tmp_path):
    kind = pa.list_(pa.field("element", pa.int32(), nullable=False))
    table = pa.table({"l": pa.array([[1], [], None, [2, 3]], kind)})
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=False)
    assert element_dtypes(read(tmp_path / "a.parquet"), "l") == {np.dtype(np.int32)}


def test_without_statistics_a_column_may_hold_anything(tmp_path):
    schema = pa.schema(
        [("i", pa.int64()), ("small", pa.int16()), ("b", pa.bool_()), pa.field("never", pa.int64(), nullable=False)]
    )
    table = pa.table({"i": [1, 2], "small": [1, 2], "b": [True, False], "never": [BIG, 2]}, schema)
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=False)
    [batch] = read(tmp_path / "a.parquet")
    assert {name: str(values.dtype) for name, values in batch.items()} == {
        "i": "object",
        "small": "float64",
        "b": "object",
        "never": "int64",
    }
    assert batch["never"].tolist() == [BIG, 2]


def test_a_field_that_is_said_not_to_be_null_is_believed_while_footers_do_not_say_otherwise(tmp_path):
    write_groups(tmp_path / "a.parquet", pa.table({"i": [BIG, 2], "j": [1, 2]}), write_statistics=["j"])
    write_groups(tmp_path / "b.parquet", pa.table({"i": [3, 4], "j": [None, 2]}), write_statistics=["j"])
    generate_petastorm_metadata(None, tmp_path.as_uri(), f"{__name__}.DECLARED")
    assert {str(batch["i"].dtype) for batch in read(tmp_path)} == {"int64"}
    assert {str(batch["j"].dtype) for batch in read(tmp_path)} == {"float64"}


DECLARED = Unischema("S", [UnischemaField(name, np.int64, (), None, False) for name in ("i", "j")])


def test_the_footers_of_all_files_decide_whatever_is_read(tmp_path):
    """Shards and filters see a part of the files; all of them give the dtypes of the whole."""
    for number, values in enumerate([[1, 2], [BIG, 4], [None, 6]]):
        pq.write_table(pa.table({"k": [number] * 2, "i": pa.array(values, pa.int64())}), tmp_path / f"{number}.parquet")
    seen = [read(tmp_path, cur_shard=shard, shard_count=3) for shard in range(3)]
    seen += [read(tmp_path, filters=[("k", "=", 0)]), read(tmp_path, predicate=in_set([0], "k"))]
    for batches in seen:
        assert [batch["i"].dtype for batch in batches] == [np.dtype(object)]


def test_partitions_and_structs_as_well(tmp_path):
    for value in (BIG, "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"p={value}").mkdir()
    pq.write_table(pa.table({"s": [{"a": BIG}, {"a": 2}]}), tmp_path / f"p={BIG}" / "a.parquet")
    pq.write_table(
        pa.table({"s": pa.array([None, {"a": 2}], pa.struct([("a", pa.int64())]))}),
        tmp_path / "p=__HIVE_DEFAULT_PARTITION__" / "a.parquet",
    )
    batches = read(tmp_path)
    assert {batch[name].dtype for batch in batches for name in ("p", "s_a")} == {np.dtype(object)}
    assert sorted(str(batch["p"].tolist()) for batch in batches) == [f"[{BIG}, {BIG}]", "[None, None]"]
    assert sorted(str(batch["s_a"].tolist()) for batch in batches) == [f"[{BIG}, 2]", "[None, 2]"]


def test_shuffled_rows_and_windows_as_well(tmp_path):
    groups = [pa.table({"t": range(n, n + 4), "i": [BIG + n, None, 2, 3]}) for n in (0, 4)]
    path = write_groups(tmp_path / "a.parquet", *groups)
    stored = [value for group in groups for value in group["i"].to_pylist()]
    shuffled = read(path, shuffle_rows=True, seed=1)
    assert sorted(map(str, [value for batch in shuffled for value in batch["i"].tolist()])) == sorted(map(str, stored))
    ngram = NGram({0: ["i"], 1: ["t"]}, 1, "t")
    with make_batch_reader(path, ngram, shuffle_row_groups=False) as reader:
        windows = list(reader)
    assert [window[0].i.tolist() for window in windows] == [stored[:3], stored[4:7]]


@given(
    st.lists(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5), min_size=1, max_size=4),
    st.sampled_from([1, LIMIT, 2**63]),
)
@settings(max_examples=depth(30, 300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_integer_is_ever_changed(tmp_path, groups, most):
    groups = [[None if value is None else value % (2 * most) - most for value in group] for group in groups]
    tables = [pa.table({"i": pa.array(group, pa.int64()), "l": [[value] for value in group]}) for group in groups]
    batches = read(write_groups(tmp_path / "a.parquet", *(table.cast(TYPES) for table in tables)))
    assert len({batch["i"].dtype for batch in batches}) == 1
    assert len(element_dtypes(batches, "l")) == 1
    for name, cells in (("i", lambda batch: batch["i"]), ("l", lambda batch: np.ravel(batch["l"]))):
        found = [None if value != value else value for batch in batches for value in cells(batch).tolist()]
        assert found == [value for group in groups for value in group], name


TYPES = pa.schema([("i", pa.int64()), ("l", pa.list_(pa.int64()))])


# -- transforms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["dummy", "process"])
def test_frames_of_a_transform_have_one_dtype_and_every_value(tmp_path, pool):
    pytest.importorskip("pandas")
    groups = [pa.table({"i": [BIG, 2], "f": [1, 2]}), pa.table({"i": [None, 4], "f": [None, 4]})]
    path = write_groups(tmp_path / "a.parquet", *groups)
    spec = TransformSpec(note_dtypes, edit_fields=[("seen", np.str_, (), False)])
    batches = read(path, pool, transform_spec=spec)
    assert {text for batch in batches for text in batch["seen"].tolist()} == {"Int64 float64"}
    assert [batch["i"].tolist() for batch in batches] == [[BIG, 2], [None, 4]]
    assert [(batch["i"].dtype, batch["f"].dtype) for batch in batches] == [(np.dtype(object), np.dtype(np.float64))] * 2


def note_dtypes(frame):
    frame["seen"] = f"{frame['i'].dtype} {frame['f'].dtype}"
    return frame


def test_a_field_that_a_transform_edits_has_the_dtype_it_is_given(tmp_path):
    pytest.importorskip("pandas")
    path = write_groups(tmp_path / "a.parquet", pa.table({"i": [1, 2]}), pa.table({"i": [None, BIG]}))
    spec = TransformSpec(lambda frame: frame.fillna(0).astype({"i": "int64"}), [("i", np.int64, (), False)])
    batches = read(path, transform_spec=spec)
    assert [batch["i"].tolist() for batch in batches] == [[1, 2], [0, BIG]]
    assert {batch["i"].dtype for batch in batches} == {np.dtype(np.int64)}


def test_large_integers_that_a_transform_makes_null_are_not_rounded(tmp_path):
    pandas = pytest.importorskip("pandas")
    pq.write_table(pa.table({"i": [BIG, 2]}), tmp_path / "a.parquet")

    def add(frame):
        frame["new"] = pandas.array([BIG, None], dtype="Int64")
        return frame

    [batch] = read(tmp_path / "a.parquet", transform_spec=TransformSpec(add, [("new", np.int64, (), True)]))
    assert batch["new"].tolist() == [BIG, None]
