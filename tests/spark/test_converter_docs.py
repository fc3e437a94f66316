"""The blocks of docs/converter.md run as they stand, in order, on the session of these tests."""

from __future__ import annotations

import os
import tempfile

import pytest

from tests.house import ROOT
from tests.test_docs import blocks

pytest.importorskip("pyspark")


def test_the_page_runs(spark, tmp_path, monkeypatch) -> None:
    pytest.importorskip("tensorflow")
    pytest.importorskip("torch")
    monkeypatch.setitem(os.environ, "TF_CPP_MIN_LOG_LEVEL", "3")
    page = ROOT / "docs" / "converter.md"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, object] = {"__name__": "__main__"}
    code = [block for block in blocks(page) if block.language == "python"]
    assert len(code) == 6
    for block in code:
        exec(compile("\n" * block.line + block.code, str(page), "exec"), names)
    [cache] = tmp_path.glob("*/data/cache")
    assert os.listdir(cache) == []
