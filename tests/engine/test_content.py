"""States of a dataset one of whose files was written again to the same size are refused; older states still load."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import StateMismatch
from penstock.petastorm import make_batch_reader, make_reader
from penstock.testing import assert_resumes_exactly
from tests.dataset.make import write

KINDS = [False, True, "groups"]


def write_rows(path, start):
    """Write 50 rows in row groups of 10; the file has the same size wherever they start."""
    columns = {"id": np.arange(start, start + 50), "x": np.zeros(50)}
    return write(path, pa.table(columns), rows_per_group=10, compression="none", use_dictionary=False)


@pytest.fixture
def folder(tmp_path):
    for number in range(2):
        write_rows(tmp_path / "d" / f"part-{number}.parquet", 50 * number)
    return tmp_path / "d"


def begun(make):
    """Return the state of a loader or mix after two batches."""
    with make() as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        return loader.state_dict()


@pytest.mark.parametrize("shuffle", KINDS)
def test_a_state_of_the_files_before_is_refused(folder, shuffle):
    def make():
        return penstock.open(folder).loader(batch_size=4, shuffle=shuffle)

    state = begun(make)
    before = penstock.open(folder).fingerprint
    write_rows(folder / "part-1.parquet", 500)
    assert penstock.open(folder).fingerprint == before
    with make() as loader, pytest.raises(StateMismatch, match=r"content of the state is .*were written again"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("shuffle", KINDS)
def test_a_state_without_content_loads(folder, shuffle):
    def make():
        return penstock.open(folder).loader(batch_size=4, shuffle=shuffle)

    state = begun(make)
    older = {name: value for name, value in state.items() if name != "content"}
    assert older != state
    with make() as loader:
        loader.load_state_dict(older)
        assert loader.state_dict() == state


def test_the_content_is_the_same_on_every_rank_and_for_other_columns_and_rows(folder):
    ds = penstock.open(folder)
    states = [ds.loader(batch_size=4, rank=rank, world=3).state_dict() for rank in range(3)]
    states.append(penstock.open(folder, columns=["x"], filters=[("id", "<", 20)]).loader(batch_size=4).state_dict())
    assert len({state["content"] for state in states}) == 1
    assert_resumes_exactly(lambda: ds.loader(batch_size=16, shuffle=True, seed=3))


def test_a_mix_refuses_the_state_of_a_loader_whose_files_changed(folder, tmp_path):
    write_rows(tmp_path / "e" / "part-0.parquet", 900)

    def make():
        loaders = [penstock.open(path).loader(batch_size=4) for path in (folder, tmp_path / "e")]
        return penstock.mix([(loader, 1) for loader in loaders], seed=1)

    state = begun(make)
    assert all("content" in one for one in state["loaders"])
    with make() as mix:
        mix.load_state_dict(state)
        assert mix.state_dict() == state
    write_rows(tmp_path / "e" / "part-0.parquet", 700)
    with make() as mix, pytest.raises(StateMismatch, match="content of the state"):
        mix.load_state_dict(state)


@pytest.mark.parametrize("rowwise", [True, False])
def test_petastorms_readers_refuse_it_too(tmp_path, rowwise):
    penstock.write({"id": np.arange(50)}, tmp_path / "d")
    (path,) = (tmp_path / "d").glob("*.parquet")
    schema = pq.read_schema(path)  # with the stored one

    def write_ids(start):
        table = pa.table({"id": np.arange(start, start + 50)}).cast(schema)
        write(path, table, rows_per_group=10, compression="none", use_dictionary=False)

    write_ids(0)

    def make():
        return (make_reader if rowwise else make_batch_reader)(f"file://{tmp_path / 'd'}", seed=1)

    with make() as reader:
        next(reader)
        state = reader.state_dict()
    with make() as reader:
        reader.load_state_dict(state)
        assert reader.state_dict() == state
    write_ids(100)
    with make() as reader, pytest.raises(StateMismatch, match="content of the state"):
        reader.load_state_dict(state)
