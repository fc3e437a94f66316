"""`map_files` on Ray and on Spark: the same results, the same reports, and a worker killed in the middle.

Each engine runs in a process of its own, so that what it starts, sets and warns about stays there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COUNT = 8

JOB = """
import json, os, sys
import penstock
from tests.jobs import work

def report_of(executor, **options):
    try:
        report = penstock.map_files(work.wait_to_be_killed, sys.argv[1] + "/*.txt", sys.argv[2], executor=executor,
                                    **options)
        failing = penstock.map_files(lambda a, b: 1 / 0, sys.argv[1] + "/0.txt", sys.argv[2] + "/x.txt",
                                     executor=executor, retries=1, on_error="skip")
    finally:
        print("ended", flush=True)
    attempts = [[os.path.basename(one.input), one.attempt, one.cause] for one in report.failed_attempts]
    failed = [[one.attempt, one.cause] for one in failing.failed_attempts]
    print(json.dumps({"done": len(report.done), "attempts": attempts, "failed": failed}))
"""

RAY = """
import ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
report_of("ray")
ray.shutdown()
"""

SPARK = """
from pyspark.sql import SparkSession
conf = {"spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false", "spark.python.worker.reuse": "true"}
spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
report_of("spark")
spark.stop()
"""


@pytest.mark.timeout(280)
@pytest.mark.parametrize("engine", ["ray", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_worker_killed_in_the_middle_loses_nothing(engine: str, tmp_path: Path) -> None:
    pytest.importorskip({"ray": "ray", "spark": "pyspark"}[engine])
    raw, out = tmp_path / "raw", tmp_path / "out"
    raw.mkdir()
    for i in range(COUNT):
        (raw / f"{i}.txt").write_text(f"file {i}\n")
    code = JOB + {"ray": RAY, "spark": SPARK}[engine]
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable}
    job = subprocess.Popen(
        [sys.executable, "-c", code, str(raw), str(out)], stdout=subprocess.PIPE, env=environment, text=True
    )
    try:
        while not (raw / "3.pid").exists():
            assert job.poll() is None, "the job ended before its worker was killed"
            time.sleep(0.05)
        os.kill(int((raw / "3.pid").read_text()), signal.SIGKILL)
        stdout, _ = job.communicate(timeout=240)
    finally:
        job.kill()
    assert job.returncode == 0
    said = json.loads(stdout.splitlines()[-1])
    assert sorted(p.name for p in out.iterdir()) == [f"{i}.txt" for i in range(COUNT)]
    for i in range(COUNT):
        assert (out / f"{i}.txt").read_text() == f"file {i}\n" * 2
    assert said["done"] == COUNT
    assert ["3.txt", 1] in [attempt[:2] for attempt in said["attempts"]]
    assert {attempt[1] for attempt in said["attempts"]} == {1}
    assert said["failed"] == [[1, "ZeroDivisionError: division by zero"], [2, "ZeroDivisionError: division by zero"]]


RELATIVE = """
import os, shutil, sys
import ray
import penstock
os.chdir(sys.argv[1])
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env={"working_dir": sys.argv[2]})
print(penstock.map_files(lambda a, b: shutil.copy(a, b), ["raw/0.txt"], "out/", executor="ray", retries=0))
ray.shutdown()
"""


@pytest.mark.timeout(280)
def test_relative_names_are_those_of_the_driver(tmp_path: Path) -> None:
    """Ray's workers run in a folder of their own."""
    pytest.importorskip("ray")
    for name in ("raw", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "raw" / "0.txt").write_text("0")
    ran = subprocess.run(
        [sys.executable, "-c", RELATIVE, str(tmp_path), str(tmp_path / "elsewhere")],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert "1 done, 0 skipped, 0 failed" in ran.stdout, ran.stderr[-2000:]
    assert (tmp_path / "out" / "0.txt").read_text() == "0"
