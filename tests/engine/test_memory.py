"""`memory_bytes` is kept, whatever the rows are like, and memory does not grow from epoch to epoch.

Measured in a program of its own (`weigh`), as the peak of resident memory above that after import and open. The soak
uses the sizes of the acceptance list, the brief run a quarter of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.codecs import CompressedImageCodec, NdarrayCodec
from penstock.engine.gather import BlockPool
from penstock.errors import BudgetError
from penstock.schema.stored import SCHEMA_KEY, schema_to_json
from penstock.testing import make_parquet
from tests.depth import depth
from tests.engine.make import tightest

ROOT = Path(__file__).parents[2]
LINUX = sys.platform.startswith("linux")
SCALE = depth(4, 1)
MB = 1 << 20
ALLOWED = 1.2

pytestmark = pytest.mark.slow
needs_proc = pytest.mark.skipif(not LINUX, reason="measures through /proc")


def weigh(data, epochs=1, **options):
    """Run `weigh` on a dataset."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.engine.weigh", str(data), str(epochs), json.dumps(options)],
        capture_output=True, text=True, timeout=250, cwd=ROOT, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )  # fmt: skip
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def write_cells(path, field, cells, *, groups):
    """Write a dataset of one encoded column; equal cells make a small file of much memory."""
    schema = penstock.Unischema("cells", [field])
    stored = pa.schema([(field.name, pa.binary())], metadata={SCHEMA_KEY: schema_to_json(schema).encode()})
    table = pa.table([pa.array(cells, pa.binary())], schema=stored)
    with pq.ParquetWriter(path, stored, compression="zstd", use_dictionary=False) as writer:
        for _ in range(groups):
            writer.write_table(table)
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """JPEGs of 256x256 and about 40 KB; more than the budget in memory."""
    field = penstock.UnischemaField("image", np.uint8, (256, 256, 3), CompressedImageCodec("jpeg", 90), nullable=False)
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    cell = bytes(field.codec.encode(field, np.kron(noise, np.ones((8, 8, 1), np.uint8))))
    rows = 4 * MB // len(cell)
    return write_cells(tmp_path_factory.mktemp("pictures") / "a.parquet", field, [cell] * rows, groups=180 // SCALE)


@pytest.fixture(scope="module")
def large_rows(tmp_path_factory):
    """Rows of 16 MB, four a row group."""
    numbers = 4 * MB // SCALE
    field = penstock.UnischemaField("x", np.float32, (numbers,), NdarrayCodec(), nullable=False)
    cells = [bytes(field.codec.encode(field, np.full(numbers, i, np.float32))) for i in range(4)]
    return write_cells(tmp_path_factory.mktemp("large") / "a.parquet", field, cells, groups=24)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """200,000 rows of 4 numbers and a text, in 50 row groups: 8 MB."""

    def columns(rows):
        numbers = {f"c{i}": pa.array(rows + i) for i in range(4)}
        return {**numbers, "text": pa.array([f"row {i % 1000}" for i in rows.tolist()], pa.string())}

    return make_parquet(tmp_path_factory.mktemp("table"), [[4000] * 25] * 2, columns=columns)


@needs_proc
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("pool", ["thread", "process"])
def test_pictures_within_the_budget(pictures, pool, shuffle):
    budget = 512 * MB // SCALE
    window = 200 * MB // SCALE
    found = weigh(
        pictures, batch_size=32, shuffle=shuffle, pool=pool, memory_bytes=budget, shuffle_bytes=window, workers=2
    )
    assert found["peak_bytes"] < ALLOWED * budget


@needs_proc
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("pool", ["thread", "process"])
def test_large_rows_within_the_budget(large_rows, pool, shuffle):
    budget = 1024 * MB // SCALE
    window = 200 * MB // SCALE
    found = weigh(
        large_rows, batch_size=4, shuffle=shuffle, pool=pool, memory_bytes=budget, shuffle_bytes=window, workers=2
    )
    assert found["peak_bytes"] < ALLOWED * budget


@needs_proc
def test_the_least_that_an_error_names_is_enough(large_rows):
    ds = penstock.open(large_rows)
    options = {"batch_size": 4, "shuffle": True, "shuffle_bytes": 200 * MB // SCALE, "workers": 2}
    least = tightest(ds, **options)
    assert least > 5 * 64 * MB // SCALE  # a window of two row groups, one read of three, two batches
    found = weigh(large_rows, memory_bytes=least, **options)
    assert found["peak_bytes"] < ALLOWED * least


@pytest.fixture(scope="module")
def large_groups(tmp_path_factory):
    """Row groups of 128 MB of cells that do not compress, in pages of 100 rows with an offset index: as Spark's are."""
    folder, num_rows = tmp_path_factory.mktemp("large_groups"), 7_400 // SCALE
    rng = np.random.default_rng(0)
    for number in range(8):
        cells = [rng.bytes(18_000) for _ in range(num_rows)]
        columns = {"id": np.arange(num_rows), "label": [f"class {number}"] * num_rows, "image": cells}
        pq.write_table(
            pa.table(columns), folder / f"{number}.parquet", write_page_index=True, write_batch_size=100,
            data_page_size=MB, use_dictionary=["label"],
        )  # fmt: skip
    return folder


@needs_proc
@pytest.mark.parametrize("least", [True, False])
def test_large_row_groups_in_parts_are_within_the_budget_that_whole_ones_exceed(large_groups, least):
    window = 256 * MB // SCALE
    options = {"batch_size": 32, "shuffle": True, "shuffle_bytes": window, "workers": 2}
    budget = tightest(penstock.open(large_groups), **options) if least else 2 * window
    assert budget <= 2 * window
    found = weigh(large_groups, head=False, memory_bytes=budget, **options)
    assert found["refused"] is None
    assert found["peak_bytes"] < ALLOWED * budget
    assert "need at least" in weigh(large_groups, head=False, parts=False, memory_bytes=budget, **options)["refused"]


def small_rows(number):
    return [np.random.default_rng(number).bytes(1000)] * 100


@pytest.fixture(params=["heavy row", "heavy dictionary", "every dictionary", "bomb first", "bomb later", "nested bomb"])
def skewed(request, tmp_path):
    """Row groups that take much more memory than the first one or their files suggest, and whether they fit 64 MiB."""
    long = "x" * 3000
    for number in range(6):
        rows = {
            "heavy row": small_rows(number) if number != 4 else [*small_rows(4)[1:], b"x" * (150 * MB // SCALE)],
            "heavy dictionary": [b"x"] * 1000 if number != 4 else [b"x" * 8000] * 1000,
            "every dictionary": [long[:200]] * 20_000,
            "bomb first": [long] * 400_000 if number == 0 else ["x"] * 100,
            "bomb later": ["x"] * 100 if number < 4 else [long] * 400_000,
            "nested bomb": [["x"]] * 100 if number < 4 else [[long] * 4] * 100_000,
        }[request.param]
        pq.write_table(pa.table({"x": rows}), tmp_path / f"{number}.parquet")
    return tmp_path, request.param in ("heavy dictionary", "every dictionary")


@needs_proc
@pytest.mark.parametrize("shuffle", [True, False])
def test_row_groups_that_stand_out_are_within_the_budget_or_refused(skewed, shuffle):
    data, fits = skewed
    options = {"batch_size": 16, "shuffle": shuffle, "memory_bytes": 64 * MB, "shuffle_bytes": 8 * MB, "workers": 2}
    # What allocators keep for each thread varies by 20 MB from run to run. A budget that is not held fails always.
    for _ in range(3):
        found = weigh(data, head=False, **options)
        if found["peak_bytes"] < ALLOWED * 64 * MB:
            break
    assert found["peak_bytes"] < ALLOWED * 64 * MB
    assert (found["refused"] is None) == fits


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": 96}, {"batch_size": 4, "pool": "process"}])
def test_too_large_for_the_budget_is_an_error_that_names_the_least(large_rows, options):
    ds = penstock.open(large_rows)
    with pytest.raises(BudgetError, match=r"need at least [\d,]+ .*row group 0.*; raise memory_bytes, or") as caught:
        ds.loader(memory_bytes=MB, **options)
    with pytest.raises(BudgetError):
        ds.loader(memory_bytes=caught.value.least - 1, **options)
    ds.loader(memory_bytes=caught.value.least, **options).close()


@needs_proc
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("pool", "memory"), [("thread", 64 * MB), ("thread", 4 * MB), ("process", 64 * MB)])
def test_memory_does_not_grow_from_epoch_to_epoch(table, pool, memory, shuffle):
    epochs = depth(6, 20)
    data, options = str(table), {"batch_size": 1000, "shuffle_bytes": MB, "workers": 2}
    found = weigh(data, epochs, shuffle=shuffle, pool=pool, memory_bytes=memory, **options)["after_epoch"]
    assert found[-1] - found[2] < (epochs - 3) * MB, [one // 1024 for one in found]


@needs_proc
def test_memory_does_not_grow_with_transforms_that_make_arrays(tmp_path):
    data = make_parquet(tmp_path / "data", [[4000] * 25])
    epochs = depth(6, 20)
    for pool in ("thread", "process"):
        found = weigh(data, epochs, batch_size=1000, shuffle=True, pool=pool, workers=2, transform=True)["after_epoch"]
        assert found[-1] - found[2] < (epochs - 3) * MB, [one // 1024 for one in found]


# -- blocks of batches -------------------------------------------------------------------------------------------------


def test_a_block_is_used_again_once_nothing_refers_to_it():
    pool = BlockPool(keep=2)
    block = pool.lease(100_000)
    address, view = block.ctypes.data, block[50_000:].view(np.int16)[::2]
    del block
    other = pool.lease(100_000)
    assert other.ctypes.data != address, "a view keeps its block"
    del view
    assert pool.lease(100_000).ctypes.data == address


def test_free_blocks_are_bounded():
    pool = BlockPool(keep=3)
    kept = [pool.lease(MB) for _ in range(10)]
    kept.clear()
    assert _free_bytes(pool) == 3 * MB
    for size in range(1, 64):  # batches of many lengths, as damaged rows make them
        kept = [pool.lease(size << 16) for _ in range(3)]
        kept.clear()
    assert _free_bytes(pool) <= 2 * 3 * (63 << 16)
    pool.clear()
    assert not _free_bytes(pool)


def _free_bytes(pool):
    return sum(block.nbytes for free in pool._free.values() for block in free)
