"""States of runs over parts: every loader of the same files goes on with the same parts, whatever its options."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import StateMismatch
from penstock.testing import assert_resumes_exactly

OPTIONS = {"batch_size": 32, "shuffle": True, "seed": 5, "rank": 0, "world": 1}
ROWS = 500


def write(folder, with_index):
    """Write a file of 8 MB for each entry, with an offset index or without: several parts."""
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for number, index in enumerate(with_index):
        images = [rng.bytes(16_000) for _ in range(ROWS)]
        table = pa.table({"id": np.arange(ROWS) + number * ROWS, "image": pa.array(images, pa.binary())})
        pq.write_table(
            table, folder / f"{number}.parquet", use_dictionary=False, data_page_size=1 << 19, write_batch_size=64,
            write_page_index=index,
        )  # fmt: skip
    return penstock.open(folder)


def ids(loader):
    with loader:
        return [int(i) for batch in loader for i in batch["id"]]


def state_after(loader, batches):
    with loader:
        found = iter(loader)
        for _ in range(batches):
            next(found)
        return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize(("first", "second"), [(True, None), (None, True), (True, False), (None, False)])
def test_a_state_brings_its_own_parts_to_a_loader_with_others(tmp_path, first, second):
    dataset = write(tmp_path / "data", [True, False, True])
    wanted = ids(dataset.loader(**OPTIONS, parts=first))
    state = state_after(dataset.loader(**OPTIONS, parts=first), 7)
    assert state.get("scanned") is (True if first else None)
    resumed = penstock.open(tmp_path / "data").loader(**OPTIONS, parts=second)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert ids(resumed) == wanted[7 * 32 :]
    assert sorted(wanted) == [*range(3 * ROWS)]


def test_parts_of_files_without_an_index_are_other_parts(tmp_path):
    dataset = write(tmp_path / "data", [True, False])
    assert ids(dataset.loader(**OPTIONS, parts=True)) != ids(dataset.loader(**OPTIONS))


@pytest.mark.parametrize("with_index", [[True, True], [False, False]])
def test_order_and_state_are_the_same_where_the_parts_are(tmp_path, with_index):
    dataset = write(tmp_path / "data", with_index)
    default, scanning = dataset.loader(**OPTIONS), dataset.loader(**OPTIONS, parts=True)
    assert (default.order == scanning.order) is with_index[0]
    assert (default.state_dict() == scanning.state_dict()) is with_index[0]
    default.load_state_dict(scanning.state_dict())
    assert ids(default) == ids(scanning)


def test_parts_found_by_a_scan_resume_at_every_step(tmp_path):
    dataset = write(tmp_path / "data", [False, True])
    assert_resumes_exactly(lambda: dataset.loader(**OPTIONS | {"batch_size": 150}, parts=True, epochs=2))


@pytest.mark.parametrize("parts_of_state", [None, True])
def test_other_worlds_take_over_with_the_parts_of_the_state(tmp_path, parts_of_state):
    dataset = write(tmp_path / "data", [True, False])
    seen = []
    for rank in range(3):
        options = OPTIONS | {"rank": rank, "world": 3, "remainder": "uneven", "parts": parts_of_state}
        with dataset.loader(**options) as loader:
            batches = iter(loader)
            seen += [int(i) for _ in range(4) for i in next(batches)["id"]]
            state = json.loads(json.dumps(loader.state_dict()))
    for rank in range(2):
        loader = dataset.loader(**OPTIONS | {"rank": rank, "world": 2, "remainder": "uneven"})
        loader.load_state_dict(state)
        seen += ids(loader)
    assert sorted(seen) == [*range(2 * ROWS)]


def test_a_state_of_parts_is_refused_by_files_without_such_parts(tmp_path):
    state = state_after(write(tmp_path / "data", [True]).loader(**OPTIONS), 1)
    other = write(tmp_path / "other", [False])
    with pytest.raises(StateMismatch, match="dataset of the state"):  # another fingerprint is named before parts are
        other.loader(**OPTIONS).load_state_dict(state)
    state |= {"dataset": other.fingerprint}
    with pytest.raises(StateMismatch, match="divides row groups into parts, and those of this loader are not"):
        other.loader(**OPTIONS).load_state_dict(state)


def test_a_damaged_entry_is_refused(tmp_path):
    loader = write(tmp_path / "data", [True, False]).loader(**OPTIONS, parts=True)
    with pytest.raises(StateMismatch, match="'scanned' must be bool, got 'yes'"):
        loader.load_state_dict(loader.state_dict() | {"scanned": "yes"})
    with pytest.raises(StateMismatch, match="scanned=True"):
        loader.load_state_dict(loader.state_dict() | {"order": "lanes-1"})
