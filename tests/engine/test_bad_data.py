"""Damaged input is told with file, row group, row and column; or skipped and listed, with every step as planned."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, NdarrayCodec
from penstock.errors import BadFile, DecodeError, StateMismatch
from penstock.schema.stored import SCHEMA_KEY, schema_to_json
from penstock.testing import assert_resumes_exactly, assert_same, make_parquet
from tests.engine.make import column, ids, run_ranks, save, three

POOLS = ["thread", "serial", "process"]
KINDS = [False, "groups", True]
FILES = ((5, 5), (5, 5), (5, 5))
"""30 rows: row i lies in file i // 10, row group i % 10 // 5, row i % 5."""

SCHEMA = Unischema(
    "Pictures",
    [
        UnischemaField("id", np.int64, (), None, False),
        UnischemaField("image", np.uint8, (4, 4, 3), CompressedImageCodec("png"), False),
        UnischemaField("array", np.float32, (2, 3), NdarrayCodec(), False),
        UnischemaField("free", np.int16, (None,), NdarrayCodec(), True),
        UnischemaField("pair", np.float32, (2,), None, False),
        UnischemaField("text", np.str_, (), None, True),
    ],
)


def value(name, i):
    values = {
        "image": np.full((4, 4, 3), i, np.uint8),
        "array": np.full((2, 3), i, np.float32),
        "free": np.full(i % 4, i, np.int16),
    }
    return values[name]


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


BAD = {
    "no image": ("image", b"this is not an image", "image"),
    "half an image": ("image", SCHEMA.fields["image"].codec.encode(SCHEMA.fields["image"], value("image", 1))[:40], ""),
    "empty image": ("image", b"", ""),
    "image of another shape": (
        "image",
        CompressedImageCodec("png").encode(
            UnischemaField("image", np.uint8, (2, 5, 3), CompressedImageCodec("png"), False),
            np.zeros((2, 5, 3), np.uint8),
        ),
        r"expects shape \(4, 4, 3\).*\(2, 5, 3\)",
    ),
    "array of another shape": ("array", npy(np.zeros((3, 2), np.float32)), r"expects shape \(2, 3\).*\(3, 2\)"),
    "array of another dtype": ("array", npy(np.zeros((2, 3), np.int64)), "expects dtype float32.*int64"),
    "array of boolean shape": (
        "array",
        npy(np.zeros((2, 3), np.float32)).replace(b"(2, 3), }   ", b"(2, True), }"),
        r"shape \(2, True\)",
    ),
    "empty array": ("array", b"", "not an .npy cell"),
    "array of one byte": ("array", b"x", "not an .npy cell"),
    "array cut short": ("array", npy(np.zeros((2, 3), np.float32))[:-5], ""),
    "ragged of another rank": ("free", npy(np.zeros((2, 2), np.int16)), r"expects shape \(None,\).*\(2, 2\)"),
    "list of another length": ("pair", [1.0, 2.0, 3.0], "wanted a list of 2 values, got 3"),
    "text that is none": ("text", b"\xff\xfe", "not UTF-8"),
}


def columns_with(bad):
    """Columns for `make_parquet`; `bad` is {row: (column, cell)}."""

    def cells(name, rows, good):
        return [bad[i][1] if i in bad and bad[i][0] == name else good(i) for i in rows.tolist()]

    def encoded(name):
        field = SCHEMA.fields[name]
        return lambda i: field.codec.encode(field, value(name, i))

    def text(rows):
        raw = cells("text", rows, lambda i: None if i % 3 == 0 else f"row {i}".encode())
        return pa.Array.from_buffers(pa.string(), len(raw), pa.array(raw, pa.binary()).buffers())

    def columns(rows):
        found = {"id": pa.array(rows)}
        for name in ("image", "array", "free"):
            found[name] = pa.array(cells(name, rows, encoded(name)), pa.binary())
        found["pair"] = pa.array(cells("pair", rows, lambda i: [i, -i]), pa.list_(pa.float32()))
        found["text"] = text(rows)
        return found

    return columns


def pictures(folder, bad):
    metadata = {SCHEMA_KEY: schema_to_json(SCHEMA).encode()}
    return penstock.open(make_parquet(folder, FILES, columns=columns_with(bad), metadata=metadata))


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("bad") / "good", {})


