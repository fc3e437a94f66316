"""Folders of converters: URLs of Databricks for Spark and for readers, markers, deletion, and waits that end."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from penstock.errors import PenstockWarning
from penstock.petastorm.spark import _places
from penstock.petastorm.spark._places import MARKER, place_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def databricks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "15.4")


@pytest.mark.parametrize(
    ("given", "for_spark", "for_readers"),
    [
        ("dbfs:/ml/cache", "dbfs:/ml/cache", "file:///dbfs/ml/cache"),
        ("dbfs:///ml/cache/", "dbfs:/ml/cache", "file:///dbfs/ml/cache"),
        ("/dbfs/ml/cache", "dbfs:/ml/cache", "file:///dbfs/ml/cache"),
        ("file:/dbfs/ml/cache", "dbfs:/ml/cache", "file:///dbfs/ml/cache"),
        ("file:///dbfs/ml/cache", "dbfs:/ml/cache", "file:///dbfs/ml/cache"),
        ("/Volumes/main/default/v/cache", "dbfs:/Volumes/main/default/v/cache", "file:///Volumes/main/default/v/cache"),
        ("dbfs:/Volumes/main/v/cache", "dbfs:/Volumes/main/v/cache", "file:///Volumes/main/v/cache"),
        ("file:/Volumes/main/v/cache", "dbfs:/Volumes/main/v/cache", "file:///Volumes/main/v/cache"),
        ("dbfs:/a b", "dbfs:/a b", "file:///dbfs/a%20b"),
        ("file:///data/x", "file:///data/x", "file:///data/x"),
    ],
)
@pytest.mark.usefixtures("databricks")
def test_folders_of_databricks(given: str, for_spark: str, for_readers: str) -> None:
    place = place_of(given, None)
    assert (place.spark_url, place.url) == (for_spark, for_readers)
    inner = place.below("2026-x")
    assert (inner.spark_url, inner.url) == (f"{for_spark}/2026-x", f"{for_readers}/2026-x")


@pytest.mark.usefixtures("databricks")
def test_dbfs_has_no_host() -> None:
    with pytest.raises(ValueError, match=r"'dbfs://bucket/x' names a host.*wanted dbfs:/bucket/x"):
        place_of("dbfs://bucket/x", None)


@pytest.mark.usefixtures("databricks")
def test_a_folder_of_one_machine_of_a_cluster_is_told() -> None:
    with pytest.warns(PenstockWarning, match=r"file:///data/x is on the local disk of each machine.*Use dbfs:/"):
        _places.warn_if_not_shared(place_of("file:///data/x", None))


@pytest.mark.filterwarnings("error")
def test_no_warning_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    _places.warn_if_not_shared(place_of("file:///data/x", None))
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "15.4")
    _places.warn_if_not_shared(place_of("dbfs:/x", None))


def test_dbfs_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    with pytest.raises(ValueError, match="'dbfs:/x': dbfs: is a folder on the machines of a Databricks cluster only"):
        place_of("dbfs:/x", None)
    with pytest.raises(ValueError, match="'/Volumes/x' has no scheme"):
        place_of("/Volumes/x", None)


@pytest.mark.parametrize("given", ["file:///data/a%20b", "file:/data/a b"])
def test_spark_gets_local_paths_as_they_are_and_readers_escaped(given: str) -> None:
    place = place_of(given, None)
    assert place.path == "/data/a b"
    assert place.spark_url == "file:///data/a b"
    assert place.url == "file:///data/a%20b"
    assert place.url_of("p 1.parquet") == "file:///data/a%20b/p%201.parquet"


def test_stores_are_the_same_for_both() -> None:
    pytest.importorskip("fsspec")
    place = place_of("memory://bucket/cache/", None)
    assert (place.spark_url, place.url) == ("memory://bucket/cache", "memory://bucket/cache")


@pytest.mark.parametrize("url", [None, 3, ["file:///x"]])
def test_what_is_no_url_is_refused(url: object) -> None:
    with pytest.raises(ValueError, match="wanted the URL of a folder"):
        place_of(url, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("store", ["local", "memory"])
def test_only_what_the_marker_lists_is_deleted(store: str, tmp_path: Path) -> None:
    import fsspec

    root = tmp_path.as_uri() if store == "local" else f"memory://{tmp_path.name}"
    fs, path = fsspec.core.url_to_fs(f"{root}/cache")
    place = place_of(f"{root}/cache", None).below("one")
    _places.begin(place)
    fs.pipe(f"{path}/one/part-0.parquet", b"1234")
    fs.pipe(f"{path}/one/_SUCCESS", b"")
    fs.makedirs(f"{path}/one/deep")
    fs.pipe(f"{path}/one/deep/part-1.parquet", b"12")
    assert _places.commit(place) == ["deep/part-1.parquet", "part-0.parquet"]
    assert sorted(_places.data_sizes(place)) == [2, 4]
    assert _places.is_made_here(place)
    fs.pipe(f"{path}/one/deep/notes", b"mine")
    assert _places.remove(place) == ["deep/notes"]
    assert [one.rsplit("/", 1)[1] for one in fs.find(f"{path}/one")] == ["notes"]
    assert _places.remove(place) is None  # no converter's any more
    fs.rm(f"{path}/one", recursive=True)
    assert _places.remove(place) == []


def test_a_folder_that_was_never_finished_lists_nothing(tmp_path: Path) -> None:
    place = place_of(tmp_path.as_uri(), None).below("one")
    _places.begin(place)
    assert (tmp_path / "one" / MARKER).exists()
    _places.remove_new(place)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    _places.remove_new(place_of(tmp_path.as_uri(), None).below("mine"))
    assert (tmp_path / "mine").exists()


def test_a_wait_ends_when_the_files_come(tmp_path: Path) -> None:
    url = (tmp_path / "late one.parquet").as_uri()
    later = threading.Timer(0.2, (tmp_path / "late one.parquet").touch)
    later.start()
    _places.wait_for_files([url, tmp_path.as_uri()], 60, None)
    later.join()
    assert (tmp_path / "late one.parquet").exists()


def test_a_wait_for_files_that_never_come_is_bounded(tmp_path: Path) -> None:
    begin = time.monotonic()
    urls = [(tmp_path / f"{index}.parquet").as_uri() for index in range(5)]
    with pytest.raises(RuntimeError, match=r"5 of 5 files cannot be seen after 0\.1 s: file:.* and 2 more; they were"):
        _places.wait_for_files(urls, 0.1, None)
    assert time.monotonic() - begin >= 0.1
    _places.wait_for_files([], 0.1, None)


def test_many_small_files_that_could_be_few_are_told(tmp_path: Path) -> None:
    from penstock.petastorm.spark import _cache

    place = place_of(tmp_path.as_uri(), None)
    for index in range(8):
        with open(tmp_path / f"part-{index}.parquet", "wb") as file:
            file.truncate(40 << 20)  # sparse
    with pytest.warns(PenstockWarning, match=r"median file has 40\.0 MB, .* there are 8; df\.coalesce\(6\)"):
        _cache._warn_of_small_files(place)


@pytest.mark.filterwarnings("error")
def test_a_few_small_files_are_not_worth_a_word(tmp_path: Path) -> None:
    from penstock.petastorm.spark import _cache

    for index in range(3):
        (tmp_path / f"part-{index}.parquet").write_bytes(b"1234")
    _cache._warn_of_small_files(place_of(tmp_path.as_uri(), None))
