"""No hang and nothing left, however a torch loader ends: each moment is lived through by a program of its own.

A worker of a DataLoader that is killed is torch's to notice: it may die with a lock of torch's in its hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

from penstock.testing import make_parquet  # noqa: E402
from tests.engine.test_liveness import _orphans, _session, _shared_memory, _until_gone  # noqa: E402
from tests.frameworks.live_torch import SLOW_S  # noqa: E402
from tests.house import ROOT  # noqa: E402

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
LIMIT_S = 60
EXIT_S = 5.0
"""Torch and its workers take their time at exit; ours is half a second after the longest running call."""

MOMENTS = [
    ("leave", 0, ("cpu", "fed", "workers")),
    ("raising", 3, ("cpu", "fed", "workers")),
    ("interrupted", 0, ("cpu", "fed", "workers")),
    ("broken_often", 0, ("cpu", "fed", "workers")),
    ("forked", 0, ("cpu", "fed")),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """400 rows in 20 row groups."""
    return make_parquet(tmp_path_factory.mktemp("data"), [[20] * 10, [20] * 10])


@pytest.mark.parametrize(("case", "code", "form"), [(c, code, form) for c, code, forms in MOMENTS for form in forms])
def test_nothing_is_left(data, tmp_path, case, code, form):
    shared = _shared_memory()
    program = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.frameworks.live_torch", case, form, str(data)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    with program:
        out, errors = program.communicate(timeout=LIMIT_S)
        ended = time.time()
    assert program.returncode == code, errors
    assert "Traceback" not in errors or form == "workers", errors
    left = float(out.split()[-1])
    assert ended - left < SLOW_S + EXIT_S
    _until_gone(lambda: _session(program.pid), 5.0)
    _until_gone(lambda: _orphans(shared), 5.0)
    assert not list(tmp_path.iterdir())
