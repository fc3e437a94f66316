"""The example of the converter learns, prints what it does, and leaves nothing behind."""

from __future__ import annotations

import importlib.util

import pytest

from tests.house import ROOT

pytest.importorskip("pyspark")


def test_the_example_learns_digits(spark, tmp_path, capsys) -> None:
    for name in ("torch", "sklearn"):
        pytest.importorskip(name)
    from penstock.petastorm.spark import SparkDatasetConverter

    spec = importlib.util.spec_from_file_location("spark_converter", ROOT / "examples" / "spark_converter.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    try:
        assert example.main(["--output", str(tmp_path)]) > 0.85
    finally:
        spark.conf.unset(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF)
    told = capsys.readouterr().out
    assert "1500 rows to learn from, 297 to check with" in told
    assert "epoch 5: 47 steps" in told
    assert list(tmp_path.iterdir()) == []
