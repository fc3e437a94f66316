"""`penstock.jax`: arrays on the device or over a mesh, in the engine's order, with its state."""

from __future__ import annotations

import datetime
import gc
import json
import os
import socket
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

import penstock  # noqa: E402
from penstock.errors import LoaderClosed, PlanError, SchemaError  # noqa: E402
from penstock.jax import loader  # noqa: E402
from penstock.testing import assert_resumes_exactly  # noqa: E402
from tests.house import ROOT  # noqa: E402

P = jax.sharding.PartitionSpec


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("jax") / "train"
    rng = np.random.default_rng(0)
    columns = {
        "id": np.arange(200, dtype=np.int32),
        "image": rng.integers(0, 256, (200, 4, 4), dtype=np.uint8),
        "x": rng.random((200, 3), np.float32),
        "even": np.arange(200) % 2 == 0,
    }
    penstock.write(columns, where, row_group_bytes=1000)
    return str(where)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Kinds that JAX has and has not, some with nulls."""
    where = tmp_path_factory.mktemp("jax") / "mixed.parquet"
    table = pa.table(
        {
            "id": pa.array(range(6), pa.int64()),
            "x": pa.array([0.5, None, 1.5, 2.5, None, 3.5], pa.float32()),
            "n": pa.array([1, 2, 3, 4, None, 6], pa.int16()),
            "text": pa.array(["a", None, "c", "d", "e", "f"]),
            "when": pa.array([datetime.datetime(2020, 1, day) for day in range(1, 7)], pa.timestamp("us")),
            "words": pa.array([[1], [], [2, 3], None, [4], [5]], pa.list_(pa.int32())),
        }
    )
    pq.write_table(table, where)
    return str(where)


def same(ours, batch):
    assert list(ours) == list(batch)
    for name, values in batch.items():
        assert isinstance(ours[name], jax.Array)
        assert ours[name].dtype == values.dtype
        np.testing.assert_array_equal(np.asarray(ours[name]), values)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_of_the_engine_as_jax_arrays(folder, shuffle, prefetch):
    options = {"batch_size": 32, "shuffle": shuffle, "seed": 3, "epochs": 2}
    with penstock.open(folder).loader(**options) as plain, loader(folder, prefetch=prefetch, **options) as ours:
        assert len(ours) == len(plain) == 14
        kept = list(ours)  # all held at once: memory used again too early would show
        for one, batch in zip(kept, plain, strict=True):
            same(one, batch)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="arrays live on the device")
def test_an_aligned_batch_shares_its_memory(folder):
    held = []

    def keep(batch):
        held.append(batch["image"])
        return batch

    with loader(folder, batch_size=50, transform=keep, columns=["image"], workers=1) as ours:
        batches = list(ours)
    addresses = {array.ctypes.data for array in held}
    assert {batch["image"].unsafe_buffer_pointer() for batch in batches} <= addresses


def test_a_dataset_is_taken_as_it_is_and_columns_and_filters_choose(folder):
    ds = penstock.open(folder)
    with loader(ds, batch_size=10, columns=["x", "id"], filters=[("id", "<", 25)]) as ours:
        batches = list(ours)
    assert [list(batch) for batch in batches] == [["x", "id"]] * 3
    assert [int(i) for batch in batches for i in batch["id"]] == list(range(25))
    with pytest.raises(PlanError, match="open already"):
        loader(ds, batch_size=10, storage_options={"anon": True})


def test_wrong_options_are_told(folder):
    with pytest.raises(PlanError, match="prefetch"):
        loader(folder, batch_size=10, prefetch=-1)
    with pytest.raises(PlanError, match="nulls"):
        loader(folder, batch_size=10, nulls="fill")
    with pytest.raises(PlanError, match="sharding takes"):
        loader(folder, batch_size=10, sharding="cpu")


# -- types ----------------------------------------------------------------------------------------------------------


def test_what_jax_has_no_dtype_for_stays_on_the_host(mixed):
    with loader(mixed, batch_size=6) as ours, penstock.open(mixed).loader(batch_size=6) as plain:
        [batch], [host] = list(ours), list(plain)
    assert list(batch) == ["id", "x", "x_valid", "n", "n_valid", "text", "when", "words"]
    assert batch["text"].tolist() == ["a", None, "c", "d", "e", "f"]
    np.testing.assert_array_equal(batch["when"], host["when"])
    assert isinstance(batch["words"], list)
    assert batch["words"][3] is None


def test_nulls_come_filled_with_a_mask(mixed):
    with loader(mixed, batch_size=3) as ours:
        first, second = list(ours)
    assert first["x_valid"].tolist() == [True, False, True]
    assert np.isnan(np.asarray(first["x"])).tolist() == [False, True, False]
    assert first["n_valid"].all(), "the keys of a batch do not depend on its rows"
    assert second["n"].tolist() == [4, 0, 6]
    assert second["n_valid"].tolist() == [True, False, True]


def test_named_columns_have_a_mask_in_every_batch(mixed):
    with loader(mixed, batch_size=3, nulls=["x", "n"], columns=["id", "x", "n"]) as ours:
        batches = list(ours)
    assert len({tuple(batch) for batch in batches}) == 1
    assert batches[0]["n_valid"].tolist() == [True] * 3


@pytest.mark.parametrize("nulls", ["error", ["n"]])
def test_nulls_may_be_refused(mixed, nulls):
    with loader(mixed, batch_size=3, nulls=nulls) as ours, pytest.raises(SchemaError, match="column 'x' has nulls"):
        list(ours)


@pytest.mark.parametrize("column", ["text", "words"])
def test_a_null_that_stays_on_the_host_is_refused_too(mixed, column):
    with loader(mixed, batch_size=6, columns=[column]) as ours:
        assert len(list(ours)) == 1
    with loader(mixed, batch_size=6, columns=[column], nulls=[column]) as ours:
        assert list(next(iter(ours))) == [column, f"{column}_valid"]
    with (
        loader(mixed, batch_size=6, columns=[column], nulls="error") as ours,
        pytest.raises(SchemaError, match=f"column '{column}' has nulls"),
    ):
        list(ours)


def test_the_name_of_a_mask_must_be_free(tmp_path):
    pq.write_table(pa.table({"x": pa.array([1, None]), "x_valid": [1, 2]}), tmp_path / "t.parquet")
    with pytest.raises(PlanError, match="'x_valid' already"):
        loader(tmp_path, batch_size=2, nulls=["x"])
    with loader(tmp_path, batch_size=2) as ours, pytest.raises(SchemaError, match="'x_valid'"):
        list(ours)
    with (
        loader(tmp_path, batch_size=2, columns=["x_valid", "x"]) as ours,
        pytest.raises(SchemaError, match="'x_valid'"),
    ):
        list(ours)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([1, -(2**31), 2**31 - 1]), np.int32),
        (np.array([1, 2**32 - 1], np.uint64), np.uint32),
        (np.array([0.1, np.inf, np.nan]), np.float32),
    ],
)
def test_64_bits_become_32_where_they_fit(tmp_path, values, dtype):
    penstock.write({"x": values}, tmp_path / "d")
    with loader(tmp_path / "d", batch_size=10) as ours:
        [batch] = list(ours)
    assert batch["x"].dtype == dtype
    np.testing.assert_array_equal(np.asarray(batch["x"]), values.astype(dtype))


@pytest.mark.parametrize("values", [np.array([1, 2**40]), np.array([2**32], np.uint64), np.array([1.0, 1e300])])
def test_64_bits_that_do_not_fit_are_an_error_and_not_another_number(tmp_path, values):
    penstock.write({"x": values}, tmp_path / "d")
    with loader(tmp_path / "d", batch_size=10) as ours, pytest.raises(SchemaError, match="jax_enable_x64"):
        list(ours)
    jax.config.update("jax_enable_x64", True)
    try:
        with loader(tmp_path / "d", batch_size=10) as ours:
            [batch] = list(ours)
        np.testing.assert_array_equal(np.asarray(batch["x"]), values)
    finally:
        jax.config.update("jax_enable_x64", False)


def test_batches_go_through_jit(folder):
    @jax.jit
    def total(batch):
        return {name: values.astype("float32").sum() for name, values in batch.items()}

    with loader(folder, batch_size=40, shuffle=True) as ours:
        assert sum(float(total(batch)["id"]) for batch in ours) == sum(range(200))


# -- passes and state -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 2])
def test_it_resumes_exactly(folder, prefetch):
    def make():
        return loader(folder, batch_size=23, shuffle=True, seed=5, epochs=2, prefetch=prefetch, columns=["id", "x"])

    assert_resumes_exactly(make)


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_state_counts_what_was_received_not_what_was_prefetched(folder, shuffle):
    options = {"batch_size": 10, "shuffle": shuffle, "epochs": 2}
    with penstock.open(folder).loader(**options) as plain, loader(folder, prefetch=4, **options) as ours:
        for step, (_, _) in enumerate(zip(ours, plain, strict=True)):
            if step in (2, 19, 20, 38):
                wait_for(ours)
            assert ours.state_dict() == plain.state_dict()
            assert len(ours) == len(plain)


def wait_for(ours):
    """Give the engine time to have batches ready, so that there is something to prefetch."""
    for _ in range(100):
        if ours.native.num_waiting() > 4:
            return
        threading.Event().wait(0.01)


def test_a_state_of_numpy_batches_resumes_here_and_back(folder):
    ds = penstock.open(folder)
    with ds.loader(batch_size=32, shuffle=True) as plain:
        iterator = iter(plain)
        seen = next(iterator)["id"].tolist()
        state = json.loads(json.dumps(plain.state_dict()))
    with loader(ds, batch_size=24, shuffle=True) as ours:
        ours.load_state_dict(state)
        iterator = iter(ours)
        seen += next(iterator)["id"].tolist()
        state = ours.state_dict()
    with ds.loader(batch_size=50, shuffle=True) as plain:
        plain.load_state_dict(state)
        seen += [int(i) for batch in plain for i in batch["id"]]
    assert sorted(seen) == list(range(200))


def test_break_and_iterate_again_starts_the_next_pass(folder):
    options = {"batch_size": 16, "shuffle": True}
    with penstock.open(folder).loader(**options) as plain, loader(folder, **options) as ours:
        for _ in range(3):
            for one in (plain, ours):
                for step, _ in enumerate(one):
                    if step == 5:
                        break
        assert ours.state_dict() == plain.state_dict()
        assert [b["id"].tolist() for b in ours] == [b["id"].tolist() for b in plain]


def test_an_old_iterator_ends_when_a_new_one_begins(folder):
    with loader(folder, batch_size=10, prefetch=4) as ours:
        old = iter(ours)
        next(old)
        wait_for(ours)
        next(old)  # prefetches
        new = iter(ours)
        next(new)
        state = ours.state_dict()
        with pytest.raises(LoaderClosed, match="another one was made"):
            next(old)
        assert ours.state_dict() == state
        assert len(list(new)) == 19


def test_no_thread_is_left(folder):
    before = threading.active_count()
    with loader(folder, batch_size=10) as ours:
        assert threading.active_count() == before
        for _ in ours:
            break
        gc.collect()
        assert threading.active_count() == before
        iterator = iter(ours)
        next(iterator)
    assert threading.active_count() == before
    with pytest.raises(LoaderClosed):
        next(iterator)
    with pytest.raises(LoaderClosed):
        iter(ours)


def test_an_error_comes_after_the_batches_before_it(folder):
    def fail(batch):
        if 95 in batch["id"]:
            raise ValueError("95")
        return batch

    with loader(folder, batch_size=10, transform=fail, prefetch=4) as ours:
        iterator = iter(ours)
        for _ in range(9):
            next(iterator)
            wait_for(ours)
        with pytest.raises(penstock.errors.TransformError, match="95"):
            next(iterator)
        assert ours.batches_left == 11
        assert ours.state_dict()["left"] == [[90, 200]]


def test_stats_plan_and_report_are_those_of_the_engine(folder):
    with loader(folder, batch_size=10) as ours:
        assert sum(1 for _ in ours) == 20
        assert ours.stats()["rows"] == 200
        assert ours.plan.num_steps == 20
        assert ours.skipped == []
        assert (ours.rank, ours.world) == (0, 1)
        assert "penstock.jax.Loader" in repr(ours)


# -- shardings: in processes of their own, which have several devices ------------------------------------------------


def run(code, *, devices, processes=1, argument=""):
    """Run code in processes with several CPU devices each; returns what each has printed last, as JSON."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    command = [sys.executable, "-c", textwrap.dedent(HEAD) + textwrap.dedent(code), argument, str(port), str(processes)]
    started = [
        subprocess.Popen([*command, str(n)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for n in range(processes)
    ]
    results = []
    try:
        for one in started:
            out, err = one.communicate(timeout=120)
            assert one.returncode == 0, err[-3000:]
            results.append(json.loads(out.splitlines()[-1]))
    finally:
        for one in started:
            one.kill()
            one.communicate()
    return results


HEAD = """
    import json, sys
    import numpy as np, jax
    folder, port, processes, process = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import penstock
    from penstock.errors import PlanError
    from penstock.jax import loader
    from penstock.jax._convert import part_of

    def ids(array):
        return sorted((s.index[0].start or 0, np.asarray(s.data).tolist()) for s in array.addressable_shards)

    def refused(**options):
        try:
            loader(folder, **options)
        except PlanError as error:
            return str(error)
"""


def test_a_batch_is_laid_out_over_the_devices_of_a_process(folder):
    code = """
        mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
        rows = NamedSharding(mesh, P("data", None))
        with loader(folder, batch_size=8, sharding=rows, drop_last=True) as ours:
            batch = next(iter(ours))
        assert batch["x"].sharding.is_equivalent_to(rows, 2)
        assert batch["id"].sharding.is_equivalent_to(NamedSharding(mesh, P("data")), 1)
        assert batch["image"].sharding.spec == P("data", None)
        some = {"x": NamedSharding(mesh, P("data", None)), "id": NamedSharding(mesh, P("data"))}
        with loader(folder, batch_size=8, sharding=some, drop_last=True) as ours:
            other = next(iter(ours))
        assert len(other["x"].sharding.device_set) == 4 and len(other["image"].sharding.device_set) == 1
        with loader(folder, batch_size=8, sharding=jax.devices()[2]) as ours:
            assert next(iter(ours))["x"].devices() == {jax.devices()[2]}
        print(json.dumps([ids(batch["id"]), refused(batch_size=7, sharding=rows), refused(batch_size=66, sharding=rows),
                          refused(batch_size=67, sharding=rows), part_of(rows).num_shards]))
    """
    [[shards, odd, fits, last, num_shards]] = run(code, devices=4, argument=folder)
    assert shards == [[0, [0, 1, 2, 3]]] * 2 + [[4, [4, 5, 6, 7]]] * 2
    assert "a batch of 7 rows does not divide among 2 shards" in odd
    assert fits is None
    assert "67 rows" in last
    assert num_shards == 2


def test_the_last_batch_of_an_epoch_must_divide_too(folder):
    code = """
        rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
        print(json.dumps(refused(batch_size=36, filters=[("id", "<", 199)], sharding=rows)))
    """
    [text] = run(code, devices=4, argument=folder)
    assert "19 rows" in text
    assert "drop_last=True" in text


def test_processes_read_their_parts_of_a_global_array(folder):
    code = """
        mesh = Mesh(np.array(jax.devices()), ("data",))
        rows = NamedSharding(mesh, P("data"))
        with loader(folder, batch_size=8, sharding=rows, shuffle=True, seed=1, drop_last=True) as ours:
            batches = list(ours)
            assert (ours.rank, ours.world) == (process, processes)
        assert all(batch["x"].shape == (16, 3) for batch in batches)
        assert not batches[0]["x"].is_fully_addressable
        print(json.dumps([[ids(batch["id"]) for batch in batches],
                          refused(batch_size=8, sharding=rows, remainder="uneven"),
                          refused(batch_size=8, sharding=rows, on_error="skip"),
                          refused(batch_size=8, sharding=rows, rank=0, world=3)]))
    """
    results = run(code, devices=2, processes=2, argument=folder)
    found = [[[i for _, part in batch for i in part] for batch in batches] for batches, *_ in results]
    for rank in range(2):
        with penstock.open(folder).loader(
            batch_size=8, shuffle=True, seed=1, rank=rank, world=2, drop_last=True
        ) as plain:
            assert found[rank] == [batch["id"].tolist() for batch in plain]
        assert [start for start, _ in results[rank][0][0]] == [8 * rank, 8 * rank + 4]
        assert ["uneven" in results[rank][1], "skip" in results[rank][2], "world=3" in results[rank][3]] == [True] * 3


def test_processes_that_share_rows_read_the_same_part(folder):
    code = """
        mesh = Mesh(np.array(jax.devices()).reshape(2, 2).T, ("data", "model"))       # model crosses the processes
        rows = NamedSharding(mesh, P("data"))
        with loader(folder, batch_size=8, sharding=rows) as ours:
            world, batch = ours.world, next(iter(ours))
        with loader(folder, batch_size=8) as ours:                                    # without: by process index
            alone = ours.rank, ours.world, next(iter(ours))["id"].tolist()
        print(json.dumps([world, batch["x"].shape, ids(batch["id"]), alone]))
    """
    results = run(code, devices=2, processes=2, argument=folder)
    for rank, (world, shape, shards, alone) in enumerate(results):
        assert (world, shape) == (1, [8, 3])
        assert shards == [[0, [0, 1, 2, 3]], [4, [4, 5, 6, 7]]]
        assert alone == [rank, 2, list(range(100 * rank, 100 * rank + 8))]
