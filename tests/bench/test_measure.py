"""`penstock bench`: a dataset of the user's own next to the least work by hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.bench import Limit, Workload, measure
from penstock.bench.measure import timed_only
from penstock.cli.main import main
from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from penstock.errors import PlanError
from tests.house import ROOT

SCHEMA = penstock.Unischema(
    "All",
    [
        penstock.UnischemaField("id", np.int32, (), ScalarCodec(), False),
        penstock.UnischemaField("jpeg", np.uint8, (16, 16, 3), CompressedImageCodec("jpeg"), False),
        penstock.UnischemaField("grey", np.uint8, (16, 16), CompressedImageCodec("jpeg"), False),
        penstock.UnischemaField("png", np.uint8, (8, 8), CompressedImageCodec("png"), True),
        penstock.UnischemaField("deep", np.uint16, (8, 8), CompressedImageCodec("png"), False),
        penstock.UnischemaField("cloud", np.float32, (5, 3), NdarrayCodec(), False),
        penstock.UnischemaField("free", np.float32, (None, 3), NdarrayCodec(), False),
        penstock.UnischemaField("packed", np.float64, (4,), CompressedNdarrayCodec(), False),
        penstock.UnischemaField("word", np.str_, (), ScalarCodec(), True),
        penstock.UnischemaField("price", Decimal, (), ScalarCodec(pa.decimal128(10, 2)), False),
    ],
)


def rows(count):
    rng = np.random.default_rng(0)
    for i in range(count):
        yield {
            "id": i,
            "jpeg": rng.integers(0, 256, (16, 16, 3), dtype=np.uint8),
            "grey": rng.integers(0, 256, (16, 16), dtype=np.uint8),
            "png": None if i % 7 == 3 else rng.integers(0, 256, (8, 8), dtype=np.uint8),
            "deep": rng.integers(0, 2**16, (8, 8), dtype=np.uint16),
            "cloud": rng.random((5, 3), np.float32),
            "free": rng.random((i % 4, 3), np.float32),
            "packed": rng.random(4),
            "word": None if i % 5 == 2 else f"word {i}",
            "price": Decimal(i) / 100,
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("bench") / "all"
    penstock.write(rows(120), where, schema=SCHEMA, row_group_bytes=20_000)
    return str(where)


def quick(**changes):
    return Workload(**{"options": {"batch_size": 16}, "seconds": 0.1, "warm_up_s": 0.05, "rounds": 2, **changes})


def test_the_limit_does_the_least_work_for_every_kind_of_column(folder):
    limit = Limit(penstock.open(folder), workers=2)
    text = limit.describe()
    assert "decoded into arrays: jpeg, grey, png" in text
    assert "decoded cell by cell: deep, free, packed" in text
    assert "cells copied without headers: cloud" in text
    assert "left in Arrow's memory: word, price" in text
    assert "as read: id" in text
    num_rows, seconds = limit.run(0.1, lambda: None)
    assert num_rows > 0
    assert seconds >= 0.1


def test_the_limit_reads_every_row_group_in_turn(tmp_path):
    table = pa.table({"id": range(100)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    limit = Limit(penstock.open(tmp_path), workers=1)
    assert sum(limit._read(next(limit._chunks)) for _ in range(15)) == 100
    assert limit._read(next(limit._chunks)) == 7


def test_partition_columns_alone_leave_nothing_to_read(tmp_path):
    (tmp_path / "day=1").mkdir()
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "day=1" / "a.parquet")
    limit = Limit(penstock.open(tmp_path, columns=["day"]), workers=1)
    assert "nothing is stored" in limit.describe()
    assert limit._read(0) == 2


def test_a_result_holds_rates_ratio_and_report(folder):
    result = measure(penstock.open(folder), quick(options={"batch_size": 16, "shuffle": True}))
    assert len(result.ours) == len(result.limit) == 2
    assert result.ratio == pytest.approx(np.median(np.array(result.ours) / np.array(result.limit)))
    assert result.first_s > 0
    text = str(result)
    assert re.search(r"^penstock, numpy +[\d,]+ rows/s", text, re.M)
    assert re.search(r"^limit, by hand +[\d,]+ rows/s", text, re.M)
    assert re.search(r"^ratio +\d+\.\d\d", text, re.M)
    assert "bottleneck" in text


def test_what_cannot_be_measured_is_told(tmp_path, folder):
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    with pytest.raises(PlanError, match="no rows"):
        measure(penstock.open(tmp_path), quick())
    with pytest.raises(PlanError, match="framework is one of"):
        quick(framework="mxnet")
    with pytest.raises(PlanError, match="at least 1"):
        quick(rounds=0)


def test_the_command_line_prints_text_or_json(folder, capsys):
    options = [folder, "--batch-size", "16", "--seconds", "0.1", "--warm-up", "0", "--rounds", "1", "--workers", "1"]
    assert main(["bench", *options]) == 0
    text = capsys.readouterr().out
    assert text.startswith("120 rows x 10 columns")
    assert "limit, by hand" in text
    assert main(["bench", *options, "--json", "--columns", "id,cloud", "--shuffle", "no"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["framework"] == "numpy"
    assert found["ratio"] == pytest.approx(found["rows_per_s"] / found["limit_rows_per_s"])


def test_a_mistake_is_one_line(tmp_path, capsys):
    assert main(["bench", str(tmp_path / "none")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("penstock: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("framework", ["numpy", "jax", "tensorflow"])
def test_a_device_is_for_torch_only(folder, framework, capsys):
    assert main(["bench", folder, "--framework", framework, "--device", "cpu"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("penstock: ")
    assert "--device needs the framework torch; got" in error
    assert error.count("\n") == 1


def test_an_error_of_tensorflow_is_one_line(tmp_path, capsys):
    pytest.importorskip("tensorflow")
    pq.write_table(pa.table({"t": pa.array([["a", None]])}), tmp_path / "a.parquet")
    assert main(["bench", str(tmp_path), "--framework", "tensorflow", "--rounds", "1"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("penstock: InvalidArgumentError: SchemaError: column 't' has a null inside a row's list")
    assert "Traceback" not in error


def test_a_number_of_batches_is_measured_instead_of_seconds(folder):
    seen = []

    def count(batch):
        seen.append(len(batch["id"]))
        return batch

    options = {"batch_size": 16, "transform": count, "pool": "serial"}
    task = quick(options=options, batches=5, seconds=1e9, warm_up_s=0.0, rounds=1)
    result = measure(penstock.open(folder), task)
    assert len(seen) == 1 + 1 + 5  # the first one, one of the warm-up, and those that are timed
    assert result.ours[0] > 0


def test_the_bytes_of_a_row_are_those_of_the_batch(tmp_path):
    penstock.write({"id": np.arange(50, dtype=np.int32), "x": np.ones((50, 4), np.float64)}, tmp_path / "d")
    result = measure(penstock.open(tmp_path / "d"), quick(rounds=1))
    assert result.row_bytes == 4 + 4 * 8
    assert result.to_json()["mb_per_s"] == pytest.approx(result.ours[0] * 36 / 1e6)
    assert re.search(r"rows/s +[\d,.]+ MB/s", str(result))


def test_the_report_leaves_the_warm_up_out(tmp_path):
    penstock.write({"x": np.arange(100)}, tmp_path / "d")
    ds = penstock.open(tmp_path / "d")
    with ds.loader(batch_size=10) as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        warm = loader.stats()
        for _ in range(3):
            next(batches)
        whole, report = loader.report(), timed_only(loader.report(), warm)
        assert (whole.steps.first, len(whole.steps)) == (1, 7)
        assert (report.steps.first, len(report.steps)) == (5, 3)
        np.testing.assert_array_equal(report.steps.wait_s, whole.steps.wait_s[4:])
        np.testing.assert_array_equal(report.steps.stage_s["read"], whole.steps.stage_s["read"][4:])
        assert report.steps.bytes_read == loader.stats()["bytes_read"] - warm["bytes_read"]
        assert "the last 3 of 7 steps" in str(report)
        none = timed_only(loader.report(), loader.stats())  # all was prefetched before: the last step stands for it
        assert len(none.steps) == 1


def test_it_runs_as_a_module(folder):
    command = [sys.executable, "-m", "penstock.bench", folder, "--seconds", "0.1", "--warm-up", "0", "--rounds", "1"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120, env=environment()
    )
    assert done.returncode == 0, done.stderr
    assert "ratio" in done.stdout


def environment():
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def test_the_limit_runs_for_a_while_where_a_few_batches_are_measured(folder, monkeypatch):
    asked, run = [], Limit.run

    def spy(limit, seconds, tick):
        asked.append(seconds)
        return run(limit, min(seconds, 0.05), tick)

    monkeypatch.setattr(Limit, "run", spy)
    result = measure(penstock.open(folder), quick(batches=1, seconds=3.0, warm_up_s=0.0, rounds=1))
    assert min(asked) >= 0.5
    assert "s only, mostly with batches that were ready before: measure more" in str(replace(result, timed_s=0.01))
    assert "ready before" not in str(replace(result, timed_s=3.0))
