"""Sources in memory, of Parquet and of CSV pass the same suite, and the suite notices sources that are wrong."""

from __future__ import annotations

import csv
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.codecs import Cells, NdarrayCodec
from penstock.dataset import open_parquet
from penstock.errors import PlanError, SchemaError, SourceError
from penstock.source import Location, SourceFacts
from penstock.testing import FaultySource, MemorySource
from penstock.testing.source_suite import PART_ROWS, SourceTests, suite_table


class TestMemory(SourceTests):
    def make_source(self, table, part_rows, folder):
        return MemorySource(table, part_rows)


class TestParquet(SourceTests):
    def make_source(self, table, part_rows, folder):
        half, start = max(1, len(part_rows) // 2), 0
        for number, parts in enumerate([part_rows[:half], part_rows[half:]]):
            with pq.ParquetWriter(folder / f"part-{number}.parquet", table.schema) as writer:
                for num_rows in parts:
                    writer.write_table(table.slice(start, num_rows))
                    start += num_rows
        return open_parquet(folder)

    def test_ranges_are_read_in_place_of_the_file(self, source):
        [one] = source.ranges(0, ["word"])
        data = Path(one.path).read_bytes()[one.start : one.stop]
        Path(one.path).unlink()
        found = source.read(0, ["word"], {one: data})
        assert found.to_pydict() == suite_table(7).select(["word"]).to_pydict()
        assert source.ranges(0, []) == []


class TestParquetWithCache(TestParquet):
    def make_source(self, table, part_rows, folder):
        (folder / "data").mkdir()
        super().make_source(table, part_rows, folder / "data")
        return penstock.open(folder / "data", cache=penstock.DiskCache(folder / "cache")).source


# -- a third format: it only registers itself ------------------------------------------------------------------------


class CsvSource(MemorySource):
    """CSV files of one part each, with the columns of the suite. A toy: it reads all files at once."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.glob("*.csv"))
        tables = [self.load(path) for path in paths]
        super().__init__(pa.concat_tables(tables), [table.num_rows for table in tables])
        self.paths = paths
        facts = self.facts
        self.facts = SourceFacts(
            files=tuple(path.name for path in paths),
            file_bytes=np.array([path.stat().st_size for path in paths], np.int64),
            chunk_file=facts.chunk_part,
            chunk_part=np.zeros_like(facts.chunk_part),
            chunk_rows=facts.chunk_rows,
            arrow_schema=facts.arrow_schema,
            unischema=facts.unischema,
            fingerprint=hashlib.blake2b(facts.fingerprint.encode(), digest_size=16).hexdigest(),
            part_noun="sheet",
        )

    def load(self, path: Path) -> pa.Table:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        kinds, schema = {"id": int, "x": float, "maybe": int, "word": str}, suite_table(0).schema
        values = {name: [kind(row[name]) if row[name] else None for row in rows] for name, kind in kinds.items()}
        return pa.table(values, schema)

    def locate(self, chunk, row=None):
        return Location(str(self.paths[chunk]), 0, "sheet 0", row)


def open_csv(url: str, **options: object) -> CsvSource:
    assert not set(options) - {"columns"}
    return CsvSource(Path(url.removeprefix("csv://")))


penstock.register_source("csv", open_csv)


def write_csv(table, part_rows, folder):
    start = 0
    for number, num_rows in enumerate(part_rows):
        with (folder / f"{number}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table.schema.names)
            writer.writerows(row.values() for row in table.slice(start, num_rows).to_pylist())
        start += num_rows


class TestCsv(SourceTests):
    def make_source(self, table, part_rows, folder):
        write_csv(table, part_rows, folder)
        return penstock.open(f"csv://{folder}").source


def test_a_scheme_is_opened_by_its_opener(tmp_path):
    write_csv(suite_table(5), [2, 3], tmp_path)
    ds = penstock.open(f"csv://{tmp_path}", columns=["word", "id"], filters=[("id", ">", 2)])
    assert ds.columns == ("word", "id")
    assert [row["id"] for row in ds] == [3, 4]
    assert ds.files == ("0.csv", "1.csv")


def test_a_path_called_like_a_scheme_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    penstock.write({"a": np.arange(3)}, tmp_path / "csv")
    assert len(penstock.open("csv")) == 3


def test_registering_twice_is_refused_unless_it_is_the_same():
    penstock.register_source("csv", open_csv)
    with pytest.raises(PlanError, match="'csv' is registered already"):
        penstock.register_source("csv", CsvSource)
    with pytest.raises(PlanError, match="a scheme is lower case letters"):
        penstock.register_source("C:", open_csv)
    with pytest.raises(TypeError, match="a function that returns a Source"):
        penstock.register_source("none", None)


def test_an_open_source_takes_no_options_of_opening():
    source = MemorySource({"a": [1, 2]}, [2])
    assert [row["a"] for row in penstock.open(source)] == [1, 2]
    with pytest.raises(TypeError, match="cache= is for opening a URL"):
        penstock.open(source, cache="memory")


# -- cells that are not next to each other ---------------------------------------------------------------------------


class SpacedCells(MemorySource):
    """Gives the cells of column `a` as one buffer with bytes of other files between them, as a tar shard does."""

    def read(self, chunk, columns, buffers=None, *, limit_bytes=None):
        table = super().read(chunk, columns, buffers, limit_bytes=limit_bytes)
        found = dict(zip(table.column_names, table.columns, strict=True))
        if "a" in found:
            cells = found["a"].to_pylist()[::-1]
            data, start, stop = b"header", [], []
            for cell in cells:
                start.append(len(data))
                data += (cell or b"") + b"between"
                stop.append(start[-1] + len(cell or b""))
            places = [np.array(values[::-1], np.int32) for values in (start, stop)]
            valid = np.array([cell is not None for cell in cells[::-1]])
            found["a"] = Cells([np.frombuffer(data, np.uint8)], None, *places, None if valid.all() else valid)
        return found


@pytest.mark.parametrize("nulls", [False, True])
def test_cells_need_not_lie_next_to_each_other(nulls):
    field = penstock.UnischemaField("a", np.float32, (2,), NdarrayCodec(), nulls)
    schema = penstock.Unischema("S", [penstock.UnischemaField("i", np.int64, ()), field])
    values = [None if nulls and i == 4 else np.array([i, -i], np.float32) for i in range(9)]
    cells = [None if value is None else NdarrayCodec().encode(field, value) for value in values]
    table = pa.table({"i": range(9), "a": pa.array([cell and bytes(cell) for cell in cells], pa.binary())})
    plain = penstock.open(MemorySource(table, [4, 5], schema=schema))
    spaced = penstock.open(SpacedCells(table, [4, 5], schema=schema))
    for options in ({}, {"shuffle": True, "lanes": 2}):
        for ours, theirs in zip(
            spaced.loader(batch_size=3, rank=0, world=1, **options),
            plain.loader(batch_size=3, rank=0, world=1, **options),
            strict=True,
        ):
            np.testing.assert_array_equal(np.ma.getmaskarray(ours["a"]), np.ma.getmaskarray(theirs["a"]))
            np.testing.assert_array_equal(np.ma.getdata(ours["a"]), np.ma.getdata(theirs["a"]))
    few = spaced.where([("i", "in", [1, 7])])
    assert [row["a"].tolist() for row in few] == [[1, -1], [7, -7]]
    assert spaced[8]["a"].tolist() == [8, -8]


def test_cells_of_a_column_without_a_codec_are_refused():
    source = SpacedCells({"a": pa.array([b"x"], pa.binary())}, [1])
    with pytest.raises(SchemaError, match="only for fields with a codec"):
        penstock.open(source).take([0])


# -- the suite can fail ----------------------------------------------------------------------------------------------


class Wrong(MemorySource):
    """A source with one mistake."""

    def __init__(self, mistake):
        super().__init__(suite_table(sum(PART_ROWS)), PART_ROWS)
        self.mistake = mistake
        if mistake == "fingerprint":
            self.facts = replace(self.facts, fingerprint=hashlib.blake2b(str(id(self)).encode()).hexdigest())

    def read(self, chunk, columns, buffers=None, *, limit_bytes=None):
        if self.mistake == "limit":
            limit_bytes = None
        found = super().read(chunk, columns, buffers, limit_bytes=limit_bytes)
        if self.mistake == "order of columns":
            found = found.select(sorted(found.column_names))
        return found.slice(0, 0).select([]) if self.mistake == "no columns" and not columns else found

    def statistics(self, column, **options):
        from penstock.source import Statistics

        zeros = np.zeros(len(PART_ROWS), np.int64)
        return Statistics(zeros, zeros) if self.mistake == "null counts" else None


@pytest.mark.parametrize(
    ("mistake", "test"),
    [
        ("order of columns", "test_it_reads_the_columns_requested_in_their_order"),
        ("no columns", "test_no_columns_give_rows_without_values"),
        ("limit", "test_a_limit_of_memory_is_kept"),
        ("null counts", "test_statistics_are_true_or_unknown"),
        ("null counts", "test_a_column_with_nulls_is_never_said_to_have_none"),
    ],
)
def test_the_suite_notices_a_mistake(mistake, test):
    made, reference = Wrong(mistake), MemorySource(suite_table(sum(PART_ROWS)), PART_ROWS)
    arguments = (made, reference) if test.endswith("their_order") else (made,)
    with pytest.raises((AssertionError, SourceError, pytest.fail.Exception)):
        getattr(SourceTests(), test)(*arguments)
    good = (reference, reference) if test.endswith("their_order") else (reference,)
    getattr(SourceTests(), test)(*good)


class HashedSize(MemorySource):
    """Its rows have another size in every process."""

    def row_bytes(self, columns=None):
        return super().row_bytes(columns) + hash("x") % 100_003


class ConstantContent(MemorySource):
    def content(self):
        return "same"


class HashedTests(SourceTests):
    def make_source(self, table, part_rows, folder):
        return HashedSize(table, part_rows)


class ConstantTests(SourceTests):
    def make_source(self, table, part_rows, folder):
        return ConstantContent(table, part_rows)


@pytest.mark.parametrize(
    ("tests", "name"),
    [
        (HashedTests, "test_another_process_sees_the_same"),
        (ConstantTests, "test_other_values_have_another_content"),
    ],
)
def test_the_suite_notices_facts_that_differ_between_processes_or_never(tests, name, tmp_path):
    suite = tests()
    source = suite.make_source(suite_table(sum(PART_ROWS)), PART_ROWS, tmp_path)
    with pytest.raises(AssertionError):
        getattr(suite, name)(source, tmp_path)


def test_messages_call_parts_what_the_source_does():
    ds = penstock.open(MemorySource({"a": [1, 2, 3]}, [1, 2]))
    assert "2 parts" in str(ds)
    assert "row group" not in str(ds)


def test_a_fault_comes_as_often_as_it_is_told():
    source = FaultySource(MemorySource({"a": [1, 2]}, [1, 1]), {1: OSError("once")}, times=1)
    assert source.read(0, ["a"]).num_rows == 1
    with pytest.raises(OSError, match="once"):
        source.read(1, ["a"])
    assert source.read(1, ["a"]).num_rows == 1
    assert source.reads == {0: 1, 1: 2}
