"""`_common_metadata`: pairs set and removed, the rest kept, and never half a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fsspec
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.dataset.catalog import FileCatalog
from penstock.dataset.common_metadata import read_common_metadata, replace_file, update_common_metadata
from penstock.errors import BadFile
from tests.dataset.make import write_ids

if TYPE_CHECKING:
    from pathlib import Path


def first(path: object, filesystem: object = None):
    return FileCatalog(str(path), filesystem=filesystem).entries()[0]


def test_pairs_are_set_replaced_and_removed(tmp_path: Path) -> None:
    write_ids(tmp_path)
    assert read_common_metadata(first(tmp_path).root) == {}
    update_common_metadata(first(tmp_path), {b"a": b"1", b"b": b"\x00\xff"})
    update_common_metadata(first(tmp_path), {b"a": b"2", b"b": None, b"c": b"", b"never": None})
    assert read_common_metadata(first(tmp_path).root) == {b"a": b"2", b"c": b""}
    assert pq.read_schema(tmp_path / "_common_metadata").names == ["id", "value"]
    assert len(penstock.open(tmp_path)) == 30


def test_columns_of_an_existing_file_stay(tmp_path: Path) -> None:
    write_ids(tmp_path)
    other = pq.read_schema(tmp_path / "part-0.parquet").remove(1)
    pq.write_metadata(other.with_metadata({b"old": b"1"}), tmp_path / "_common_metadata")
    update_common_metadata(first(tmp_path), {b"new": b"2"})
    assert pq.read_schema(tmp_path / "_common_metadata").names == ["id"]
    assert read_common_metadata(first(tmp_path).root) == {b"old": b"1", b"new": b"2"}


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_ids(tmp_path)
    update_common_metadata(first(tmp_path), {b"a": b"1"})
    before = sorted(tmp_path.iterdir())

    def fail(sink: object) -> None:
        sink.write(b"PAR1")  # type: ignore[attr-defined]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace_file(first(tmp_path).root, "_common_metadata", fail)
    assert sorted(tmp_path.iterdir()) == before
    assert read_common_metadata(first(tmp_path).root) == {b"a": b"1"}


def test_the_checksum_that_hadoop_left_goes_with_its_file(tmp_path: Path) -> None:
    write_ids(tmp_path)
    (tmp_path / "._common_metadata.crc").write_bytes(b"crc")
    update_common_metadata(first(tmp_path), {b"a": b"1"})
    assert not (tmp_path / "._common_metadata.crc").exists()


def test_a_store_gets_the_file_whole(tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    write_ids(tmp_path, files=1)
    store.put(str(tmp_path / "part-0.parquet"), "/common/part-0.parquet")
    update_common_metadata(first("/common", store), {b"a": b"1"})
    assert read_common_metadata(first("/common", store).root) == {b"a": b"1"}


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    write_ids(tmp_path)
    (tmp_path / "_common_metadata").write_bytes(b"something else, much longer than a footer")
    with pytest.raises(BadFile, match="_common_metadata cannot be read"):
        read_common_metadata(first(tmp_path).root)


def test_what_was_written_after_the_listing_is_kept(tmp_path: Path) -> None:
    write_ids(tmp_path)
    listed = first(tmp_path)
    update_common_metadata(listed, {b"a": b"1"})
    update_common_metadata(listed, {b"b": b"2"})
    assert read_common_metadata(listed.root) == {b"a": b"1", b"b": b"2"}
