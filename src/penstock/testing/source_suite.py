"""The conformance suite of sources: what plan and engine rely on, as tests to inherit. Needs pytest.

    class TestShards(SourceTests):
        def make_source(self, table, part_rows, folder):
            write_shards(folder, table, part_rows)
            return ShardSource(folder)

Every test makes its own source from an Arrow table with the columns `id` (0, 1, 2 ...), `x` (float32), `maybe`
(int32, with nulls in later parts) and `word` (text), of which the first two are not nullable, cut into parts of the
given numbers of rows. A source that holds other types as well needs its own tests for them. `MemorySource` is the
reference: any source with the same parts has the same order.
"""

# ruff: noqa: D102 -- the names of the tests describe what they check

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.errors import BadFile, BudgetError, ColumnNotFound, StoreUnavailable
from penstock.source import Source, may_hold_nulls, read_table
from penstock.testing.compare import assert_resumes_exactly, assert_same
from penstock.testing.sources import FaultySource, MemorySource

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


_IN_ANOTHER_PROCESS = """
import pickle, sys
from penstock.testing.source_suite import what_orders_depend_on
suite, *arguments = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(pickle.dumps(what_orders_depend_on(suite().make_source(*arguments))))
"""
PART_ROWS = (7, 1, 12, 5, 9, 3, 8)
"""Rows of the parts of most tests."""


def suite_table(num_rows: int) -> pa.Table:
    """Return the rows of the suite."""
    numbers = range(num_rows)
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("x", pa.float32(), nullable=False),
            pa.field("maybe", pa.int32()),
            pa.field("word", pa.string()),
        ]
    )
    maybe = [None if i % 5 == 3 and i > 20 else -i for i in numbers]
    columns = [[*numbers], [i / 4 for i in numbers], maybe, [f"word {i % 11}" for i in numbers]]
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def what_orders_depend_on(source: Source) -> tuple[Any, ...]:
    """Return what must be the same in every process that opens the same data."""
    facts = source.facts
    return facts.fingerprint, facts.chunk_rows.tolist(), source.row_bytes(), source.content()


