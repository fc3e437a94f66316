"""The benchmarks run, on little data and with nobody watching the clock."""

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("sklearn", reason="the benchmark's images come from scikit-learn and scikit-image")
pytest.importorskip("skimage", reason="the benchmark's images come from scikit-learn and scikit-image")
pytest.importorskip("cv2", reason="the benchmark's images are encoded with OpenCV")

BENCH = Path(__file__).resolve().parents[2] / "bench"
TINY = {
    "p_jpeg": (26, 9, 2),
    "p_mnist": (60, 25, 2),
    "p_mnistpng": (60, 25, 2),
    "p_hello": (7, 3, 2),
    "p_lidar": (20, 6, 2),
    "wide": (50, 20, 2),
    "table": (300, 40, 3),
    "small_files": (60, 10, 6),
    "resume10m": (2_000, 100, 4),
}
"""Rows, rows of a row group, files."""


def load(name: str) -> ModuleType:
    """Import a script of bench/ as the scripts import each other."""
    sys.path.insert(0, str(BENCH))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(BENCH))


data, cases, limit, ours, run, resume = map(load, ("data", "cases", "limit", "ours", "run", "resume"))
user = load("petastorm_user")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bench")
    for dataset in data.DATASETS:
        rows, group_rows, files = TINY[dataset.name]
        data.generate(dataclasses.replace(dataset, rows=rows, group_rows=group_rows, files=files), root)
    return root


@pytest.fixture
def keep_cpu_count() -> Iterator[None]:
    count = pa.cpu_count()
    yield
    pa.set_cpu_count(count)


def test_every_dataset_has_its_rows_and_row_groups(folder: Path) -> None:
    for name, (rows, group_rows, files) in TINY.items():
        footers = [pq.read_metadata(path) for path in sorted((folder / name).glob("*.parquet"))]
        assert len(footers) == files
        assert sum(footer.num_rows for footer in footers) == rows
        groups = [footer.row_group(g).num_rows for footer in footers for g in range(footer.num_row_groups)]
        assert max(groups) == group_rows
        assert pq.read_metadata(folder / name / "_common_metadata").num_row_groups == 0


def test_datasets_are_as_published() -> None:
    facts = {d.name: (d.rows, -(-d.rows // d.group_rows), len(d.columns)) for d in data.DATASETS}
    assert facts["p_jpeg"] == (6_000, 28, 3)
    assert facts["table"] == (2_000_000, 40, 40)
    assert facts["wide"] == (200_000, 40, 1_000)
    assert facts["resume10m"] == (10_000_000, 1_000, 8)
    assert data.find("small_files").files == 3_678


def test_data_is_the_same_every_time(folder: Path, tmp_path: Path) -> None:
    rows, group_rows, files = TINY["p_jpeg"]
    again = data.generate(
        dataclasses.replace(data.find("p_jpeg"), rows=rows, group_rows=group_rows, files=files), tmp_path
    )
    for path in sorted(again.iterdir()):
        assert path.read_bytes() == (folder / "p_jpeg" / path.name).read_bytes()


def test_a_dataset_that_is_there_is_left_alone(folder: Path) -> None:
    before = (folder / "table" / "part-00000.parquet").stat().st_mtime_ns
    data.generate(data.find("table"), folder)
    assert (folder / "table" / "part-00000.parquet").stat().st_mtime_ns == before


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_limit_and_penstock_do_the_same_work(folder: Path, keep_cpu_count: None, case: Any) -> None:
    needs = "pandas" if case.face == "frames" else case.framework
    if needs:
        pytest.importorskip(needs)
    results = [module.measure(case, folder) for module in (limit, ours)]
    expected = case.epochs * TINY[case.dataset][0] or TINY[case.dataset][2]
    assert [result["rows"] for result in results] == [expected, expected]
    for result in results:
        assert result["seconds"] >= result["first_s"] > 0
        assert result["peak_bytes"] > 1 << 20


def test_one_program_reads_with_either_package(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shutil.copytree(folder, tmp_path / "data")
    for name in ("p_jpeg", "p_mnist", "table"):
        data.make_readable_by_petastorm(tmp_path / "data" / name)
    for case, name in (("jpeg", "p_jpeg"), ("npy", "p_mnist"), ("table", "table")):
        assert user.measure("penstock.petastorm", tmp_path / "data", case)["rows"] == TINY[name][0]


def test_the_limit_decodes_what_opencv_decodes(folder: Path) -> None:
    import cv2

    cell = pq.read_table(folder / "p_jpeg")["image"][0].as_py()
    pixels = np.empty((256, 256, 3), np.uint8)
    limit._jpeg(memoryview(cell), pixels)
    wanted = cv2.imdecode(np.frombuffer(cell, np.uint8), cv2.IMREAD_UNCHANGED)[..., ::-1]
    assert np.abs(pixels.astype(int) - wanted).max() <= 1


def test_run_prints_a_table(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "run.py"), "--data", str(folder), "--pairs", "1"]
    command += ["--workload", "npy", "--workload", "open", "--output", str(tmp_path / "table.md")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert done.stdout.splitlines() == lines
    assert done.stderr == ""
    assert "60,000 28x28 `.npy` cells" in lines[-2]
    assert len({line.count("|") for line in lines[2:]}) == 1


def test_scripts_print_json(folder: Path) -> None:
    command = [sys.executable, str(BENCH / "limit.py"), str(folder), "table"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["rows"] == 900


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(SystemExit, match=r"no workload 'jpg'; there are: jpeg, npy"):
        cases.find("jpg")
    with pytest.raises(SystemExit, match="no dataset 'x'; there are: p_jpeg"):
        data.find("x")


def test_ratio_is_the_median_of_the_pairs() -> None:
    def runs(*seconds: float) -> tuple[dict[str, Any], ...]:
        return tuple({"rows": 100, "seconds": s, "first_s": 0.1, "peak_bytes": 10**8} for s in seconds)

    result = run.Result(case=cases.CASES[0], ours=runs(1.0, 4.0, 2.0), limit=runs(1.0, 1.0, 1.0))
    assert (result.ratio, result.ratios) == (0.5, [0.25, 0.5, 1.0])
    assert "| 50 | 100 | **0.50** | 0.25 to 1.00 | 0.85 | 0.10 s | 100 MB | 100 MB |" in result.line()


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_resume_gives_a_batch(folder: Path, share: float) -> None:
    assert resume.first_batch_s(folder / "resume10m", share, 16) > 0
