"""URLs to filesystems and paths under Petastorm's names."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import fsspec
import pytest

import penstock
from penstock.petastorm.fs_utils import (
    FilesystemResolver,
    checked_url,
    get_dataset_path,
    get_filesystem_and_path_or_paths,
    normalize_dataset_url_or_urls,
    normalize_dir_url,
)
from tests.dataset.make import write_ids

if TYPE_CHECKING:
    from pathlib import Path


def test_a_local_url_gives_a_filesystem_to_work_with(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    resolver = FilesystemResolver(f"file://{tmp_path}")
    assert resolver.get_dataset_path() == str(tmp_path)
    assert resolver.parsed_dataset_url().scheme == "file"
    fs = resolver.filesystem()
    assert fs.exists(f"{tmp_path}/a.txt")
    assert not fs.exists(f"{tmp_path}/b.txt")
    with fs.open(f"{tmp_path}/a.txt", "rb") as file:
        assert file.read() == b"text"
    assert fs.ls(str(tmp_path), detail=False) == [f"{tmp_path}/a.txt"]


def test_what_it_gives_opens_datasets(tmp_path: Path) -> None:
    write_ids(tmp_path)
    fs, path = get_filesystem_and_path_or_paths(f"file:{tmp_path}/")
    assert len(penstock.open(path, filesystem=fs)) == 30


def test_a_store_comes_as_fsspec_has_it() -> None:
    store = fsspec.filesystem("memory")
    store.pipe("/fs-utils/x/a.txt", b"1")
    resolver = FilesystemResolver("memory://fs-utils/x")
    assert resolver.filesystem() is store
    assert resolver.get_dataset_path() == "fs-utils/x"
    assert resolver.filesystem().cat("fs-utils/x/a.txt") == b"1"


def test_the_factory_travels_and_the_resolver_does_not(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    resolver = FilesystemResolver(f"file://{tmp_path}")
    assert pickle.loads(pickle.dumps(resolver.filesystem_factory()))().exists(str(tmp_path / "a"))
    with pytest.raises(RuntimeError, match="filesystem_factory"):
        pickle.dumps(resolver)


def test_lists_give_paths_in_their_order(tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}/b", f"file://{tmp_path}/a/"]
    _, paths = get_filesystem_and_path_or_paths(urls)
    assert paths == [f"{tmp_path}/b", f"{tmp_path}/a"]
    mine = object()
    assert get_filesystem_and_path_or_paths("s3://bucket/x", filesystem=mine) == (mine, "bucket/x")


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ("/data/set", r"'/data/set' has no scheme; .* file:///path"),
        ("C:/data", "has no scheme"),
        ("s3:///x", "names no host or bucket; wanted s3://bucket/path"),
        (["s3://a/x", "s3://b/x"], "same scheme and host; got s3://a, s3://b"),
        (["s3://a/x", "gs://a/x"], "same scheme and host"),
        ([], "empty"),
        (None, "got None"),
        (["s3://a/x", 3], "got 3"),
    ],
)
def test_what_is_no_url_is_named(urls: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_filesystem_and_path_or_paths(urls)  # type: ignore[arg-type]


def test_an_unknown_scheme_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        FilesystemResolver("nowhere://host/x")


def test_slashes_at_the_end_mean_nothing() -> None:
    assert normalize_dir_url("s3://b/x//") == "s3://b/x"
    assert normalize_dir_url("file:///") == "file:///"
    assert normalize_dataset_url_or_urls(["s3://b/x/", "s3://b/y"]) == ["s3://b/x", "s3://b/y"]
    assert normalize_dataset_url_or_urls("s3://b/x/") == "s3://b/x"


def test_urls_come_in_the_form_that_open_takes() -> None:
    assert checked_url("file:/data") == "file:///data"
    assert checked_url("file:///data") == "file:///data"
    assert checked_url("hdfs:///data") == "hdfs:///data"
    assert get_dataset_path(FilesystemResolver("file:/data/x").parsed_dataset_url()) == "/data/x"
