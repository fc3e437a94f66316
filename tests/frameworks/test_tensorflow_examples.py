"""The Keras example does what it says, and the blocks of docs/tensorflow.md run."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("tensorflow")

from tests.house import ROOT
from tests.test_docs import FENCE

if TYPE_CHECKING:
    from pathlib import Path


def run(*command: Any, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    arguments = [sys.executable, *map(str, command)]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=cwd, env=environment, check=False, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_fit_is_interrupted_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    out = run(ROOT / "examples" / "keras_fit.py", "--output", tmp_path / "out", cwd=tmp_path)
    assert "interrupted after 70 steps" in out
    assert "resumed: 22 of 46 batches are left of epoch 2" in out
    assert "accuracy on 297 other digits" in out


def test_the_page_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tensorflow.md").read_text(encoding="utf-8")
    code = [match[3] for match in FENCE.finditer(page) if match[2].split()[:1] == ["python"]]
    assert len(code) == 5
    (tmp_path / "page.py").write_text("\n".join(code), encoding="utf-8")
    run("-W", "error::UserWarning", tmp_path / "page.py", cwd=tmp_path)
