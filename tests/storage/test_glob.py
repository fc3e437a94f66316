"""Patterns find the same files as pathlib on every filesystem, hidden ones left out."""

import fsspec
import pytest
from pyarrow.fs import FileType, FSSpecHandler, LocalFileSystem, PyFileSystem

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


def test_links_that_lead_back_give_no_file_again(tmp_path):
    for name in ("a/x", "b/y"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "a" / "to-b").symlink_to(tmp_path / "b", target_is_directory=True)
    (tmp_path / "b" / "to-a").symlink_to(tmp_path / "a", target_is_directory=True)
    (tmp_path / "b" / "up").symlink_to(tmp_path, target_is_directory=True)
    for pattern in ("**", "**/*"):
        _, found = expand_glob(LocalFileSystem(), f"{tmp_path}/{pattern}")
        files = [info.path.removeprefix(f"{tmp_path}/") for info in found if info.type == FileType.File]
        assert files == ["a/to-b/y", "a/x", "b/to-a/x", "b/y"]


def test_links_to_nothing_are_matched(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x.parquet").symlink_to(tmp_path / "not-fetched")
    (tmp_path / "d" / "y.parquet").symlink_to("y.parquet")
    for pattern, names in (("*/*.parquet", ["x", "y"]), ("*/x.parquet", ["x"]), ("d/[y]*", ["y"])):
        _, found = expand_glob(LocalFileSystem(), f"{tmp_path}/{pattern}")
        assert [(info.base_name, info.type, info.size) for info in found] == [
            (f"{name}.parquet", FileType.File, 0) for name in names
        ]


def test_the_base_is_the_folder_above_the_first_wildcard(root):
    assert expand_glob(LocalFileSystem(), f"{root.as_posix()}/d2/e/*")[0] == f"{root.as_posix()}/d2/e"


def test_magic():
    assert has_magic("a*")
    assert has_magic("a?")
    assert has_magic("[a]")
    assert not has_magic("a]b")
