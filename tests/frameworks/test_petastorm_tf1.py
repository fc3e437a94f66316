"""Programs of `tensorflow.compat.v1`: datasets of readers and converters have TF1's members, eagerly and in graphs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

tf = pytest.importorskip("tensorflow")

import penstock  # noqa: E402
from penstock import Unischema, UnischemaField, codecs  # noqa: E402
from penstock.petastorm import make_batch_reader, make_reader  # noqa: E402
from penstock.petastorm.ngram import NGram  # noqa: E402
from penstock.petastorm.spark import make_spark_converter  # noqa: E402
from penstock.petastorm.test_util.reader_mock import ReaderMock, schema_data_generator_example  # noqa: E402
from penstock.petastorm.tf_utils import make_petastorm_dataset  # noqa: E402
from penstock.petastorm.weighted_sampling_reader import WeightedSamplingReader  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

v1 = tf.compat.v1
ROWS = 60

SCHEMA = Unischema(
    "Hello",
    [
        UnischemaField("id", np.int32, (), codecs.ScalarCodec(), False),
        UnischemaField("image", np.uint8, (4, 5, 3), codecs.CompressedImageCodec("png"), False),
        UnischemaField("free", np.uint8, (None, 2), codecs.NdarrayCodec(), False),
    ],
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tf1") / "rows"
    penstock.write(
        [
            {
                "id": np.int32(row),
                "image": np.full((4, 5, 3), row, np.uint8),
                "free": np.full((row % 3, 2), row, np.uint8),
            }
            for row in range(ROWS)
        ],
        path,
        schema=SCHEMA,
        row_group_bytes=1500,
    )
    return f"file://{path}"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Parquet that Petastorm did not write: 6 row groups of 10 rows."""
    path = tmp_path_factory.mktemp("tf1_plain")
    table = pa.table({"id": pa.array(range(ROWS), pa.int64()), "x": pa.array(np.arange(ROWS, dtype=np.float32) / 2)})
    pq.write_table(table, path / "part.parquet", row_group_size=10)
    return f"file://{path}"


@contextmanager
def of_rows(rows: str, plain: str) -> Iterator[Any]:
    with make_reader(rows) as reader:
        yield make_petastorm_dataset(reader)


@contextmanager
def of_fixed_rows(rows: str, plain: str) -> Iterator[Any]:
    with make_reader(rows, schema_fields=["id", "image"]) as reader:
        yield make_petastorm_dataset(reader)


@contextmanager
def of_batches(rows: str, plain: str) -> Iterator[Any]:
    with make_batch_reader(plain) as reader:
        yield make_petastorm_dataset(reader)


@contextmanager
def of_converter(rows: str, plain: str) -> Iterator[Any]:
    with make_spark_converter(plain).make_tf_dataset(batch_size=10, num_epochs=1) as dataset:
        yield dataset


SOURCES = [of_rows, of_fixed_rows, of_batches, of_converter]

STAGES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda dataset: dataset,
    "map": lambda dataset: dataset.map(lambda row: row),
    "parallel_map": lambda dataset: dataset.map(lambda row: row, num_parallel_calls=2),
    "prefetch": lambda dataset: dataset.prefetch(2),
    "shuffle": lambda dataset: dataset.shuffle(4),
    "filter": lambda dataset: dataset.filter(lambda row: True),
    "take": lambda dataset: dataset.take(ROWS),
    "cache_repeat": lambda dataset: dataset.cache().repeat(1),
    "map_prefetch": lambda dataset: dataset.map(lambda row: row).prefetch(2).map(lambda row: row),
}


def ids(element: Any) -> list[int]:
    return [int(one) for one in np.ravel(np.asarray(element.id))]