def spoil_page(path, group, number):
    """Flip bytes in the middle of the pages of a column."""
    info = pq.read_metadata(path).row_group(group).column(number)
    data = bytearray(path.read_bytes())
    first = min(offset for offset in (info.dictionary_page_offset, info.data_page_offset) if offset)
    for at in range(first, first + info.total_compressed_size):
        data[at] ^= 0xA5
    path.write_bytes(data)


# -- files ----------------------------------------------------------------------------------------------------------


def spoiled(data, how):
    return {"truncated": data[: len(data) // 2], "empty": b"", "magic": b"HTML" + data[4:-4] + b"HTML"}[how]


@pytest.mark.parametrize("how", ["truncated", "empty", "magic"])
def test_a_bad_file_is_named_at_opening_and_can_be_left_out(tmp_path, how):
    root = make_parquet(tmp_path, FILES)
    bad = root / "part-00001.parquet"
    bad.write_bytes(spoiled(bad.read_bytes(), how))
    with pytest.raises(BadFile, match=r"part-00001\.parquet") as caught:
        penstock.open(root)
    assert caught.value.path == bad.as_posix()
    ds = penstock.open(root, on_error="skip")
    assert [path for path, _ in ds.skipped] == [bad.as_posix()]
    for shuffle in KINDS:
        with ds.loader(batch_size=4, shuffle=shuffle) as loader:
            assert len(loader) == 5
            assert sorted(ids(loader)) == [*range(10), *range(20, 30)]
            assert loader.skipped == []


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("shuffle", KINDS)
def test_a_corrupt_page_names_file_row_group_and_column(tmp_path, pool, shuffle):
    root = make_parquet(tmp_path, FILES)
    spoil_page(root / "part-00001.parquet", 1, 1)
    ds = penstock.open(root)
    loader = ds.loader(batch_size=4, shuffle=shuffle, pool=pool, workers=1)
    with loader, pytest.raises(BadFile, match=r"part-00001\.parquet, row group 1, column 'value'") as caught:
        list(loader)
    assert (caught.value.row_group, caught.value.column) == (1, "value")
    with pytest.raises(BadFile, match=r"part-00001\.parquet, row group 1, column 'value'"):
        ds.take([3, 17])
    assert ds.take([3, 12])["id"].tolist() == [3, 12]
    with ds.select(["id"]).loader(batch_size=4, shuffle=shuffle) as loader:
        assert sorted(ids(loader)) == list(range(30))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_corrupt_page_is_told_after_every_batch_before_it(tmp_path, workers):
    root = make_parquet(tmp_path, FILES)
    spoil_page(root / "part-00001.parquet", 1, 1)
    how = {"workers": workers} if workers else {"pool": "serial"}
    with penstock.open(root).loader(batch_size=2, **how) as loader:
        got = []
        with pytest.raises(BadFile):
            got.extend(loader)
        assert ids(got) == list(range(14))  # the batch of rows 14 and 15 is the first that needs it
        assert loader.state_dict()["left"] == [[14, 30]]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("shuffle", KINDS)
def test_rows_of_a_corrupt_page_are_skipped_and_listed(tmp_path, pool, shuffle):
    root = make_parquet(tmp_path, FILES)
    plan = ids_of(penstock.open(root), shuffle)
    spoil_page(root / "part-00001.parquet", 1, 1)
    with penstock.open(root).loader(batch_size=4, shuffle=shuffle, on_error="skip", pool=pool, workers=2) as loader:
        assert len(loader) == 8
        batches = list(loader)
        skipped = loader.skipped
    gone = set(range(15, 20))
    assert [b["id"].tolist() for b in batches] == [[i for i in rows if i not in gone] for rows in plan]
    assert sorted(one.row for one in skipped) == [0, 1, 2, 3, 4]
    assert {(one.path, one.row_group, one.column) for one in skipped} == {
        ((root / "part-00001.parquet").as_posix(), 1, "value")
    }
    assert all("row group 1" in one.reason for one in skipped)


def ids_of(ds, shuffle, size=4):
    with ds.select(["id"]).loader(batch_size=size, shuffle=shuffle) as loader:
        return [batch["id"].tolist() for batch in loader]


def test_a_batch_that_loses_all_its_rows_still_comes(tmp_path):
    root = make_parquet(tmp_path, FILES)
    spoil_page(root / "part-00000.parquet", 0, 1)
    with penstock.open(root).loader(batch_size=5, on_error="skip", transform=counted) as loader:
        batches = list(loader)
    assert [len(b["id"]) for b in batches] == [0, 5, 5, 5, 5, 5]
    assert batches[0]["id"].dtype == np.int64
    assert batches[0]["value"].dtype == np.float32
    assert batches[0]["count"].shape == (0, 2)


def counted(batch, positions, rng):
    assert len(positions) == len(batch["id"])
    return {**batch, "count": rng.random((len(batch["id"]), 2))}


@pytest.mark.parametrize("shuffle", KINDS)
@pytest.mark.parametrize("gone", [False, True])
def test_the_first_row_group_may_be_the_damaged_one(tmp_path, shuffle, gone):
    make_parquet(tmp_path, FILES, columns=three)
    ds, first = penstock.open(tmp_path), tmp_path / "part-00000.parquet"
    if gone:
        first.unlink()
    else:
        spoil_page(first, 0, 2)  # of a text, whose size is measured there
    with ds.loader(batch_size=4, shuffle=shuffle, on_error="skip") as loader:
        assert sorted(ids(loader)) == list(range(10 if gone else 5, 30))
        assert len(loader.skipped) == (10 if gone else 5)


def test_a_filter_leaves_out_what_it_cannot_read_only_where_the_dataset_was_opened_so(tmp_path):
    make_parquet(tmp_path, FILES, columns=three)
    spoil_page(tmp_path / "part-00001.parquet", 0, 2)
    with pytest.raises(BadFile, match=r"part-00001\.parquet, row group 0, column 'text'"):
        penstock.open(tmp_path).where([("text", "!=", "row 2")])
    kept = penstock.open(tmp_path, on_error="skip").where([("text", "!=", "row 2")])
    with kept.loader(batch_size=4) as loader:
        assert ids(loader) == [i for i in range(30) if i % 4 != 1 and i != 2 and i not in range(10, 15)]
    assert len(kept.skipped) == 1


@pytest.mark.parametrize("shuffle", KINDS)
def test_the_generator_of_a_batch_does_not_depend_on_what_is_skipped(tmp_path, shuffle):
    root = make_parquet(tmp_path, FILES)
    options = {"batch_size": 3, "shuffle": shuffle, "transform": drawn, "on_error": "skip"}
    with penstock.open(root).loader(**options) as loader:
        whole = {int(i): x for batch in loader for i, x in zip(batch["id"], batch["draw"], strict=True)}
    spoil_page(root / "part-00001.parquet", 1, 1)
    with penstock.open(root).loader(**options) as loader:
        rest = {int(i): x for batch in loader for i, x in zip(batch["id"], batch["draw"], strict=True)}
    assert rest == {i: x for i, x in whole.items() if i not in range(15, 20)}


def drawn(batch, rng):
    return {"id": batch["id"], "draw": np.full(len(batch["id"]), rng.random())}


@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("shuffle", KINDS)
def test_ranks_stay_in_step_whatever_is_skipped(tmp_path, shuffle, remainder):
    root = make_parquet(tmp_path, FILES)
    options = {"world": 4, "batch_size": 3, "shuffle": shuffle, "remainder": remainder}
    planned, states = run_ranks(penstock.open(root), take=2, **options)
    spoil_page(root / "part-00001.parquet", 1, 1)
    got, others = run_ranks(penstock.open(root), take=2, on_error="skip", **options)
    assert others == states
    assert [len(stream) for stream in got] == [len(stream) for stream in planned]
    for stream, plan in zip(got, planned, strict=True):
        for batch, whole in zip(stream, plan, strict=True):
            kept = [i not in range(15, 20) for i in whole["id"]]
            assert batch["id"].tolist() == whole["id"][kept].tolist()
            if remainder == "pad":
                assert batch["_valid"].tolist() == whole["_valid"][kept].tolist()


# -- cells ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_bad_cell_names_file_row_group_row_and_column(tmp_path, kind, shuffle):
    name, cell, reason = BAD[kind]
    ds = pictures(tmp_path, {17: (name, cell)})
    place = rf"column '{name}' in .*part-00001\.parquet, row group 1, row 2: .*{reason}"
    for pool in ("thread", "serial"):
        loader = ds.loader(batch_size=4, shuffle=shuffle, pool=pool)
        with loader, pytest.raises(DecodeError, match=place) as caught:
            list(loader)
        error = caught.value
        assert (error.row_group, error.row, error.column) == (1, 2, name)
        assert error.path == (tmp_path / "part-00001.parquet").as_posix()
    with pytest.raises(DecodeError, match=place):
        ds[17]
    with pytest.raises(DecodeError, match=place):
        ds.take([1, 17, 3])
    assert ds[16]["id"] == 16


@pytest.mark.parametrize("kind", ["no image", "array of another shape", "ragged of another rank", "text that is none"])
def test_a_bad_cell_is_told_by_processes_too(tmp_path, kind):
    name, cell, reason = BAD[kind]
    loader = pictures(tmp_path, {17: (name, cell)}).loader(batch_size=4, pool="process", workers=1)
    with (
        loader,
        pytest.raises(DecodeError, match=rf"'{name}' in .*part-00001\.parquet, row group 1, row 2: .*{reason}"),
    ):
        list(loader)


def test_rows_are_named_as_stored_where_a_filter_has_left_some_out(tmp_path):
    name, cell, _ = BAD["no image"]
    ds = pictures(tmp_path, {17: (name, cell)}).where([("id", "in", [2, 16, 17, 19])])
    with ds.loader(batch_size=4) as loader, pytest.raises(DecodeError, match="row group 1, row 2") as caught:
        list(loader)
    assert caught.value.row == 2
    with ds.loader(batch_size=4, on_error="skip") as loader:
        assert ids(loader) == [2, 16, 19]
        assert [one.row for one in loader.skipped] == [2]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("shuffle", KINDS)
def test_bad_cells_are_skipped_one_by_one(good, tmp_path, pool, shuffle):
    bad = {2 * k: (name, cell) for k, (name, cell, _) in enumerate(BAD.values())}
    ds = pictures(tmp_path, bad)
    with ds.loader(batch_size=4, shuffle=shuffle, on_error="skip", pool=pool, workers=2) as loader:
        got, skipped = list(loader), loader.skipped
    assert [b["id"].tolist() for b in got] == [[i for i in rows if i not in bad] for rows in ids_of(good, shuffle)]
    places = {(one.path[-13:-8], one.row_group, one.row): one.column for one in skipped}
    assert places == {(f"{i // 10:05}", i % 10 // 5, i % 5): name for i, (name, _) in bad.items()}
    with good.loader(batch_size=4, shuffle=shuffle) as loader:
        whole = {int(i): row for batch in loader for i, row in zip(batch["id"], rows_of(batch), strict=True)}
    for batch in got:
        for i, row in zip(batch["id"].tolist(), rows_of(batch), strict=True):
            assert_same(row, whole[i])


def rows_of(batch):
    return [{name: values[i] for name, values in batch.items()} for i in range(len(batch["id"]))]


def test_two_bad_cells_of_one_row_are_one_skipped_row(tmp_path):
    def columns(rows):
        found = columns_with({7: BAD["no image"][:2]})(rows)
        arrays = [
            b"nothing" if i == 7 else cell for i, cell in zip(rows.tolist(), found["array"].to_pylist(), strict=True)
        ]
        return {**found, "array": pa.array(arrays, pa.binary())}

    metadata = {SCHEMA_KEY: schema_to_json(SCHEMA).encode()}
    ds = penstock.open(make_parquet(tmp_path, FILES, columns=columns, metadata=metadata))
    with ds.loader(batch_size=30, on_error="skip") as loader:
        assert len(next(iter(loader))["id"]) == 29
        assert len(loader.skipped) == 1


@pytest.mark.parametrize("shuffle", KINDS)
def test_resume_stays_exact_where_rows_are_skipped(tmp_path, shuffle):
    bad = {2 * k: (name, cell) for k, (name, cell, _) in enumerate(BAD.values())}
    ds = pictures(tmp_path, bad)
    spoil_page(tmp_path / "part-00002.parquet", 0, 0)
    ds = penstock.open(tmp_path)
    assert_resumes_exactly(lambda: ds.loader(batch_size=4, shuffle=shuffle, on_error="skip", workers=2), every=2)
    with ds.loader(batch_size=4, shuffle=shuffle, on_error="skip") as loader:
        head = ids(itertools.islice(loader, 3))
        state = save(loader)
    rest, _ = run_ranks(ds, world=3, state=state, batch_size=2, shuffle=shuffle, remainder="uneven", on_error="skip")
    expected = [i for i in range(30) if i not in bad and i not in range(20, 25)]
    assert sorted(head + [i for stream in rest for i in ids(stream)]) == expected


def test_rows_skipped_in_every_epoch_are_listed_once(tmp_path):
    ds = pictures(tmp_path, {17: BAD["no image"][:2], 4: BAD["no image"][:2]})
    with ds.loader(batch_size=4, on_error="skip", epochs=5, shuffle=True, skip_limit=2) as loader:
        assert len(list(loader)) == 40
        assert {(one.path[-13:-8], one.row) for one in loader.skipped} == {("00001", 2), ("00000", 4)}
        assert len(loader.skipped) == 2


@pytest.mark.parametrize("pool", POOLS)
def test_more_skipped_rows_than_the_limit_are_an_error(tmp_path, pool):
    ds = pictures(tmp_path, dict.fromkeys((2, 9, 17), BAD["no image"][:2]))
    options = {"batch_size": 5, "on_error": "skip", "pool": pool, "workers": 1}
    with ds.loader(skip_limit=3, **options) as loader:
        assert len(ids(loader)) == 27
    with ds.loader(skip_limit=2, **options) as loader:
        got = []
        with pytest.raises(DecodeError, match=r"3 rows skipped, more than skip_limit=2; the last one in .*row 2"):
            got.extend(loader)
        assert ids(got) == [0, 1, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14]
        assert loader.state_dict()["left"] == [[15, 30]]  # what was not delivered does not count
    with ds.loader(skip_limit=0, **options) as loader, pytest.raises(DecodeError):
        list(loader)


# -- files that change after opening --------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", POOLS)
def test_a_file_deleted_after_opening_is_named(tmp_path, pool):
    ds = penstock.open(make_parquet(tmp_path, FILES))
    (tmp_path / "part-00001.parquet").unlink()
    loader = ds.loader(batch_size=4, pool=pool, workers=1)
    with loader, pytest.raises(BadFile, match=r"part-00001\.parquet, row group 0.*not there any more; open the"):
        list(loader)
    with ds.loader(batch_size=4, on_error="skip", pool=pool, workers=1) as loader:
        assert ids(loader) == [*range(10), *range(20, 30)]
        assert len(loader.skipped) == 10


def test_a_file_replaced_after_opening_is_named(tmp_path):
    ds = penstock.open(make_parquet(tmp_path / "a", FILES))
    other = make_parquet(tmp_path / "b", ((9, 5), (4,)))
    (tmp_path / "a" / "part-00001.parquet").write_bytes((other / "part-00000.parquet").read_bytes())
    with ds.loader(batch_size=4) as loader:
        got = []
        with pytest.raises(BadFile, match=r"part-00001\.parquet, row group 0: the file has changed"):
            got.extend(loader)
        assert ids(got) == list(range(8))
        state = save(loader)
    loader = penstock.open(tmp_path / "a").loader(batch_size=4)
    with loader, pytest.raises(StateMismatch, match="dataset of the state"):
        loader.load_state_dict(state)


def test_an_unknown_codec_stops_at_its_column_and_names_the_cure(tmp_path, good):
    stored = schema_to_json(SCHEMA).replace('"ndarray"', '"made_up.codecs.Swirl"')
    assert "Swirl" in stored
    ds = penstock.open(make_parquet(tmp_path, FILES, columns=columns_with({}), metadata={SCHEMA_KEY: stored.encode()}))
    for options in ({}, {"transform": dict}, {"on_error": "skip"}):
        loader = ds.loader(batch_size=4, **options)
        with loader, pytest.raises(penstock.errors.CodecError, match=r"'array'.*penstock\.register_codec\(Swirl\)"):
            list(loader)
    assert_same(ds.select(["id", "image"]).head(3), good.select(["id", "image"]).head(3))


def test_nothing_is_lost_where_nothing_is_bad(good):
    for shuffle in KINDS:
        with good.loader(batch_size=4, shuffle=shuffle, on_error="skip", skip_limit=0) as loader:
            batches = list(loader)
            assert sorted(column(batches, "id")) == list(range(30))
            assert loader.skipped == []
