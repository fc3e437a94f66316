"""Petastorm's measurements, on datasets of ours: how fast a reader is and how well it shuffles."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import penstock
from penstock.bench.measure import peak_bytes
from penstock.petastorm.benchmark import cli
from penstock.petastorm.benchmark.throughput import (
    BenchmarkResult,
    ReadMethod,
    WorkerPoolType,
    reader_throughput,
)
from penstock.petastorm.etl.dataset_metadata import load_row_groups
from penstock.petastorm.test_util.shuffling_analysis import (
    compute_correlation_distribution,
    generate_shuffle_analysis_dataset,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A dataset of 1,000 numbered rows in ten row groups."""
    generate_shuffle_analysis_dataset(None, f"file://{tmp_path}/numbers", num_rows=1000, row_group_size=100)
    return f"file://{tmp_path}/numbers"


def test_the_dataset_for_shuffling_is_cut_as_asked(url: str) -> None:
    assert [group.num_rows for group in load_row_groups(url)] == [100] * 10
    assert penstock.open(url).take(range(1000))["id"].tolist() == list(range(1000))


def test_shuffled_orders_have_less_correlation_than_stored_ones(url: str) -> None:
    mean, deviation = compute_correlation_distribution(url, "id", 1, num_corr_samples=10)
    assert 0 < mean < 0.7
    assert 0 < deviation < 0.5
    assert (mean, deviation) == compute_correlation_distribution(url, "id", 1, num_corr_samples=10)


def test_dropping_parts_of_row_groups_shuffles_more(url: str) -> None:
    mean, _ = compute_correlation_distribution(url, "id", 5, num_corr_samples=10)
    assert 0 < mean < 0.5


@pytest.mark.parametrize("pool", list(WorkerPoolType))
def test_a_reader_is_measured(url: str, pool: WorkerPoolType) -> None:
    result = reader_throughput(url, ["id"], 10, 1500, pool, loaders_count=1, spawn_new_process=False)
    assert isinstance(result, BenchmarkResult)
    assert result.samples_per_second > 0
    assert result.time_mean == pytest.approx(1 / result.samples_per_second)
    assert result.memory_info.rss > 1 << 20
    assert result.cpu > 0


def test_it_is_measured_in_a_process_of_its_own(url: str) -> None:
    result = reader_throughput(url, None, 1, 20, reader_extra_args={"shuffle_row_groups": False})
    assert result.samples_per_second > 0


@pytest.mark.parametrize("queue", [0, 50])
def test_rows_as_tensors_are_measured(url: str, queue: int) -> None:
    pytest.importorskip("tensorflow")
    options: dict[str, Any] = {
        "warmup_cycles_count": 10,
        "measure_cycles_count": 1500,
        "read_method": ReadMethod.TF,
        "shuffling_queue_size": queue,
    }
    result = reader_throughput(url, ["id"], spawn_new_process=False, **options)
    assert result.samples_per_second > 0


def test_what_cannot_be_measured_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ImportError, match=r"penstock\[tensorflow\]"):
        reader_throughput(url, read_method=ReadMethod.TF, spawn_new_process=False)
    with pytest.raises(ValueError, match="cannot measure 0 rows"):
        reader_throughput(url, measure_cycles_count=0)


def test_the_command_line_prints_three_numbers(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main([url, "-n", "50", "-m", "5", "-w", "1", "-p", "dummy", "--field-regex", "i.", "-d", "python"])
    text = capsys.readouterr().out
    assert text.startswith("Average sample read rate: ")
    assert "samples/sec; RAM " in text
    assert text.endswith("%\n")
    with pytest.raises(SystemExit):
        cli.main([url, "-p", "fibres"])
    assert "--pool-type" in capsys.readouterr().err


def test_memory_is_told_without_psutil_too() -> None:
    pytest.importorskip("resource")
    assert peak_bytes() > 1 << 20
    assert np.iinfo(np.int64).max > peak_bytes()
