"""The harness notices what it is there for: crashes, hangs, memory, raw errors; and goes on with the next case."""

from __future__ import annotations

import os
import time

import pytest

from tests.fuzz import harness
from tests.fuzz.harness import Case, mutations, run_cases


def misbehave(data, folder):
    folder.touch()
    if data == "abort":
        os.abort()
    if data == "hang":
        time.sleep(600)
    if data == "memory":
        (b"x" * (300 << 20)).find(b"y")
    if data == "error":
        raise ValueError("a raw error")
    return "a complaint" if data == "complaint" else None


def test_troubles_are_told_with_their_data_and_the_rest_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "TIMEOUT_S", 5.0)
    kinds = ["fine", "abort", "fine", "error", "hang", "fine", "complaint", "memory", "fine"]
    found = run_cases(
        "tests.fuzz.test_harness:misbehave", [Case(kind, kind) for kind in kinds], tmp_path, most_bytes=200 << 20
    )
    assert [one.case.data for one in found] == ["abort", "error", "hang", "complaint", "memory"]
    assert all(one.kept.exists() for one in found)
    said = {one.case.data: one.what for one in found}
    assert "SIGABRT" in said["abort"]
    assert "a raw error" in said["error"]
    assert "no answer" in said["hang"]
    assert "memory grew" in said["memory"]


@pytest.mark.parametrize("good", [b"x", b"some bytes that are good" * 20], ids=["short", "long"])
def test_mutations_are_the_same_every_time_and_nearly_all_differ(good):
    cases = list(mutations(good, 100, seed=3))
    assert cases == list(mutations(good, 100, seed=3))
    assert len(cases) == 100
    assert sum(case.data == good for case in cases) < 15
