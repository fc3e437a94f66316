"""What a source returns and raises is checked at one place: wrong rows are never delivered, good ones never skipped."""

import sqlite3

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.errors import BadFile, DecodeError, FileChanged, SourceError, StoreRefused, StoreUnavailable
from penstock.testing import FaultySource, MemorySource

PART_ROWS = [10, 10, 10]
TABLE = pa.table({"id": pa.array(range(30)), "x": pa.array([i / 2 for i in range(30)])})


class Altered(MemorySource):
    """Returns something else for the second part."""

    def __init__(self, change):
        super().__init__(TABLE, PART_ROWS)
        self.change = change

    def read(self, chunk, columns, buffers=None, *, limit_bytes=None):
        found = super().read(chunk, columns, buffers, limit_bytes=limit_bytes)
        return self.change(found) if chunk == 1 else found


WRONG = {
    "fewer rows": (lambda table: table.slice(0, 9), "part 1: the source returned 9 rows .* wanted, .* are 10 rows"),
    "more rows": (lambda table: pa.concat_tables([table, table]), "returned 20 rows .* are 10 rows"),
    "no rows": (lambda table: table.slice(0, 0), "returned 0 rows .* are 10 rows"),
    "other order": (lambda table: table.select(["x", "id"]), r"columns \['x', 'id'\]; wanted, .*columns \['id', 'x'\]"),
    "a column less": (lambda table: table.select(["id"]), r"columns \['id'\]; wanted"),
    "a column more": (lambda table: table.append_column("y", table["x"]), "'y'"),
    "nothing": (lambda table: None, "returned a NoneType"),
    "a list": (lambda table: [table["id"], table["x"]], "returned a list"),
    "a record batch": (lambda table: table.to_batches()[0], "returned a RecordBatch"),
    "short arrays": (lambda table: {"id": table["id"], "x": table["x"].slice(1)}, "{'id': 10, 'x': 9}"),
    "plain lists": (lambda table: table.to_pydict(), "{'id': 'list', 'x': 'list'}"),
}
CASES = pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG.keys())


@CASES
@pytest.mark.parametrize("shuffle", [False, True, "groups"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_loader_delivers_no_part_with_other_rows_or_columns(change, message, shuffle, on_error):
    options = {"batch_size": 4, "shuffle": shuffle, "on_error": on_error, "rank": 0, "world": 1}
    with penstock.open(Altered(change)).loader(**options) as loader:
        with pytest.raises(SourceError, match=message):
            list(loader)
        assert loader.skipped == []


@CASES
def test_random_access_and_filters_notice_it_too(change, message):
    dataset = penstock.open(Altered(change))
    with pytest.raises(SourceError, match=message):
        dataset.take([12])
    with pytest.raises(SourceError):
        dataset.where([("x", ">", 3.0), ("id", ">", 3)])


def test_arrays_by_name_in_any_order_are_right():
    dataset = penstock.open(Altered(lambda table: {"x": table["x"], "id": table["id"].combine_chunks()}))
    assert [row["id"] for row in dataset] == list(range(30))


@pytest.mark.parametrize("shuffle", [False, True, "groups"])
@pytest.mark.parametrize(
    "error", [sqlite3.OperationalError("database is locked"), AttributeError("no 'reed'"), FileNotFoundError("gone")]
)
def test_an_error_that_a_source_does_not_explain_is_raised_unchanged_and_never_skipped(error, shuffle):
    source = FaultySource(MemorySource(TABLE, PART_ROWS), {1: error})
    options = {"batch_size": 4, "shuffle": shuffle, "on_error": "skip", "rank": 0, "world": 1}
    with penstock.open(source).loader(**options) as loader:
        with pytest.raises(type(error)) as caught:
            list(loader)
        assert loader.skipped == []
    assert caught.value is error
    assert "while reading rows, part 1" in error.__notes__


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError("no answer"), StoreUnavailable),
        (ConnectionResetError("reset"), StoreUnavailable),
        (PermissionError("no"), StoreRefused),
        (StopIteration(), SourceError),
    ],
)
def test_errors_that_tell_about_a_store_are_of_its_classes(error, kind):
    dataset = penstock.open(FaultySource(MemorySource(TABLE, PART_ROWS), {1: error}))
    with dataset.loader(batch_size=4, on_error="skip", rank=0, world=1) as loader, pytest.raises(kind):
        list(loader)
    with pytest.raises(kind):
        dataset.take([12])


@pytest.mark.parametrize(
    ("error", "skipped"),
    [
        (BadFile("damaged", path="rows", row_group=1), True),
        (DecodeError("damaged cell"), True),
        (FileChanged("another file", path="rows"), False),
    ],
)
def test_only_damage_is_skipped(error, skipped):
    dataset = penstock.open(FaultySource(MemorySource(TABLE, PART_ROWS), {1: error}))
    with dataset.loader(batch_size=4, on_error="skip", rank=0, world=1) as loader:
        if skipped:
            found = np.concatenate([batch["id"] for batch in loader])
            assert found.tolist() == [*range(10), *range(20, 30)]
            assert len(loader.skipped) == 10
        else:
            with pytest.raises(type(error)):
                list(loader)
