"""One Spark session for all tests of this folder, and the real Petastorm in a venv of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

PETASTORM_PYTHON = "PENSTOCK_PETASTORM_PYTHON"
"""Names the python of a venv with petastorm 0.13.1; see docs/development.md."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))  # PySpark on pandas 3
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))  # and on new Pythons
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))  # py4j's sockets


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory):
    """A classic session on two cores of this machine."""
    pytest.importorskip("pyspark")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            session = (
                SparkSession.builder.master("local[2]")
                .appName("penstock tests")
                .config("spark.driver.bindAddress", "127.0.0.1")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.sql.shuffle.partitions", "2")
                .config("spark.sql.session.timeZone", "UTC")
                .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
                .getOrCreate()
            )
        except Exception as error:
            pytest.skip(f"Spark does not start here: {error}")
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def real_petastorm() -> str:
    """The python that has the real Petastorm 0.13.1."""
    python = os.environ.get(PETASTORM_PYTHON)
    if not python:
        pytest.skip(f"{PETASTORM_PYTHON} names no python with petastorm==0.13.1 (see docs/development.md)")
    check = subprocess.run([python, "-c", "import petastorm"], capture_output=True, text=True, check=False)
    if check.returncode:
        pytest.skip(f"{python} cannot import petastorm: {check.stderr.strip().splitlines()[-1]}")
    return python
