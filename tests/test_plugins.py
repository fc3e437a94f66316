"""Installed packages add sources and codecs by entry points; nothing else is imported."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import penstock
import penstock.doctor
from penstock.codecs.registry import UnknownCodec, codec_from_json, codec_to_json
from penstock.dataset import as_parquet
from penstock.errors import CodecError, DatasetNotFound, PlanError, UnsupportedFormat
from penstock.plugins import find_installed
from tests.house import PACKAGE

PLUGIN = Path(__file__).parent / "data" / "plugin" / "src"


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Let importlib find entry points as of an installed package; returns a function that adds them."""

    def add(name: str, points: str) -> None:
        folder = tmp_path / "site" / f"{name}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(points)

    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.syspath_prepend(PLUGIN)
    return add


POINTS = """[penstock.sources]
counting = penstock_example:open_counting
broken = penstock_example:nothing

[penstock.codecs]
reversed-bytes = penstock_example:ReversedCodec
misnamed = penstock_example:ReversedCodec
"""


def test_a_scheme_of_an_installed_package_is_opened(installed):
    installed("penstock_example", POINTS)
    ds = penstock.open("counting://10", columns=["number"])
    assert [row["number"] for row in ds] == [*range(10)]
    with pytest.raises(TypeError, match="counting:// takes no schema"):
        penstock.open("counting://10", schema=penstock.Unischema("S", []))


def test_only_the_exact_name_is_looked_up(installed):
    installed("penstock_example", POINTS)
    assert find_installed("penstock.sources", "count") is None
    assert find_installed("penstock.sources", "penstock_example:open_counting") is None
    with pytest.raises((DatasetNotFound, ImportError)):
        penstock.open("count://10")


def test_two_packages_of_one_name_are_an_error(installed):
    installed("penstock_example", POINTS)
    installed("penstock_other", "[penstock.sources]\ncounting = somewhere:else_\n")
    with pytest.raises(PlanError, match="2 installed packages add 'counting'"):
        penstock.open("counting://10")


def test_a_store_is_never_looked_up_among_packages(installed, tmp_path, monkeypatch):
    installed("penstock_example", "[penstock.sources]\nfile = penstock_example:open_counting\n")
    penstock.write({"a": np.arange(3)}, tmp_path / "d")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: pytest.fail("looked up"))
    assert len(penstock.open(f"file://{tmp_path}/d")) == 3
    assert len(penstock.open(tmp_path / "d")) == 3


def test_a_package_that_cannot_be_imported_is_named(installed):
    installed("penstock_example", POINTS)
    with pytest.raises(ImportError, match=r"entry point 'broken' of penstock.sources .*penstock_example.*'nothing'"):
        penstock.open("broken://10")
    installed("penstock_gone", "[penstock.sources]\nlost = no_such_module:opener\n")
    with pytest.raises(ImportError, match=r"'no_such_module:opener' of penstock_gone.*ModuleNotFoundError"):
        penstock.open("lost://10")


def test_an_entry_point_that_is_no_function_is_refused(installed):
    installed("penstock_example", "[penstock.sources]\nmodule = penstock_example\n")
    with pytest.raises(TypeError, match=r"'module' of penstock.sources must be a function that returns a Source"):
        penstock.open("module://10")


def test_an_opener_that_returns_no_source_is_named():
    penstock.register_source("returns-none", lambda url: None)
    with pytest.raises(TypeError, match=r"opener of returns-none://x must return .*Source; got None"):
        penstock.open("returns-none://x")


@pytest.mark.parametrize(
    "url", ["unknown-scheme://x", "COUNTING://10", ["counting://10"], "simplecache::counting://10"]
)
def test_a_url_that_no_source_opens_says_how_to_add_one(installed, url):
    installed("penstock_example", POINTS)
    with pytest.raises(DatasetNotFound, match=r"penstock\.register_source"):
        penstock.open(url)


def test_tools_for_parquet_files_say_so(installed):
    installed("penstock_example", POINTS)
    with pytest.raises(UnsupportedFormat, match="the doctor examines Parquet files; counting://10"):
        penstock.doctor.examine("counting://10")
    with pytest.raises(UnsupportedFormat, match=r"only Parquet files can be measured .* MemorySource"):
        as_parquet(penstock.open("counting://10").source)


def test_a_codec_of_an_installed_package_can_be_written(installed, monkeypatch):
    registry = codec_from_json.__globals__["_classes"]
    monkeypatch.setattr("penstock.codecs.registry._classes", {k: v for k, v in registry.items() if "eversed" not in k})
    installed("penstock_example", POINTS)
    from penstock_example import ReversedCodec

    assert codec_to_json(ReversedCodec())["codec"] == "reversed-bytes"


def test_a_codec_of_an_installed_package_is_found_by_its_id(installed, monkeypatch):
    monkeypatch.setattr("penstock.codecs.registry._classes", {})
    stored = {"codec": "reversed-bytes", "config": {}, "class": "penstock_example.ReversedCodec"}
    assert isinstance(codec_from_json(stored), UnknownCodec)
    installed("penstock_example", POINTS)
    assert type(codec_from_json(stored)).__name__ == "ReversedCodec"
    # The path of a class is never followed, only an entry point's name.
    assert isinstance(codec_from_json(stored | {"codec": "penstock_example.Other"}), UnknownCodec)
    with pytest.raises(CodecError, match="name the entry point like the codec"):
        codec_from_json(stored | {"codec": "misnamed"})


PROGRAM = """
import sys, json, penstock, pyarrow.parquet as pq
assert "penstock_example" not in sys.modules
ds = penstock.open("counting://10")
numbers = [row["number"] for row in ds]
cells = [bytes(row["cell"]) for row in penstock.open(sys.argv[1])]
print(json.dumps([[int(n) for n in numbers], [cell.decode() for cell in cells]]))
"""


@pytest.mark.slow
def test_a_package_with_both_works_in_a_fresh_environment(tmp_path):
    """Install the package in a new virtual environment, by pip and without the network, and open what it adds."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    site = next(folder.glob("lib/python*/site-packages"))
    here = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    (site / "borrowed.pth").write_text(f"{here}\n{PACKAGE.parent}\n")  # the libraries of this environment, and Penstock
    project = PLUGIN.parent
    install = [python, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", project]
    found = subprocess.run(install, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    data = tmp_path / "data"
    write_reversed(data)
    found = subprocess.run([python, "-c", PROGRAM, data], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == [[*range(10)], ["abc", "xyz"]]


def write_reversed(folder):
    """Write a dataset whose column `cell` names the codec of the package, without importing that here."""
    from penstock.schema.stored import SCHEMA_KEY

    penstock.write(pa.table({"cell": pa.array([b"cba", b"zyx"], pa.binary())}), folder)
    import pyarrow.parquet as pq

    [path] = folder.glob("*.parquet")
    table = pq.read_table(path)
    stored = json.loads(table.schema.metadata[SCHEMA_KEY])
    [field] = stored["fields"]
    field["codec"] = {"codec": "reversed-bytes", "config": {}, "class": "penstock_example.ReversedCodec"}
    for name in ("_common_metadata", "_metadata"):
        (folder / name).unlink(missing_ok=True)
    pq.write_table(table.replace_schema_metadata({SCHEMA_KEY: json.dumps(stored).encode()}), path)