def drain(session: Any, element: Any) -> list[int]:
    """Run a session until the dataset ends; return the ids."""
    found: list[int] = []
    while True:
        try:
            found += ids(session.run(element))
        except tf.errors.OutOfRangeError:
            return found


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("source", SOURCES)
def test_a_session_reads_every_row_by_both_kinds_of_iterators(
    rows: str, plain: str, source: Callable[..., Any], stage: str
) -> None:
    with tf.Graph().as_default(), source(rows, plain) as dataset:
        dataset = STAGES[stage](dataset)
        element = dataset.make_one_shot_iterator().get_next()
        with v1.Session() as session:
            assert sorted(drain(session, element)) == list(range(ROWS))
    with tf.Graph().as_default(), source(rows, plain) as dataset:
        iterator = STAGES[stage](dataset).make_initializable_iterator()
        element = iterator.get_next()
        with v1.Session() as session:
            for _ in range(2):  # initialising again begins the next pass
                session.run(iterator.initializer)
                assert sorted(drain(session, element)) == list(range(ROWS))


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("source", SOURCES)
def test_output_members_agree_with_the_element_spec(
    rows: str, plain: str, source: Callable[..., Any], graph: bool
) -> None:
    with tf.Graph().as_default() if graph else nullcontext(), source(rows, plain) as first:
        for stage in STAGES.values():
            dataset = stage(first)
            assert isinstance(dataset, tf.data.Dataset)
            assert isinstance(dataset, v1.data.Dataset)
            spec = dataset.element_spec
            for field in spec._fields:
                assert getattr(dataset.output_shapes, field) == getattr(spec, field).shape
                assert getattr(dataset.output_shapes, field).dims is not None
                assert getattr(dataset.output_types, field) == getattr(spec, field).dtype
                assert getattr(dataset.output_classes, field) is tf.Tensor


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("source", [of_fixed_rows, of_converter])
def test_batches_have_the_members_too(rows: str, plain: str, source: Callable[..., Any], graph: bool) -> None:
    with tf.Graph().as_default() if graph else nullcontext(), source(rows, plain) as dataset:
        lone = dataset.output_shapes.id.as_list()
        dataset = dataset.batch(2, drop_remainder=True)
        assert dataset.output_shapes.id.as_list() == [2, *lone]
        assert dataset.map(lambda row: row.id).prefetch(1).output_types in (tf.int32, tf.int64)
        element = dataset.make_one_shot_iterator().get_next()
        if graph:
            with v1.Session() as session:
                assert sorted(drain(session, element)) == list(range(ROWS))
        else:
            assert len(element.id) == 2


@pytest.mark.parametrize("source", SOURCES)
def test_eagerly_a_one_shot_iterator_gives_values_and_an_initializable_one_is_refused(
    rows: str, plain: str, source: Callable[..., Any]
) -> None:
    with source(rows, plain) as dataset:
        iterator = dataset.make_one_shot_iterator()
        first = ids(iterator.get_next())
        assert sorted(first + [one for element in iterator for one in ids(element)]) == list(range(ROWS))
        assert sorted(one for element in dataset for one in ids(element)) == list(range(ROWS))  # the next pass
        with pytest.raises(RuntimeError, match="eager"):
            dataset.make_initializable_iterator()


def test_windows_in_a_session(rows: str) -> None:
    ngram = NGram({-1: ["id", "image"], 0: ["id"]}, 1, "id")
    with tf.Graph().as_default(), make_reader(rows, schema_fields=ngram) as reader:
        dataset = make_petastorm_dataset(reader)
        assert dataset.output_shapes[-1].image.as_list() == [4, 5, 3]
        element = dataset.make_one_shot_iterator().get_next()
        count = 0
        with v1.Session() as session:
            while True:
                try:
                    window = session.run(element)
                except tf.errors.OutOfRangeError:
                    break
                assert window[-1].id + 1 == window[0].id
                assert (window[-1].image == window[-1].id).all()
                count += 1
    assert count > ROWS // 2


def test_mixes_and_mocks_in_a_session(plain: str) -> None:
    with (
        tf.Graph().as_default(),
        make_batch_reader(plain) as one,
        make_batch_reader(plain) as other,
        WeightedSamplingReader([one, other], [0.5, 0.5]) as mixed,
    ):
        element = make_petastorm_dataset(mixed).make_one_shot_iterator().get_next()
        with v1.Session() as session:
            assert set(drain(session, element)) <= set(range(ROWS))
    with tf.Graph().as_default(), ReaderMock(SCHEMA, schema_data_generator_example) as mock:
        element = make_petastorm_dataset(mock).make_one_shot_iterator().get_next()
        with v1.Session() as session:
            assert session.run(element).image.shape == (4, 5, 3)


def test_datasets_are_put_together_as_tf1_programs_do(rows: str) -> None:
    with (
        tf.Graph().as_default(),
        make_reader(rows, filters=[("id", "=", 1)]) as one,
        make_reader(rows, filters=[("id", "=", 2)]) as other,
    ):
        dataset = (
            make_petastorm_dataset(one)
            .prefetch(10)
            .concatenate(make_petastorm_dataset(other))
            .map(lambda row: row.id)
            .batch(2)
        )
        element = dataset.make_one_shot_iterator().get_next()
        with v1.Session() as session:
            assert session.run(element).tolist() == [1, 2]


