"""The JAX example runs, and the run that was interrupted ends like the one that was not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax")
pytest.importorskip("sklearn")

from tests.house import ROOT


@pytest.mark.parametrize("devices", [1, 4])
def test_the_loop_resumes_bit_for_bit(tmp_path, devices):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    command = [sys.executable, str(ROOT / "examples" / "jax_loop.py"), "--output", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "resumed: 88 steps are left" in done.stdout
    assert "the same, bit for bit" in done.stdout
    share = float(done.stdout.split("other digits: ")[1].split("%")[0])
    assert share > 80
