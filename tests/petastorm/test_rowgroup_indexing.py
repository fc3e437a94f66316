"""Row-group indexes under Petastorm's names: built here or by Spark, stored, read back, asked by selectors."""

import pickle
from functools import reduce

import numpy as np
import pytest

import penstock
from penstock.errors import ColumnNotFound, MetadataError
from penstock.petastorm.etl import RowGroupIndexerBase
from penstock.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, SingleFieldIndexer
from penstock.petastorm.etl.rowgroup_indexing import (
    PARALLEL_SLICE_NUM,
    ROWGROUPS_INDEX_KEY,
    PieceInfo,
    build_rowgroup_index,
    get_row_group_indexes,
)
from penstock.petastorm.selectors import (
    IntersectIndexSelector,
    RowGroupSelectorBase,
    SingleIndexSelector,
    UnionIndexSelector,
)

INDEXERS = [SingleFieldIndexer("by_kind", "kind"), FieldNotNullIndexer("has_kind", "kind")]


class FakeRdd:
    """As much of an RDD as is used: functions and data travel by pickle, partitions by partition."""

    def __init__(self, parts):
        self.parts = parts

    def mapPartitions(self, function):
        sent = pickle.dumps(function)
        return FakeRdd([pickle.loads(pickle.dumps(list(pickle.loads(sent)(iter(part))))) for part in self.parts])

    def reduce(self, function):
        again = pickle.loads(pickle.dumps(function))
        return reduce(again, [item for part in self.parts for item in part])


class FakeSpark:
    """Stands for a SparkContext where there is no Spark; the real one is tested with the Spark extra."""

    def __init__(self):
        self.slices = None

    def parallelize(self, items, num_slices):
        self.slices = num_slices
        items = list(items)
        return FakeRdd([items[start::num_slices] for start in range(num_slices)])


@pytest.fixture
def url(tmp_path):
    kinds = ["cat", "dog", None, "bird"]
    data = [{"id": i, "kind": kinds[i // 20 % 4], "image": np.full((8, 8), i % 256, np.uint8)} for i in range(200)]
    schema = penstock.Unischema(
        "S",
        [
            penstock.UnischemaField("id", np.int64, (), None, False),
            penstock.UnischemaField("kind", np.str_, (), None, True),
            penstock.UnischemaField("image", np.uint8, (8, 8), penstock.codecs.NdarrayCodec(), False),
        ],
    )
    penstock.write(data, tmp_path / "d", schema=schema, row_group_bytes=2000)
    return (tmp_path / "d").as_uri()


def content(indexes):
    return {
        name: {value: index.get_row_group_indexes(value) for value in index.indexed_values}
        for name, index in indexes.items()
    }


def test_build_and_read(url):
    build_rowgroup_index(url, None, INDEXERS)
    found = get_row_group_indexes(url)
    ds = penstock.open(url)
    chunks = len(ds.chunks)
    assert chunks > 8
    expected: dict = {}
    row = 0
    for chunk, (_, _, count) in enumerate(ds.chunks):
        for kind in ds.select(["kind"]).take(range(row, row + count))["kind"]:
            if kind is not None:
                expected.setdefault(str(kind), set()).add(chunk)
        row += count
    assert content(found)["by_kind"] == expected
    assert found["has_kind"].get_row_group_indexes() == set().union(*expected.values())
    assert isinstance(found["by_kind"], SingleFieldIndexer)
    assert isinstance(found["by_kind"], RowGroupIndexerBase)
    assert content(get_row_group_indexes(ds)) == content(found)


def test_spark_builds_the_same(url):
    build_rowgroup_index(url, None, INDEXERS)
    here = content(get_row_group_indexes(url))
    spark = FakeSpark()
    build_rowgroup_index(url, spark, INDEXERS)
    assert content(get_row_group_indexes(url)) == here
    assert spark.slices == len(penstock.open(url).chunks) <= PARALLEL_SLICE_NUM


def test_an_executor_that_sees_other_files_is_told(url, tmp_path):
    class Moved(FakeSpark):
        def parallelize(self, items, num_slices):
            penstock.write({"id": np.arange(3)}, tmp_path / "d", overwrite=True)
            return super().parallelize(items, num_slices)

    with pytest.raises(MetadataError, match="sees another dataset"):
        build_rowgroup_index(url, Moved(), INDEXERS)


def test_wrong_indexers_are_told_before_anything_is_read(url):
    with pytest.raises(ColumnNotFound, match="did you mean 'kind'"):
        build_rowgroup_index(url, None, [SingleFieldIndexer("by", "kinds")])
    with pytest.raises(ValueError, match="at least one indexer"):
        build_rowgroup_index(url, None, [])
    with pytest.raises(MetadataError, match="folder of a whole dataset"):
        build_rowgroup_index(f"{url}/{penstock.open(url).files[0]}", None, INDEXERS)


def test_another_filesystem(url):
    from fsspec.implementations.local import LocalFileSystem

    build_rowgroup_index(url, None, INDEXERS, "libhdfs", filesystem=LocalFileSystem())
    assert sorted(get_row_group_indexes(url)) == ["by_kind", "has_kind"]


def test_no_index_is_a_value_error(url):
    with pytest.raises(ValueError, match="no row-group index"):
        get_row_group_indexes(url)


def test_the_other_names():
    assert ROWGROUPS_INDEX_KEY == b"dataset-toolkit.rowgroups_index.v1"
    assert PieceInfo(1, "a", 2, []).piece_index == 1
    for selector in (SingleIndexSelector, IntersectIndexSelector, UnionIndexSelector):
        assert issubclass(selector, RowGroupSelectorBase)
