"""Patterns find the same files as pathlib on every filesystem, hidden ones left out."""

import fsspec
import pytest
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

from penstock.storage import expand_glob, has_magic

NAMES = [
    "a.parquet",
    "b.parquet",
    "b.txt",
    "d1/a.parquet",
    "d2/e/a.parquet",
    "k=1/a.parquet",
    "_h/a.parquet",
    ".p",
    "[x]",
]


@pytest.fixture
def root(tmp_path):
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture(params=["arrow", "fsspec"])
def fs(request):
    return LocalFileSystem() if request.param == "arrow" else PyFileSystem(FSSpecHandler(fsspec.filesystem("file")))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.parquet", ["a.parquet", "b.parquet"]),
        ("?.txt", ["b.txt"]),
        ("[ab].parquet", ["a.parquet", "b.parquet"]),
        ("[!a].parquet", ["b.parquet"]),
        ("d*/*.parquet", ["d1/a.parquet"]),
        ("d*", ["d1", "d2"]),
        ("*/a.parquet", ["d1/a.parquet", "k=1/a.parquet"]),
        ("**/*.parquet", ["a.parquet", "b.parquet", "d1/a.parquet", "d2/e/a.parquet", "k=1/a.parquet"]),
        ("d2/**", ["d2/e/a.parquet"]),
        ("**/e/*", ["d2/e/a.parquet"]),
        ("_*/*", ["_h/a.parquet"]),
        ("*/nothing", []),
        ("nothing/*", []),
        ("a.parquet/*", []),
    ],
)
def test_patterns(root, fs, pattern, expected):
    base, found = expand_glob(fs, f"{root.as_posix()}/{pattern}")
    assert [info.path.removeprefix(f"{root.as_posix()}/") for info in found] == expected
    assert base.startswith(root.as_posix())


def test_the_base_is_the_folder_above_the_first_wildcard(root):
    assert expand_glob(LocalFileSystem(), f"{root.as_posix()}/d2/e/*")[0] == f"{root.as_posix()}/d2/e"


def test_magic():
    assert has_magic("a*")
    assert has_magic("a?")
    assert has_magic("[a]")
    assert not has_magic("a]b")
