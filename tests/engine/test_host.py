"""Rank, world, cores and memory come from arguments, else frameworks, launchers and cgroups; nothing is imported."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from types import SimpleNamespace

import pytest

import penstock
from penstock.engine import host
from penstock.engine import rank as ranks
from penstock.errors import PenstockWarning, PlanError
from penstock.options import MEMORY_BYTES
from penstock.testing import make_parquet

LAUNCHERS = {
    "torchrun": {"RANK": "2", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"},
    "openmpi": {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
    "pmi": {"PMI_RANK": "2", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "4"},
    "horovod": {"HOROVOD_RANK": "2", "HOROVOD_SIZE": "8", "HOROVOD_LOCAL_SIZE": "4"},
    "slurm": {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "8"},
}


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """A host without a launcher, frameworks or cgroup."""
    for name in {name for one in LAUNCHERS.values() for name in one}:
        monkeypatch.delenv(name, raising=False)
    for module in ("torch", "jax"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(ranks, "_announced", {})
    monkeypatch.setattr(host, "_read", lambda name: None)


@pytest.fixture
def environment(monkeypatch):
    def put(values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return put


def files(monkeypatch, found):
    monkeypatch.setattr(host, "_read", found.get)


def torch(monkeypatch, *, initialized, available=True):
    distributed = SimpleNamespace(
        is_available=lambda: available, is_initialized=lambda: initialized, get_rank=lambda: 3, get_world_size=lambda: 5
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))


def jax(monkeypatch, *, initialized):
    distributed = SimpleNamespace(is_initialized=lambda: initialized)
    stand_in = SimpleNamespace(distributed=distributed, process_index=lambda: 1, process_count=lambda: 7)
    monkeypatch.setitem(sys.modules, "jax", stand_in)


# -- rank and world ----------------------------------------------------------------------------------------------------


def test_alone_by_default():
    assert ranks.rank_and_world(None, None) == (0, 1)


def test_arguments_win(environment, monkeypatch):
    environment(LAUNCHERS["torchrun"])
    torch(monkeypatch, initialized=True)
    assert ranks.rank_and_world(1, 3) == (1, 3)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers(environment, launcher):
    environment(LAUNCHERS[launcher])
    assert ranks.rank_and_world(None, None) == (2, 8)


def test_a_batch_script_of_slurm_is_not_a_step(environment):
    environment({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"})
    assert ranks.rank_and_world(None, None) == (0, 1)


@pytest.mark.parametrize(("rank", "world"), [("8", "8"), ("-1", "8"), ("two", "8"), ("0", "0"), ("", "8")])
def test_an_environment_that_makes_no_sense_is_refused(environment, rank, world):
    environment({"RANK": rank, "WORLD_SIZE": world})
    with pytest.raises(PlanError, match=r"RANK and WORLD_SIZE are .* pass rank= and world="):
        ranks.rank_and_world(None, None)


def test_torch_comes_before_the_environment(environment, monkeypatch):
    environment(LAUNCHERS["torchrun"])
    torch(monkeypatch, initialized=True)
    assert ranks.rank_and_world(None, None) == (3, 5)


@pytest.mark.parametrize("state", [{"initialized": False}, {"initialized": False, "available": False}])
def test_torch_that_is_not_initialized_says_nothing(environment, monkeypatch, state):
    environment(LAUNCHERS["openmpi"])
    torch(monkeypatch, **state)
    assert ranks.rank_and_world(None, None) == (2, 8)


def test_torch_without_distributed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert ranks.rank_and_world(None, None) == (0, 1)


@pytest.mark.parametrize(("initialized", "found"), [(True, (1, 7)), (False, (0, 1))])
def test_jax(monkeypatch, initialized, found):
    jax(monkeypatch, initialized=initialized)
    assert ranks.rank_and_world(None, None) == found


def test_rank_and_world_belong_together(tmp_path):
    ds = penstock.open(make_parquet(tmp_path / "data"))
    with pytest.raises(PlanError, match="needs world="):
        ds.loader(batch_size=1, rank=0)
    with pytest.raises(PlanError, match="needs rank="):
        ds.loader(batch_size=1, world=2)
    assert ds.loader(batch_size=1, world=1).world == 1


def test_where_the_rank_comes_from_is_logged_once(environment, caplog):
    environment(LAUNCHERS["horovod"])
    with caplog.at_level(logging.INFO, logger=ranks.__name__):
        ranks.rank_and_world(None, None)
        ranks.rank_and_world(None, None)
    assert [record.getMessage() for record in caplog.records] == [
        "rank 2 of 8, from the environment variables HOROVOD_RANK and HOROVOD_SIZE; pass rank= and world= to override"
    ]


def test_rank_0_warns_once_that_it_reads_a_part(environment, monkeypatch, tmp_path):
    environment({"RANK": "0", "WORLD_SIZE": "8"})
    ds = penstock.open(make_parquet(tmp_path / "data", [[5] * 8]))
    with pytest.warns(PenstockWarning, match="each rank reads 1/8 of the rows: according to .* RANK and") as caught:
        ds.loader(batch_size=1).close()
    assert [warning.filename for warning in caught] == [__file__]
    assert "rank=0, world=1" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PenstockWarning)
        ds.loader(batch_size=1).close()
        environment({"PMI_RANK": "0", "PMI_SIZE": "8"})  # found elsewhere now: still once a process
        monkeypatch.delenv("RANK")
        ds.loader(batch_size=1).close()


@pytest.mark.parametrize("given", [{"rank": 0, "world": 1}, {"rank": 0, "world": 8}, {"world": 1}])
def test_rank_and_world_as_arguments_silence_the_warning(environment, tmp_path, given):
    environment({"RANK": "0", "WORLD_SIZE": "8"})
    ds = penstock.open(make_parquet(tmp_path / "data", [[5] * 8]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", PenstockWarning)
        with ds.loader(batch_size=1, **given) as loader:
            assert (loader.rank, loader.world) == (0, given["world"])


@pytest.mark.parametrize("variables", [{"RANK": "1", "WORLD_SIZE": "8"}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_other_ranks_and_a_world_of_one_do_not_warn(environment, tmp_path, variables):
    environment(variables)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PenstockWarning)
        penstock.open(make_parquet(tmp_path / "data", [[5] * 8])).loader(batch_size=1).close()


def test_rank_and_world_can_be_looked_up(environment):
    assert ranks.find_rank() is None
    environment(LAUNCHERS["slurm"])
    assert ranks.find_rank() == (2, 8, "the environment variables SLURM_PROCID and SLURM_STEP_NUM_TASKS")


def test_a_loader_takes_the_launchers_rank(environment, tmp_path):
    environment(LAUNCHERS["torchrun"])
    with penstock.open(make_parquet(tmp_path / "data", [[16]])).loader(batch_size=1) as loader:
        assert (loader.rank, loader.world) == (2, 8)
        assert [int(batch["id"][0]) for batch in loader] == [4, 5]


# -- cores and memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_of_this_host_share_it(environment, monkeypatch, launcher):
    monkeypatch.setattr(host, "cores", lambda: 9)
    monkeypatch.setattr(host, "memory_limit", lambda: 8 << 30)
    environment(LAUNCHERS[launcher])
    here = 1 if launcher == "slurm" else 4
    assert host.ranks_here() == here
    assert host.default_workers() == 9 // here
    assert host.default_memory() == min(MEMORY_BYTES, (4 << 30) // here)


def test_more_ranks_than_cores_still_have_one_worker(environment, monkeypatch):
    monkeypatch.setattr(host, "cores", lambda: 2)
    environment(LAUNCHERS["torchrun"])
    assert host.default_workers() == 1


@pytest.mark.parametrize(
    ("found", "cores"),
    [
        ({}, 6),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, 6),
        ({"/sys/fs/cgroup/cpu.max": "250000 100000"}, 2),
        ({"/sys/fs/cgroup/cpu.max": "10000 100000"}, 1),
        ({"/sys/fs/cgroup/cpu.max": "1600000 100000"}, 6),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 6),
    ],
)
def test_cores(monkeypatch, found, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    files(monkeypatch, found)
    assert host.cores() == cores


def test_cores_without_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert host.cores() == 1


@pytest.mark.parametrize(
    ("found", "limit"),
    [
        ({}, 64 << 30),
        ({"/sys/fs/cgroup/memory.max": "max"}, 64 << 30),
        ({"/sys/fs/cgroup/memory.max": str(2 << 30)}, 2 << 30),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": str(1 << 30)}, 1 << 30),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": str(9223372036854771712)}, 64 << 30),
    ],
)
def test_memory(monkeypatch, found, limit):
    monkeypatch.setattr(os, "sysconf_names", {"SC_PHYS_PAGES": 1}, raising=False)
    monkeypatch.setattr(
        os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else (64 << 30) // 4096, raising=False
    )
    files(monkeypatch, found)
    assert host.memory_limit() == limit
    assert host.default_memory() == min(MEMORY_BYTES, limit // 2)


def test_memory_of_a_host_that_says_nothing(monkeypatch):
    monkeypatch.setattr(os, "sysconf_names", {}, raising=False)
    assert host.memory_limit() is None
    assert host.default_memory() == MEMORY_BYTES


def test_files_that_cannot_be_read_say_nothing(tmp_path, monkeypatch):
    monkeypatch.undo()
    (tmp_path / "odd").write_bytes(b"\xff\xfe")
    assert host._read(str(tmp_path / "odd")) is None
    assert host._read(str(tmp_path / "missing")) is None
