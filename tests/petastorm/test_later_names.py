"""Names that wait for later parts: they import without a framework and say in one line what they wait for."""

from __future__ import annotations

import importlib

import pytest

from tests.test_alias import run

NAMES = {
    "hdfs.namenode": ("hdfs", ["HAHdfsClient", "HdfsConnector", "HdfsNamenodeResolver", "namenode_failover"]),
}
FLAT = [(module, extra, name) for module, (extra, names) in NAMES.items() for name in names]


@pytest.mark.parametrize(("module", "extra", "name"), FLAT)
def test_a_name_that_waits_says_for_what(module: str, extra: str, name: str) -> None:
    found = getattr(importlib.import_module(f"penstock.petastorm.{module}"), name)
    with pytest.raises(NotImplementedError, match=rf"{name} is not in .* penstock\[{extra}\]\); \w+") as caught:
        found(1, two=3)
    assert "\n" not in str(caught.value)
    assert found.__doc__
    assert found.__name__ == name


def test_the_whole_tree_imports_no_framework_and_no_pandas() -> None:
    assert run("""
        import importlib, pkgutil, sys
        import penstock.petastorm as tree
        for found in pkgutil.walk_packages(tree.__path__, "penstock.petastorm."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
        heavy = ("pandas", "pyspark", "torch", "tensorflow", "jax", "psutil", "cv2", "multiprocessing.pool")
        print([name for name in heavy if name in sys.modules])
    """) == "[]"  # fmt: skip


def test_every_module_that_users_of_petastorm_import_is_there() -> None:
    names = """reader unischema codecs predicates ngram transform selectors etl etl.dataset_metadata
        etl.rowgroup_indexers etl.rowgroup_indexing etl.petastorm_generate_metadata etl.metadata_util etl.legacy cache
        local_disk_cache weighted_sampling_reader fs_utils errors generator utils benchmark.throughput benchmark.cli
        test_util.reader_mock test_util.shuffling_analysis pyarrow_helpers.batching_table_queue pytorch tf_utils spark
        spark_utils tools.copy_dataset hdfs.namenode workers_pool.thread_pool workers_pool.process_pool
        workers_pool.dummy_pool reader_impl.pickle_serializer reader_impl.arrow_table_serializer
        reader_impl.shuffling_buffer"""
    missing = [name for name in names.split() if importlib.util.find_spec(f"penstock.petastorm.{name}") is None]
    assert not missing


def test_the_error_of_spark_rows_names_the_extra() -> None:
    import numpy as np

    from penstock.petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row

    if importlib.util.find_spec("pyspark") is not None:
        pytest.skip("PySpark is installed")
    schema = Unischema("s", [UnischemaField("x", np.int32, (), None, False)])
    with pytest.raises(ImportError, match=r"pip install 'penstock\[spark\]'"):
        dict_to_spark_row(schema, {"x": np.int32(1)})
    with pytest.raises(ImportError, match=r"pip install 'penstock\[spark\]'"):
        schema.as_spark_schema()
    with pytest.raises(AssertionError, match="must be a Unischema, got dict"):
        dict_to_spark_row({}, {})