class SourceTests:
    """Tests of a source; implement `make_source`, which is also called in another process: import the class there."""

    def make_source(self, table: pa.Table, part_rows: Sequence[int], folder: Path) -> Source:
        """Store a table in the empty `folder`, cut into parts of these numbers of rows, and return its source."""
        raise NotImplementedError("subclasses of SourceTests make the source under test")

    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        """The source of `PART_ROWS`."""
        return self.make_source(suite_table(sum(PART_ROWS)), PART_ROWS, tmp_path)

    @pytest.fixture
    def reference(self) -> MemorySource:
        """The same rows in memory."""
        return MemorySource(suite_table(sum(PART_ROWS)), PART_ROWS)

    # -- facts --------------------------------------------------------------------------------------------------------

    def test_facts_describe_the_parts(self, source: Source) -> None:
        facts = source.facts
        assert facts.chunk_rows.tolist() == list(PART_ROWS)
        assert len(facts.chunk_file) == len(facts.chunk_part) == len(PART_ROWS)
        assert (np.diff(facts.chunk_file) >= 0).all()
        assert len(facts.file_bytes) == len(facts.files) > int(facts.chunk_file.max())
        rows = [source.locate(chunk, row) for chunk, num_rows in enumerate(PART_ROWS) for row in range(num_rows)]
        assert len({(place.path, place.part, place.row) for place in rows}) == sum(PART_ROWS)
        assert facts.arrow_schema.names == list(facts.unischema.fields)
        assert {"id", "x", "maybe", "word"} <= set(facts.arrow_schema.names)
        assert set(facts.constants) <= set(facts.arrow_schema.names)

    def test_two_sources_of_the_same_data_agree(self, tmp_path: Path) -> None:
        made = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            made.append(self.make_source(suite_table(20), [8, 12], tmp_path / name))
        first, second = made
        assert first.facts.fingerprint == second.facts.fingerprint
        assert first.content() == second.content()
        assert first.row_bytes() == second.row_bytes()

    def test_other_parts_have_another_fingerprint(self, source: Source, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        other = self.make_source(suite_table(20), [8, 12], tmp_path / "other")
        assert other.facts.fingerprint != source.facts.fingerprint

    def test_other_values_have_another_content(self, source: Source, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        table = suite_table(sum(PART_ROWS))
        words = pa.array([f"another word {i}, and a longer one" for i in range(table.num_rows)])
        table = table.set_column(3, table.schema.field("word"), words)
        assert self.make_source(table, PART_ROWS, tmp_path / "other").content() != source.content()

    def test_another_process_sees_the_same(self, source: Source, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        made = pickle.dumps((type(self), suite_table(sum(PART_ROWS)), PART_ROWS, tmp_path / "other"))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "12345"}
        found = subprocess.run(
            [sys.executable, "-c", _IN_ANOTHER_PROCESS], input=made, env=environment, capture_output=True, check=False
        )
        assert found.returncode == 0, found.stderr.decode()
        assert pickle.loads(found.stdout) == what_orders_depend_on(source)

    def test_it_pickles(self, source: Source) -> None:
        copy = pickle.loads(pickle.dumps(source))
        names = source.facts.arrow_schema.names
        assert copy.facts.fingerprint == source.facts.fingerprint
        assert copy.content() == source.content()
        assert copy.row_bytes() == source.row_bytes()
        for chunk in range(len(PART_ROWS)):
            assert read_table(copy, chunk, names).equals(read_table(source, chunk, names))

    def test_sizes_are_positive_and_there_is_one_for_each_part(self, source: Source) -> None:
        assert source.row_bytes() > source.row_bytes(["id"]) > 0
        sizes = source.chunk_bytes(["id", "word"])
        assert len(sizes) == len(PART_ROWS)
        assert (sizes > 0).all()

    def test_locations_name_file_part_and_row(self, source: Source) -> None:
        texts = set()
        for chunk, part in enumerate(source.facts.chunk_part.tolist()):
            place, first = source.locate(chunk, 2), source.locate(chunk, 0)
            assert (place.part, place.row) == (part, cast("int", first.row) + 2)
            assert place.part_name in str(place)
            assert source.facts.part_noun in place.part_name
            assert str(place).endswith(f"row {place.row}")
            texts.add(str(source.locate(chunk)))
        assert len(texts) == len(PART_ROWS)

    # -- reading ------------------------------------------------------------------------------------------------------

    def test_it_reads_the_columns_requested_in_their_order(self, source: Source, reference: MemorySource) -> None:
        for columns in (["word", "id"], ["maybe"], ["id", "x", "maybe", "word"]):
            for chunk in range(len(PART_ROWS)):
                found = read_table(source, chunk, columns)
                assert found.schema.names == columns
                assert found.schema.types == [source.facts.arrow_schema.field(name).type for name in columns]
                assert found.to_pydict() == read_table(reference, chunk, columns).to_pydict()

    def test_no_columns_give_rows_without_values(self, source: Source) -> None:
        assert [read_table(source, chunk, []).num_rows for chunk in range(len(PART_ROWS))] == list(PART_ROWS)

    def test_a_column_that_is_not_there_is_named(self, source: Source) -> None:
        with pytest.raises(ColumnNotFound, match="nonsense"):
            source.read(0, ["id", "nonsense"])

    def test_threads_read_the_same(self, source: Source) -> None:
        chunks = [*range(len(PART_ROWS))] * 4
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda chunk: read_table(source, chunk, ["id"])["id"].to_pylist(), chunks))
        assert found[: len(PART_ROWS)] * 4 == found

    def test_ranges_hold_all_that_a_read_needs(self, source: Source) -> None:
        columns = ["word", "id"]
        for chunk in range(len(PART_ROWS)):
            ranges = source.ranges(chunk, columns)
            buffers = {}
            for one in ranges:
                with open(one.path, "rb") as file:
                    file.seek(one.start)
                    buffers[one] = file.read(one.stop - one.start)
            found = source.read(chunk, columns, buffers)
            assert pa.table(found).equals(read_table(source, chunk, columns))

    def test_a_limit_of_memory_is_kept(self, source: Source) -> None:
        with pytest.raises(BudgetError):
            source.read(2, ["word"], limit_bytes=16)

    def test_statistics_are_true_or_unknown(self, source: Source) -> None:
        for name in ("id", "x", "maybe", "word"):
            known = source.statistics(name)
            if known is None:
                continue
            assert len(known.nulls) == len(known.element_nulls) == len(PART_ROWS)
            for chunk in range(len(PART_ROWS)):
                values = read_table(source, chunk, [name])[name].to_pylist()
                assert known.nulls[chunk] in (-1, values.count(None))
                low, high = (None if bound is None else bound[chunk].as_py() for bound in (known.low, known.high))
                assert (low is None) == (high is None)
                assert low is None or all(low <= value <= high for value in values if value is not None)

    def test_a_column_with_nulls_is_never_said_to_have_none(self, source: Source) -> None:
        assert "maybe" in may_hold_nulls(source, ["id", "maybe"])

    # -- loading ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("shuffle", [False, True, "groups"])
    def test_the_order_is_that_of_the_reference(self, source: Source, reference: MemorySource, shuffle: Any) -> None:
        options: dict[str, Any] = {"batch_size": 4, "shuffle": shuffle, "seed": 3, "epochs": 2, "rank": 0, "world": 1}
        if shuffle is True:
            options["lanes"] = 3  # chosen by the size of rows otherwise, which differs between sources
        columns = ["id", "word"]
        with penstock.open(source, columns=columns).loader(**options) as loader:
            found = list(loader)
        with penstock.open(reference, columns=columns).loader(**options) as loader:
            assert_same(found, list(loader))
        ids = np.concatenate([batch["id"] for batch in found])
        assert np.sort(ids).tolist() == sorted([*range(sum(PART_ROWS))] * 2)

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_it_resumes_at_every_step(self, source: Source, shuffle: bool) -> None:
        dataset = penstock.open(source)
        assert_resumes_exactly(lambda: dataset.loader(batch_size=4, shuffle=shuffle, seed=1, rank=0, world=1))

    def test_another_number_of_ranks_takes_over_anywhere(self, source: Source) -> None:
        dataset, total = penstock.open(source, columns=["id"]), sum(PART_ROWS)
        options: dict[str, Any] = {"batch_size": 3, "shuffle": True, "remainder": "uneven"}
        for step in (1, 3, 5):
            seen: list[int] = []
            for rank in range(2):
                with dataset.loader(**options, rank=rank, world=2) as loader:
                    batches = iter(loader)
                    seen += [int(i) for _ in range(step) for i in next(batches)["id"]]
                    state = loader.state_dict()
            for rank in range(3):
                with dataset.loader(**options, rank=rank, world=3) as loader:
                    loader.load_state_dict(state)
                    seen += [int(i) for batch in loader for i in batch["id"]]
            assert sorted(seen) == [*range(total)], step

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_a_column_has_one_type_in_every_batch(self, source: Source, shuffle: bool) -> None:
        with penstock.open(source).loader(batch_size=2, shuffle=shuffle, rank=0, world=1) as loader:
            for batch in loader:
                assert isinstance(batch["maybe"], np.ma.MaskedArray)
                assert batch["maybe"].mask.shape == batch["maybe"].shape
                assert type(batch["id"]) is type(batch["x"]) is np.ndarray

    def test_filters_select_the_same_rows(self, source: Source, reference: MemorySource) -> None:
        for filters in ([("id", ">", 20)], [("maybe", "<", -9), ("word", "=", "word 1")], [("x", "in", [1.0, 2.5])]):
            found, wanted = (penstock.open(one).where(filters) for one in (source, reference))
            assert [row["id"] for row in found] == [row["id"] for row in wanted], filters

    def test_too_little_memory_is_an_error_that_names_the_largest_part(self, source: Source) -> None:
        with pytest.raises(BudgetError, match=f"largest {source.facts.part_noun}"):
            penstock.open(source).loader(batch_size=4, memory_bytes=64, rank=0, world=1)

    def test_a_damaged_part_is_an_error_in_its_place_or_left_out(self, source: Source) -> None:
        place = source.locate(2)
        error = BadFile(f"{place}: damaged", path=place.path, row_group=place.part)
        dataset = penstock.open(FaultySource(source, {2: error}), columns=["id"])
        with dataset.loader(batch_size=4, rank=0, world=1) as loader:
            batches = iter(loader)
            assert [int(i) for _ in range(2) for i in next(batches)["id"]] == [*range(8)]
            with pytest.raises(BadFile, match="damaged"):
                next(batches)
        with dataset.loader(batch_size=4, on_error="skip", rank=0, world=1) as loader:
            found = [int(i) for batch in loader for i in batch["id"]]
            assert found == [*range(8), *range(20, sum(PART_ROWS))]
            assert {(one.path, one.row_group) for one in loader.skipped} == {(place.path, place.part)}
            assert [one.row for one in loader.skipped] == [source.locate(2, row).row for row in range(12)]

    def test_a_store_that_does_not_answer_is_never_skipped(self, source: Source) -> None:
        error = StoreUnavailable("no answer", url="store://rows", attempts=3)
        dataset = penstock.open(FaultySource(source, {1: error}))
        with dataset.loader(batch_size=4, on_error="skip", rank=0, world=1) as loader:
            with pytest.raises(StoreUnavailable, match="no answer"):
                list(loader)
            assert not loader.skipped

    def test_giving_up_ends_all_threads(self, source: Source) -> None:
        before = set(threading.enumerate())
        dataset = penstock.open(source)
        for batches in (0, 1, 3):
            with dataset.loader(batch_size=2, shuffle=True, epochs=None, rank=0, world=1) as loader:
                for number, _ in enumerate(loader):
                    if number == batches:
                        break
        rows = iter(dataset)
        next(rows)
        del rows
        deadline = time.monotonic() + 60
        while {one for one in threading.enumerate() if one.is_alive()} - before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not {one for one in threading.enumerate() if one.is_alive()} - before

    def test_ranks_of_several_processes_deal_out_every_row_once(self, source: Source) -> None:
        copies = [pickle.loads(pickle.dumps(penstock.open(source, columns=["id"]))) for _ in range(3)]
        options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 9, "remainder": "uneven"}
        found = []
        for rank, dataset in enumerate(copies):
            with dataset.loader(**options, rank=rank, world=3) as loader:
                found += [int(i) for batch in loader for i in batch["id"]]
        assert sorted(found) == [*range(sum(PART_ROWS))]
