"""Paths and URLs become filesystems and paths; listings skip what is hidden and come in one order."""

import datetime
import importlib.util
import os
import sys
import threading
import time
import warnings
from pathlib import Path

import fsspec
import pytest
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem, SubTreeFileSystem

import penstock
from penstock.errors import DatasetNotFound, PenstockWarning, StoreUnavailable
from penstock.storage import is_hidden, list_files, resolve, to_arrow_filesystem, walk
from penstock.storage import urls as storage_urls
from penstock.storage.urls import file_url_path


def at(source, *, storage_options=None, filesystem=None):
    return resolve(source, storage_options=storage_options, filesystem=filesystem)


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * len(name))
    return root


class TestResolve:
    def test_a_path_is_local_and_absolute(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        fs, path = at("data/")
        assert isinstance(fs, LocalFileSystem)
        assert path == f"{tmp_path.as_posix()}/data"

    def test_a_path_object_works(self, tmp_path):
        assert at(tmp_path / "a b")[1] == f"{tmp_path.as_posix()}/a b"

    def test_a_file_url_as_spark_writes_it_is_no_relative_path(self, tmp_path):
        for filesystem in (None, LocalFileSystem()):
            assert at(f"file:{tmp_path.as_posix()}/x", filesystem=filesystem)[1] == f"{tmp_path.as_posix()}/x"

    def test_the_home_folder_is_expanded(self):
        assert at("~/x")[1] == f"{Path.home().as_posix()}/x"

    @pytest.mark.parametrize(
        ("url", "path"),
        [
            ("file:///data/a%20b%23c", "/data/a b#c"),
            ("file:///data/50%25", "/data/50%"),
            ("file://localhost/data", "/data"),
            ("FILE:///data", "/data"),
            ("file:///C:/data/x", "C:/data/x"),
            ("file://C:/data", "C:/data"),
            ("file:///d:", "d:"),
            ("file:///data/caf%C3%A9", "/data/café"),
        ],
    )
    def test_file_urls(self, url, path):
        assert file_url_path(url) == path

    @pytest.mark.skipif(sys.platform == "win32", reason="a host is a share there")
    def test_a_file_url_with_two_slashes_is_explained(self):
        with pytest.raises(DatasetNotFound, match="file:///data/x"):
            at("file://data/x")

    def test_any_fsspec_url_works(self):
        fs, path = at("memory://bucket/frames/")
        assert isinstance(fs, PyFileSystem)
        assert path.strip("/") == "bucket/frames"

    def test_storage_options_reach_fsspec(self):
        fs, _ = at("memory://x", storage_options={"skip_instance_cache": True, "any_option": 7})
        assert fs.handler.fs.storage_options["any_option"] == 7

    def test_an_unknown_scheme_is_named(self):
        with pytest.raises(DatasetNotFound, match=r"quux://.*filesystem="):
            at("quux://a/b")

    def test_a_missing_library_names_the_line_that_brings_it(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "gcsfs", None)
        with pytest.raises(ImportError, match=r"pip install 'penstock\[gcs\]'"):
            at("gs://bucket/x", storage_options={"token": "anon"})

    def test_given_filesystems_take_the_path_of_a_url(self):
        memory = fsspec.filesystem("memory")
        fs, path = at("memory://bucket/x", filesystem=memory)
        assert isinstance(fs, PyFileSystem)
        assert isinstance(fs.handler, FSSpecHandler)
        assert path == "bucket/x"
        assert at("bucket/x/", filesystem=fs)[0] is fs

    def test_fsspecs_local_filesystem_becomes_arrows(self, tmp_path):
        fs, path = at(f"file://{tmp_path.as_posix()}", filesystem=fsspec.filesystem("file"))
        assert isinstance(fs, LocalFileSystem)
        assert path == tmp_path.as_posix()

    def test_something_else_is_no_filesystem(self):
        with pytest.raises(TypeError, match="fsspec filesystem; got int"):
            to_arrow_filesystem(3)

    def test_bytes_are_no_path(self):
        with pytest.raises(TypeError, match="as text"):
            at(b"/data")


class TestListing:
    def test_files_come_in_utf8_order_with_sizes(self, tmp_path):
        touch(tmp_path, "b/x", "b.x", "B", "\u00e9", "a/z/y", "z", "\U00010000", "\uffff")
        names = [name for name, _ in list_files(LocalFileSystem(), str(tmp_path))]
        assert names == sorted(names, key=str.encode)
        assert names.index("\uffff") < names.index("\U00010000")  # not so in UTF-16
        assert dict(list_files(LocalFileSystem(), str(tmp_path)))["a/z/y"] == 5

    def test_hidden_names_are_skipped_at_every_level(self, tmp_path):
        touch(tmp_path, "a", "_SUCCESS", ".a.crc", "_temporary/0/a", ".git/x", "k=1/_x", "k=1/.b", "k=1/b", "_k=1/c")
        assert [name for name, _ in list_files(LocalFileSystem(), str(tmp_path))] == ["_k=1/c", "a", "k=1/b"]

    def test_a_hidden_folder_can_itself_be_listed(self, tmp_path):
        touch(tmp_path, "_x/a")
        assert [name for name, _ in list_files(LocalFileSystem(), str(tmp_path / "_x"))] == ["a"]

    def test_a_store_lists_the_same(self, tmp_path):
        touch(tmp_path, "a", "k=1/b", "_SUCCESS", "c d/e")
        store = PyFileSystem(FSSpecHandler(fsspec.filesystem("file")))
        assert list_files(store, str(tmp_path)) == list_files(LocalFileSystem(), str(tmp_path))
        sub = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
        assert list_files(sub, "") == list_files(LocalFileSystem(), str(tmp_path))

    def test_a_memory_store_lists_relative_paths(self):
        memory = fsspec.filesystem("memory")
        memory.pipe("/listing/d/a.parquet", b"abcd")
        assert list_files(to_arrow_filesystem(memory), "listing/d") == [("a.parquet", 4)]
        assert list_files(to_arrow_filesystem(memory), "/listing/d") == [("a.parquet", 4)]

    def test_dangling_links_do_not_vanish(self, tmp_path):
        touch(tmp_path, "a")
        (tmp_path / "b").symlink_to(tmp_path / "nothing")
        assert walk(LocalFileSystem(), str(tmp_path)) == [("a", 1), ("b", 0)]

    def test_links_that_lead_back_end(self, tmp_path):
        touch(tmp_path, "d/a")
        (tmp_path / "d" / "up").symlink_to(tmp_path, target_is_directory=True)
        (tmp_path / "other").symlink_to(tmp_path / "d", target_is_directory=True)
        assert [name for name, _ in walk(LocalFileSystem(), str(tmp_path))] == ["d/a", "other/a"]

    def test_links_that_lead_to_each_other_end(self, tmp_path):
        for name in ("a/x", "b/y"):
            touch(tmp_path, name)
        (tmp_path / "a" / "to-b").symlink_to(tmp_path / "b", target_is_directory=True)
        (tmp_path / "b" / "to-a").symlink_to(tmp_path / "a", target_is_directory=True)
        found = [name for name, _ in walk(LocalFileSystem(), str(tmp_path))]
        assert found == ["a/to-b/y", "a/x", "b/to-a/x", "b/y"]
        (tmp_path / "one").symlink_to("two")
        (tmp_path / "two").symlink_to("one")
        (tmp_path / "self").symlink_to("self")
        assert walk(LocalFileSystem(), str(tmp_path))[4:] == [("one", 0), ("self", 0), ("two", 0)]

    def test_a_missing_folder_beside_a_name_that_is_not_utf8(self, tmp_path):
        try:
            os.close(os.open(os.fsencode(tmp_path) + b"/\xff", os.O_CREAT))
        except OSError:
            pytest.skip("this filesystem takes only UTF-8")
        with pytest.raises(DatasetNotFound, match="nothing at"):
            walk(LocalFileSystem(), f"{tmp_path}/frame")

    def test_a_missing_folder_lists_near_names(self, tmp_path):
        touch(tmp_path, "frames/a")
        with pytest.raises(DatasetNotFound, match="did you mean 'frames'"):
            walk(LocalFileSystem(), f"{tmp_path}/frame")
        with pytest.raises(DatasetNotFound, match="no folder"):
            walk(LocalFileSystem(), f"{tmp_path}/x/y/z")


@pytest.mark.parametrize(
    ("name", "hidden"),
    [("a", False), ("_a", True), ("a/.b/c", True), ("_k=v/c", False), ("a/_k=v", True), (".k=v/c", True)],
)
def test_what_is_hidden(name, hidden):
    assert is_hidden(name) is hidden


@pytest.mark.skipif(os.name == "nt", reason="backslash separates there")
def test_a_backslash_is_a_character_of_a_local_name(tmp_path):
    assert at(tmp_path / "a\\b")[1].endswith("a\\b")


class TestStoresThatDoNotAnswer:
    """Nothing listens at this address; pyarrow's client for Google's store tries for the time that it is given."""

    @pytest.fixture
    def deaf(self, pauses):
        from pyarrow.fs import GcsFileSystem

        limit = datetime.timedelta(seconds=0.1)
        return GcsFileSystem(anonymous=True, scheme="http", endpoint_override="127.0.0.1:1", retry_time_limit=limit)

    @pytest.mark.parametrize(
        "ask",
        [
            penstock.open,
            lambda url, **more: penstock.write({"x": [1]}, url, **more),
            lambda url, **more: penstock.write_folder(url, "memory://out", **more),
            penstock.commit,
            penstock.discard,
        ],
        ids=["open", "write", "write_folder", "commit", "discard"],
    )
    def test_they_are_named_with_the_reason(self, deaf, ask):
        with pytest.raises(
            StoreUnavailable,
            match=r"^gs://bucket/x is unavailable after 8 attempts \(OSError: .*(Could not|Couldn't) connect",
        ) as found:
            ask("gs://bucket/x", filesystem=deaf)
        assert isinstance(found.value, ConnectionError)
        assert found.value.__cause__ is not None

    @pytest.mark.skipif(importlib.util.find_spec("gcsfs") is not None, reason="gcsfs is asked instead")
    def test_google_without_its_extra_names_the_extra_and_the_reason(self, monkeypatch):
        monkeypatch.setattr(storage_urls, "_GCS_PROBE_S", 1)
        with pytest.raises(ImportError, match=r"pip install 'penstock\[gcs\]' \(pyarrow.* did not get in: .*onnect"):
            penstock.open("gs://anonymous@bucket/x?scheme=http&endpoint_override=127.0.0.1:1")

    def test_waiting_is_told(self, deaf, monkeypatch):
        monkeypatch.setattr(storage_urls, "_SLOW_S", 0.01)
        with pytest.warns(PenstockWarning, match="gs://bucket/x has not answered"), pytest.raises(StoreUnavailable):
            penstock.open("gs://bucket/x", filesystem=deaf)

    def test_an_answer_in_time_needs_no_words_and_leaves_no_thread(self, tmp_path):
        before = threading.active_count()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(DatasetNotFound):
                penstock.open("memory://nothing-here")
        deadline = time.monotonic() + 60
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.01)  # a cancelled timer ends by itself
        assert threading.active_count() <= before

    def test_credentials_that_are_missing_are_no_missing_library(self):
        class NeedsAccount(fsspec.AbstractFileSystem):
            protocol = "needsaccount"

            def __init__(self, **more):
                raise ValueError("Must provide an account name")

        fsspec.register_implementation("needsaccount", NeedsAccount, clobber=True)
        with pytest.raises(
            StoreUnavailable, match=r"needsaccount://x cannot be reached .*Must provide an account name"
        ):
            at("needsaccount://x")
