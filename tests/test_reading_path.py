"""The reading path of docs/development.md is the code that runs between `penstock.open` and the first batch."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.house import PACKAGE, ROOT

MOST_MODULES = 26
"""Modules that a newcomer meets on the way; make it smaller, not larger."""


@pytest.fixture(scope="module")
def ran() -> dict[str, tuple[int, int]]:
    """Modules in the order of their first call, with their lines and those of the functions that ran."""
    command = [sys.executable, str(ROOT / "tests" / "reading_path.py"), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def listed() -> list[str]:
    text = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    section = text.split("## Reading path", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`", section, re.MULTILINE)


def test_the_files_of_the_reading_path_exist():
    assert len(listed()) > 8
    assert not [name for name in listed() if not (PACKAGE / name).is_file()]


def test_they_run_before_the_first_batch_in_this_order(ran):
    assert listed() == [name for name in ran if name in listed()]


def test_nothing_else_does_more_of_the_work(ran):
    """Each file of plan and engine in which a hundred lines run is on the path."""
    busy = [name for name, (_, lines) in ran.items() if lines > 100 and name.startswith(("plan/", "engine/"))]
    assert not set(busy) - set(listed())


def test_the_path_does_not_grow(ran):
    assert len(ran) <= MOST_MODULES, f"merge modules that are read together: {list(ran)}"
