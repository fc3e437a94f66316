"""Row groups are divided for `shuffle_rows=True` only: all other orders of Petastorm's readers keep them whole."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.petastorm import make_batch_reader

ROWS = 300


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Two files of one row group of 5 MB each, with offset indexes."""
    folder, rng = tmp_path_factory.mktemp("divided"), np.random.default_rng(0)
    for number in range(2):
        images = pa.array([rng.bytes(16_000) for _ in range(ROWS)], pa.binary())
        table = pa.table({"id": np.arange(ROWS) + number * ROWS, "image": images})
        pq.write_table(
            table, folder / f"{number}.parquet", use_dictionary=False, data_page_size=1 << 19, write_batch_size=64,
            write_page_index=True,
        )  # fmt: skip
    return f"file://{folder}"


def batches(reader):
    with reader:
        return [batch.id.tolist() for batch in reader]


@pytest.mark.parametrize("shuffle", [True, False])
def test_other_orders_keep_whole_row_groups(url, shuffle):
    reader = make_batch_reader(url, shuffle_row_groups=shuffle, seed=1, num_epochs=1)
    assert sorted(batches(reader)) == [[*range(ROWS)], [*range(ROWS, 2 * ROWS)]]


def test_shuffled_rows_come_from_parts_and_resume(url):
    options = {"shuffle_rows": True, "seed": 1, "num_epochs": 2}
    whole = batches(make_batch_reader(url, **options))
    assert sorted(i for batch in whole for i in batch) == sorted([*range(2 * ROWS)] * 2)
    with make_batch_reader(url, **options) as reader:
        first = next(reader).id.tolist()
        state = reader.state_dict()
    assert state["order"] == "lanes-2"
    with make_batch_reader(url, **options) as reader:
        reader.load_state_dict(state)
        assert [first, *(batch.id.tolist() for batch in reader)] == whole
