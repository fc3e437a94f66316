"""`penstock bench --framework ...` runs with every framework."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock.bench import Workload, measure


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax"])
def test_each_framework_is_measured(framework, tmp_path):
    pytest.importorskip(framework)
    penstock.write({"id": np.arange(500, dtype=np.int32), "x": np.ones((500, 4), np.float32)}, tmp_path / "d")
    task = Workload(options={"batch_size": 50}, framework=framework, seconds=0.1, warm_up_s=0.0, rounds=1)
    result = measure(penstock.open(tmp_path / "d"), task)
    assert result.ours[0] > 0
    assert f"penstock, {framework}" in str(result)
    assert "bottleneck" in result.report


def test_a_missing_framework_names_the_line_to_install(tmp_path, monkeypatch):
    pytest.importorskip("jax")
    import sys

    penstock.write({"id": np.arange(5)}, tmp_path / "d")
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "penstock.jax", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'penstock\[jax\]'"):
        measure(penstock.open(tmp_path / "d"), Workload(options={"batch_size": 5}, framework="jax"))
