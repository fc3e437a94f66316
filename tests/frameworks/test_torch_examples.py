"""The torch examples do what they say, in less than a minute each; and the blocks of docs/torch.md run."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from tests.depth import depth  # noqa: E402
from tests.house import ROOT  # noqa: E402
from tests.test_docs import FENCE  # noqa: E402


def run(*command, cwd):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_digits_are_learned(tmp_path):
    pytest.importorskip("sklearn")
    out = run(ROOT / "examples" / "mnist" / "train.py", "--output", tmp_path / "out", cwd=tmp_path)
    assert out.count("accuracy on unseen digits") == 4


@pytest.mark.parametrize("seed", range(depth(1, 20)))
def test_two_ranks_are_killed_and_three_go_on(tmp_path, seed):
    pytest.importorskip("sklearn")
    out = run(ROOT / "examples" / "ddp_resume.py", "--output", tmp_path / "out", "--seed", seed, cwd=tmp_path)
    seen = json.loads(out)
    assert seen["every row once"]
    assert seen["equal steps"]
    assert seen["rows before the checkpoint"] >= 5 * 16 * 2
    assert len(set(seen["steps of the three ranks"])) == 1


def test_lightning_is_stopped_in_an_epoch_and_goes_on(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("lightning.pytorch")
    out = run(ROOT / "examples" / "lightning_fit.py", "--output", tmp_path / "out", cwd=tmp_path)
    assert "the same, in the same order" in out
    assert "the same, bit for bit" in out
    assert float(out.split("other digits: ")[1].split("%")[0]) > 80


def test_the_page_runs(tmp_path):
    pytest.importorskip("lightning.pytorch")
    page = (ROOT / "docs" / "torch.md").read_text(encoding="utf-8")
    found = [(match[2].split(), match[3]) for match in FENCE.finditer(page)]
    # torchvision is not installed; its block runs in test_torch_chance.
    code = [block for words, block in found if words[:1] == ["python"] and "torchvision" not in words]
    assert len(code) > 4
    lines = "\n".join(code).splitlines()
    # Python 3.14 starts workers by importing the program again.
    (tmp_path / "page.py").write_text("\n    ".join(["if __name__ == '__main__':", *lines]), encoding="utf-8")
    run("-W", "ignore", tmp_path / "page.py", cwd=tmp_path)
