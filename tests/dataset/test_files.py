"""Catalogs and formats are replaceable: what a catalog says about its files holds, and any format makes a source."""

from __future__ import annotations

import posixpath
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.dataset.catalog import FileCatalog
from penstock.dataset.files import FileSource, open_catalog
from penstock.dataset.format import Seen
from penstock.dataset.parquet import ParquetFormat, ParquetSource
from penstock.errors import BadFile, FileChanged, MetadataError
from penstock.testing import assert_resumes_exactly
from penstock.testing.filesystems import RecordingFileSystem
from penstock.testing.source_suite import PART_ROWS, SourceTests, suite_table
from tests.dataset.make import ids, write

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.dataset.catalog import DataFile

# -- a catalog that knows more than a folder ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """One version of a table: the files of a folder, with facts that only the table's log has."""

    folder: str
    facts: dict[str, dict[str, object]]
    """Fields of the entries, by the name of the file; a file without facts is not part of the version."""
    version: str = "7"
    filesystem: object = None

    def entries(self) -> list[DataFile]:
        found = FileCatalog(self.folder, filesystem=self.filesystem).entries()
        return [replace(file, **self.facts[file.relative]) for file in found if file.relative in self.facts]


def write_parts(table: pa.Table, part_rows: list[int], folder: Path) -> None:
    import pyarrow.parquet as pq

    half, start = max(1, len(part_rows) // 2), 0
    for number, parts in enumerate([part_rows[:half], part_rows[half:]]):
        with pq.ParquetWriter(folder / f"part-{number}.parquet", table.schema) as writer:
            for num_rows in parts:
                writer.write_table(table.slice(start, num_rows))
                start += num_rows


class TestSnapshot(SourceTests):
    """A source with constants and known rows passes the suite of all sources."""

    def make_source(self, table, part_rows, folder):
        part_rows = list(part_rows)
        write_parts(table, part_rows, folder)
        half = max(1, len(part_rows) // 2)
        facts = {
            "part-0.parquet": {"constants": {"day": "2024-01-01"}, "part_rows": part_rows[:half]},
            "part-1.parquet": {"constants": {"day": None}, "part_rows": part_rows[half:]},
        }
        return open_catalog(Snapshot(str(folder), facts), ParquetFormat(), ParquetSource)


@pytest.fixture
def three(tmp_path):
    """Three files of 10 rows in row groups of 4, 4 and 2."""
    for number in range(3):
        write(tmp_path / f"part-{number}.parquet", ids(number * 10, number * 10 + 10), rows_per_group=4)
    return tmp_path


def snapshot(folder, **changes):
    facts: dict[str, dict[str, object]] = {f"part-{number}.parquet": {} for number in range(3)}
    facts["part-0.parquet"] = {"deleted": np.array([0, 3, 9])}
    facts["part-2.parquet"] = {"deleted": np.arange(4, 10)}
    return Snapshot(str(folder), facts | changes)


LEFT = [1, 2, *range(4, 9), *range(10, 24)]
"""The rows of `snapshot` that are not deleted."""


class TestDeletedRows:
    def open(self, folder, **changes):
        return penstock.open(open_catalog(snapshot(folder, **changes), ParquetFormat(), ParquetSource))

    def test_they_are_not_part_of_the_dataset(self, three):
        ds = self.open(three)
        assert len(ds) == len(LEFT)
        assert [row["id"] for row in ds] == LEFT
        assert ds.take([0, 2, -1])["id"].tolist() == [1, 4, 23]
        assert [row["id"] for row in ds.where([("id", ">", 7)])] == [i for i in LEFT if i > 7]
        assert ds.source.facts.version == "7"

    @pytest.mark.parametrize("shuffle", [False, True, "groups"])
    def test_they_are_never_delivered(self, three, shuffle):
        with self.open(three).loader(batch_size=4, shuffle=shuffle, epochs=2, rank=0, world=1) as loader:
            found = np.concatenate([batch["id"] for batch in loader])
        assert sorted(found.tolist()) == sorted(LEFT * 2)

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_loaders_resume_at_every_step(self, three, shuffle):
        ds = self.open(three)
        assert_resumes_exactly(lambda: ds.loader(batch_size=4, shuffle=shuffle, seed=1, rank=0, world=1))

    def test_another_number_of_ranks_takes_over(self, three):
        ds, seen = self.open(three), []
        options = {"batch_size": 2, "shuffle": True, "remainder": "uneven"}
        for rank in range(2):
            with ds.loader(**options, rank=rank, world=2) as loader:
                batches = iter(loader)
                seen += [int(i) for _ in range(2) for i in next(batches)["id"]]
                state = loader.state_dict()
        for rank in range(3):
            with ds.loader(**options, rank=rank, world=3) as loader:
                loader.load_state_dict(state)
                seen += [int(i) for batch in loader for i in batch["id"]]
        assert sorted(seen) == LEFT

    def test_a_state_belongs_to_one_set_of_deleted_rows(self, three):
        with self.open(three).loader(batch_size=4, rank=0, world=1) as loader:
            next(iter(loader))
            state = loader.state_dict()
        other = self.open(three, **{"part-1.parquet": {"deleted": np.array([5])}})
        with other.loader(batch_size=4, rank=0, world=1) as loader, pytest.raises(ValueError, match="row"):
            loader.load_state_dict(state)

    def test_a_row_that_the_file_does_not_have_is_an_error(self, three):
        with pytest.raises(MetadataError, match=r"part-1\.parquet has 10 rows, .* row 10 is deleted"):
            self.open(three, **{"part-1.parquet": {"deleted": np.array([10])}})


class TestKnownRows:
    def test_files_are_not_indexed_before_they_are_read(self, three):
        fs = RecordingFileSystem()
        facts = {f"part-{number}.parquet": {"part_rows": (4, 4, 2)} for number in range(3)}
        source = open_catalog(Snapshot(str(three), facts, filesystem=fs), ParquetFormat(), ParquetSource)
        assert {posixpath.basename(path) for path in fs.reads.opened} == {"part-0.parquet"}
        assert source.facts.chunk_rows.tolist() == [4, 4, 2] * 3
        assert [row["id"] for row in penstock.open(source)] == [*range(30)]
        assert source.content() == penstock.open(three).source.content()

    def test_rows_that_the_file_does_not_have_are_an_error_when_it_is_read(self, three):
        facts = {"part-0.parquet": {}, "part-1.parquet": {"part_rows": (4, 4, 4)}}
        source = open_catalog(Snapshot(str(three), facts), ParquetFormat(), ParquetSource)
        assert source.read(0, ["id"]).num_rows == 4
        with pytest.raises(FileChanged, match="3 row groups of 12 rows were known, 3 of 10 are there"):
            source.read(3, ["id"])


def test_constants_of_a_catalog_are_typed_like_folders(three):
    facts = {f"part-{number}.parquet": {"constants": {"k": str(number), "t": "a"}} for number in range(3)}
    source = open_catalog(Snapshot(str(three), facts), ParquetFormat(), ParquetSource)
    assert source.facts.constants["k"].to_pylist() == [0, 1, 2]
    assert source.read(4, ["t", "k"]).to_pydict() == {"t": ["a"] * 4, "k": [1] * 4}


# -- another format ----------------------------------------------------------------------------------------------------


class FeatherIndex:
    """The record batches of an Arrow file."""

    part_bytes: tuple[int, ...]

    def __init__(self, data: bytes, version: str) -> None:
        with pa.ipc.open_file(pa.py_buffer(data)) as reader:
            self.schema = reader.schema.remove_metadata()
            self.metadata = reader.schema.metadata or {}
            self.part_rows = tuple(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
        self.part_bytes = (0,) * len(self.part_rows)
        self.size = len(data)
        self.seen = Seen(version, zlib.crc32(data))
        self.memory_bytes = 1000

    def same_schema(self, other: FeatherIndex) -> bool:
        return bool(self.schema.equals(other.schema))

    def check(self) -> None:
        pass

    def pack(self) -> bytes:
        return b""


class Feather:
    """Arrow files (Feather version 2) as a format: the parts are record batches."""

    part_noun: ClassVar[str] = "block"

    def index(self, file: DataFile) -> FeatherIndex:
        data, _, version = file.root.store.read_tail(file.path, 1 << 40)
        try:
            return FeatherIndex(data, version)
        except pa.ArrowInvalid as error:
            raise BadFile(f"{file.path} is no Arrow file: {error}", path=file.path) from error

    def read(self, part, columns, buffers=None):
        with pa.memory_map(part.file.path) as stream, pa.ipc.open_file(stream) as reader:
            return pa.Table.from_batches([reader.get_batch(part.number)]).select(list(columns))


@dataclass(frozen=True)
class FeatherFolder:
    folder: str
    version = None

    def entries(self) -> list[DataFile]:
        # Named one by one: a folder would be searched for Parquet.
        import pathlib

        return FileCatalog(sorted(map(str, pathlib.Path(self.folder).glob("*.arrow")))).entries()


class TestFeather(SourceTests):
    """A source of another format passes the suite, with no code but the format's own."""

    def make_source(self, table, part_rows, folder):
        half, start = max(1, len(part_rows) // 2), 0
        for number, parts in enumerate([part_rows[:half], part_rows[half:]]):
            with pa.ipc.new_file(str(folder / f"{number}.arrow"), table.schema) as writer:
                for num_rows in parts:
                    writer.write_batch(table.slice(start, num_rows).combine_chunks().to_batches()[0])
                    start += num_rows
        return open_catalog(FeatherFolder(str(folder)), Feather(), FileSource)

    def test_messages_name_its_parts(self, source):
        assert str(source.locate(0, 3)).endswith("0.arrow, block 0, row 3")
        assert source.facts.chunk_rows.tolist() == list(PART_ROWS)

    def test_a_file_that_is_something_else_is_a_bad_file(self, tmp_path):
        self.make_source(suite_table(20), [8, 12], tmp_path)
        (tmp_path / "2.arrow").write_bytes(b"something else")
        with pytest.raises(BadFile, match=r"2\.arrow is no Arrow file"):
            open_catalog(FeatherFolder(str(tmp_path)), Feather(), FileSource)
        source = open_catalog(FeatherFolder(str(tmp_path)), Feather(), FileSource, on_error="skip")
        assert [path for path, _ in source.facts.skipped] == [str(tmp_path / "2.arrow")]

    def test_a_file_that_was_written_again_is_noticed(self, tmp_path):
        import pickle

        source = self.make_source(suite_table(20), [8, 12], tmp_path)
        (tmp_path / "more").mkdir()
        self.make_source(suite_table(40), [20, 20], tmp_path / "more")
        (tmp_path / "more" / "0.arrow").replace(tmp_path / "0.arrow")
        with pytest.raises(FileChanged, match="1 blocks of 8 rows were known, 1 of 20 are there"):
            pickle.loads(pickle.dumps(source)).read(0, ["id"])
