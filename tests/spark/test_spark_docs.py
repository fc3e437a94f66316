"""The blocks of docs/spark.md run as they stand, in order, on the session of these tests."""

from __future__ import annotations

import tempfile

import pytest

pytest.importorskip("pyspark")

from tests.house import ROOT
from tests.test_docs import blocks


def test_the_page_is_one_program_that_runs(spark, tmp_path, monkeypatch):
    page = ROOT / "docs" / "spark.md"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = {"__name__": "docs_spark"}
    found = [block for block in blocks(page) if block.language == "python"]
    assert len(found) == 4
    for block in found:
        exec(compile("\n" * block.line + block.code, str(page), "exec"), names)