# -- what eager programs rely on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
def test_options_hold_behind_every_stage(rows: str, plain: str, source: Callable[..., Any]) -> None:
    with source(rows, plain) as dataset:
        for stage in STAGES.values():
            options = stage(dataset).options()
            assert options.autotune.enabled is False
            assert options.experimental_optimization.map_parallelization is False


def test_the_converters_dataset_keeps_length_and_state(plain: str) -> None:
    def make() -> Any:
        return make_spark_converter(plain).make_tf_dataset(batch_size=7, num_epochs=2, seed=4)

    with make() as dataset:
        whole = [ids(batch) for batch in dataset]
    with make() as dataset:
        pairs = dataset.map(lambda row: row).prefetch(2)
        assert len(pairs) == int(pairs.cardinality()) == len(whole)
        iterator = pairs.make_one_shot_iterator()
        seen = [ids(iterator.get_next()) for _ in range(5)]
        state = pairs.state_dict()
    with make() as dataset:
        dataset.load_state_dict(state)
        assert len(dataset) == len(whole) - 5
        assert seen + [ids(batch) for batch in dataset] == whole


def test_the_state_of_a_converters_dataset_is_exact_in_a_session(plain: str) -> None:
    def make() -> Any:
        return make_spark_converter(plain).make_tf_dataset(batch_size=7, num_epochs=2, seed=4)

    with make() as dataset:
        whole = [ids(batch) for batch in dataset]
    with tf.Graph().as_default(), make() as dataset, v1.Session() as session:
        element = dataset.make_one_shot_iterator().get_next()
        seen = [ids(session.run(element)) for _ in range(5)]
        state = dataset.state_dict()
    with make() as dataset:
        dataset.load_state_dict(state)
        assert seen + [ids(batch) for batch in dataset] == whole


def test_the_state_of_a_reader_of_rows_is_refused_while_a_graph_takes_its_batches(rows: str) -> None:
    with tf.Graph().as_default(), make_reader(rows, seed=3) as reader, v1.Session() as session:
        assert reader.state_dict()["epoch"] == 0
        element = make_petastorm_dataset(reader).make_one_shot_iterator().get_next()
        session.run(element)
        with pytest.raises(NotImplementedError, match=r"the row that its session has reached is not known"):
            reader.state_dict()
        drain(session, element)
        assert reader.state_dict()["epoch"] == 1


def test_no_warning_comes_in_a_graph(rows: str, plain: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source in SOURCES:
            with tf.Graph().as_default(), source(rows, plain) as dataset, v1.Session() as session:
                session.run(dataset.prefetch(2).make_one_shot_iterator().get_next())


# -- whole programs ---------------------------------------------------------------------------------------------------

PROGRAM = """
    import sys

    import tensorflow.compat.v1 as tf

    {first}
    from petastorm import make_batch_reader, make_reader
    from petastorm.tf_utils import make_petastorm_dataset, tf_tensors

    rows, plain = sys.argv[1:]


    def hello(make, url):
        with make(url) as reader:
            tensors = tf_tensors(reader)
            with tf.Session() as session:
                print("tensors", session.run(tensors).id.size)
        with make(url) as reader:
            following = make_petastorm_dataset(reader).make_one_shot_iterator().get_next()
            with tf.Session() as session:
                print("dataset", session.run(following).id.size)


    {around}:
        hello(make_reader, rows)
        hello(make_batch_reader, plain)
"""


@pytest.mark.parametrize(
    ("first", "around"),
    [
        ("tf.disable_v2_behavior()", "if True"),
        ("tf.disable_eager_execution()", "if True"),
        ("", "with tf.Graph().as_default()"),
    ],
)
def test_a_first_program_of_tf1_runs_unchanged(rows: str, plain: str, tmp_path: Path, first: str, around: str) -> None:
    program = tmp_path / "hello.py"
    program.write_text(textwrap.dedent(PROGRAM).format(first=first, around=around))
    done = subprocess.run(
        [sys.executable, "-m", "penstock.petastorm", str(program), rows, plain],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:4] == ["tensors 1", "dataset 1", "tensors 10", "dataset 10"]
