"""Spark Connect: DataFrames are written there too, and what needs RDDs says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark")


def test_what_works_over_connect_and_what_does_not(tmp_path):
    if pyspark.__version__.startswith("3."):
        pytest.skip("pyspark 3.5 has no Connect server in its wheel")
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status")
    script = Path(__file__).with_name("connect_session.py")
    ran = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "everything works" in ran.stdout
