"""Parts of row groups as the chunks of a source: the same rows, read by their pages."""

import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.dataset import part_source, parts
from penstock.dataset.parquet import open_parquet
from penstock.dataset.part_source import ParquetParts, split_row_groups
from penstock.errors import BadFile, BudgetError, DecodeError, FileChanged
from penstock.source import Selection, Split, pack_mask, read_table
from penstock.storage.cache import MemoryCache
from penstock.testing.source_suite import SourceTests


class TestSuite(SourceTests):
    """What plan and engine rely on, with parts of two row groups in each of two files."""

    def make_source(self, table, part_rows, folder):
        half, start, borders = max(1, len(part_rows) // 2), 0, []
        for number, sizes in enumerate([part_rows[:half], part_rows[half:]]):
            with pq.ParquetWriter(
                folder / f"file-{number}.parquet", table.schema, write_page_index=True, data_page_size=1,
                write_batch_size=2,
            ) as writer:  # fmt: skip
                for group in (sizes[:2], sizes[2:]):
                    if group:
                        writer.write_table(table.slice(start, sum(group)))
                        start += sum(group)
                        borders.append(np.cumsum([0, *group]))
        return ParquetParts(open_parquet(folder), borders)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parts, "TARGET_BYTES", 20_000)
    monkeypatch.setattr(parts, "LEAST_BYTES", 10_000)
    monkeypatch.setattr(parts, "MOST_READ", 100)


def write(folder, num_rows=1_000, *, files=2, **options):
    rng = np.random.default_rng(0)
    for number in range(files):
        table = pa.table(
            {
                "id": np.arange(num_rows) + number * num_rows,
                "label": [f"class {i // 40}" for i in range(num_rows)],
                "image": pa.array([rng.bytes(int(k)) for k in rng.integers(200, 600, num_rows)], pa.binary()),
                "box": [None if i % 9 == 0 else {"x": i, "name": f"box {i}"} for i in range(num_rows)],
            }
        )
        keywords = {"write_page_index": True, "data_page_size": 1_000, "write_batch_size": 10, **options}
        pq.write_table(
            table, folder / f"{number}.parquet", row_group_size=num_rows // 2, use_dictionary=False, **keywords
        )
    return open_parquet(folder)


def test_large_row_groups_are_divided_and_hold_the_same_rows(tmp_path):
    source = write(tmp_path)
    divided = split_row_groups(source)
    names = source.facts.arrow_schema.names
    assert len(divided.facts.chunk_rows) > 30
    assert divided.facts.chunk_rows.sum() == 2_000
    for chunk in range(len(divided.facts.chunk_rows)):
        start, rows = int(divided.first_row[chunk]), int(divided.facts.chunk_rows[chunk])
        wanted = read_table(source, int(divided.chunk[chunk]), names).slice(start, rows)
        assert read_table(divided, chunk, names).equals(wanted)


def test_ranges_are_those_of_few_pages(tmp_path):
    source = write(tmp_path)
    divided = split_row_groups(source)
    needed = sum(one.stop - one.start for chunk in range(4) for one in source.ranges(chunk, ["image", "id"]))
    read = 0
    for chunk in range(len(divided.facts.chunk_rows)):
        ranges = divided.ranges(chunk, ["image", "id"])
        read += sum(one.stop - one.start for one in ranges)
        buffers = {}
        for one in ranges:
            with open(one.path, "rb") as file:
                file.seek(one.start)
                buffers[one] = file.read(one.stop - one.start)
        found = divided.read(chunk, ["image", "id"], buffers)
        assert found.equals(divided.read(chunk, ["image", "id"]))
    assert needed <= read < 1.2 * needed


def test_a_file_without_pages_to_find_is_not_divided_unless_it_is_scanned(tmp_path):
    source = write(tmp_path, write_page_index=False)
    assert split_row_groups(source) is None
    divided = split_row_groups(source, scan=True)
    names = source.facts.arrow_schema.names
    table = pa.concat_tables([divided.read(chunk, names) for chunk in range(len(divided.facts.chunk_rows))])
    assert table.equals(pa.concat_tables([source.read(chunk, names) for chunk in range(4)]))


def test_small_row_groups_are_not_divided(tmp_path):
    assert split_row_groups(write(tmp_path, 20)) is None


def test_deleted_rows_stay_deleted(tmp_path):
    source = write(tmp_path)
    keep = np.arange(500) % 7 != 0
    keep[100:200] = False
    counts = np.array([500, keep.sum(), 0, 500])
    source.facts = replace(source.facts, selection=Selection(counts, {1: pack_mask(keep)}))
    wanted = [row["id"] for row in penstock.open(source)]
    assert len(wanted) == counts.sum()
    assert [row["id"] for row in penstock.open(split_row_groups(source))] == wanted


def test_it_pickles_with_its_parts(tmp_path):
    divided = split_row_groups(write(tmp_path))
    copy = pickle.loads(pickle.dumps(divided))
    assert copy.facts.chunk_rows.tolist() == divided.facts.chunk_rows.tolist()
    assert copy.read(7, ["id", "label"]).equals(divided.read(7, ["id", "label"]))
    assert copy.row_bytes() == divided.row_bytes()


def test_a_cache_serves_the_second_epoch(tmp_path):
    write(tmp_path)
    cache = MemoryCache(100 << 20)
    source = open_parquet(tmp_path, cache=cache)
    divided = split_row_groups(source)
    first = [divided.read(chunk, ["id", "image"]) for chunk in range(len(divided.facts.chunk_rows))]
    misses = cache.stats["misses"]
    assert misses > len(first)
    again = split_row_groups(source)
    assert first == [again.read(chunk, ["id", "image"]) for chunk in range(len(first))]
    assert cache.stats["misses"] == misses


def test_what_a_cache_has_spoilt_is_read_from_the_file(tmp_path):
    class SpoilingCache(MemoryCache):
        def store(self, key, data):
            super().store(key, pa.py_buffer(bytes(data.size)))

    write(tmp_path)
    source = open_parquet(tmp_path, cache=SpoilingCache(100 << 20))
    divided = split_row_groups(source)
    first = [divided.read(chunk, ["id", "image"]) for chunk in range(len(divided.facts.chunk_rows))]
    again = split_row_groups(source)
    assert first == [again.read(chunk, ["id", "image"]) for chunk in range(len(first))]


def test_a_damaged_page_is_named_and_leaves_other_parts_alone(tmp_path):
    source = write(tmp_path, compression="zstd")
    divided = split_row_groups(source)
    one = divided.ranges(3, ["image"])[0]
    data = bytearray((tmp_path / "0.parquet").read_bytes())
    data[one.start + 30 : one.stop] = b"\xff" * (one.stop - one.start - 30)
    (tmp_path / "0.parquet").write_bytes(data)
    damaged = split_row_groups(open_parquet(tmp_path))
    assert damaged.read(2, ["image"]).num_rows == damaged.facts.chunk_rows[2]
    with pytest.raises(BadFile, match=r"0\.parquet, row group 0, column 'image'"):
        damaged.read(3, ["image"])
    assert damaged.read(3, ["id"]).num_rows == damaged.facts.chunk_rows[3]


def narrow_bytes(divided, chunk):
    """The bytes of `id` that a read of a part needs from the store."""
    return sum(one.stop - one.start for one in divided.ranges(chunk, ["id"]))


def test_narrow_columns_are_kept_as_far_as_memory_allows(tmp_path):
    source = write(tmp_path, data_page_size=1 << 20, write_batch_size=1024)
    divided = ParquetParts(source, [np.array([0, 100, 500])] * 4)
    wanted = divided.kept_bytes(["id"])
    assert 4 * 500 * 8 < wanted < 64 << 10
    whole = divided.read(0, ["id"])
    assert not narrow_bytes(divided, 1)
    divided.keep(wanted // 8)
    for chunk in (2, 4, 6):
        divided.read(chunk, ["id"])
    assert narrow_bytes(divided, 1), "it had to leave"
    divided.keep(0)
    for chunk in (0, 1):
        assert narrow_bytes(divided, chunk)
    assert divided.read(0, ["id"]).equals(whole)
    assert divided.read(1, ["id"]).equals(source.read(0, ["id"]).slice(100))


@pytest.mark.parametrize(
    ("narrow_bytes", "reads"), [(4 << 20, [["id", "box.x"]]), (9_000, [["id"], ["box.x"]])], ids=["small", "large"]
)
def test_narrow_columns_are_read_together_as_far_as_they_take_little_memory(tmp_path, monkeypatch, narrow_bytes, reads):
    calls = []
    read = part_source.read_columns
    monkeypatch.setattr(part_source, "read_columns", lambda group, names: calls.append(names) or read(group, names))
    monkeypatch.setattr(part_source, "_NARROW_BYTES", narrow_bytes)
    divided = split_row_groups(write(tmp_path, data_page_size=20_000))
    for chunk in (0, 1, 0):
        divided.read(chunk, ["id", "box.x", "image"])
    assert calls == reads


def test_narrow_columns_are_limited_and_copied(tmp_path):
    divided = split_row_groups(write(tmp_path, data_page_size=20_000))
    with pytest.raises(BudgetError):
        divided.read(0, ["label"], limit_bytes=1_000)
    found = divided.read(0, ["id"]).column("id")
    held = sum(one.size for one in found.chunk(0).buffers() if one is not None)
    assert held < 2 * found.nbytes  # the rows do not keep the whole column in memory


def test_kept_bytes_do_not_grow_beyond_their_limit_and_are_none_for_whole_row_groups(tmp_path):
    source = write(tmp_path)
    names = source.facts.arrow_schema.names
    assert ParquetParts(source, [np.array([0, 500])] * 4).kept_bytes(names) == 0
    some, all_of_them = split_row_groups(source).kept_bytes(["id"]), split_row_groups(source).kept_bytes(names)
    assert 0 < some < all_of_them <= 128 << 20


def test_a_damaged_row_is_reported_as_it_is_without_parts(tmp_path):
    codec = penstock.codecs.NdarrayCodec()
    field = penstock.UnischemaField("x", np.uint8, (900,), codec, nullable=False)
    cells = [bytes(codec.encode(field, np.full(900, i % 200, np.uint8))) for i in range(600)]
    for row in (3, 130, 131, 299, 599):
        cells[row] = b"no cell"
    schema = penstock.Unischema("cells", [field, penstock.UnischemaField("id", np.int64, (), None, nullable=False)])
    table = pa.table({"x": cells, "id": np.arange(600)})
    for number in range(2):
        pq.write_table(
            table, tmp_path / f"{number}.parquet", row_group_size=300, use_dictionary=False, compression="none",
            write_page_index=True, write_batch_size=10, data_page_size=5_000,
        )  # fmt: skip
    dataset = penstock.open(tmp_path, schema=schema)
    found, errors = [], []
    for divided in (None, False):
        options = {"batch_size": 8, "shuffle": True, "parts": divided, "rank": 0, "world": 1}
        with dataset.loader(on_error="skip", **options) as loader:
            assert loader.order.parts is (divided is None)
            assert sum(len(batch["id"]) for batch in loader) == 1_190
            found.append(
                {(one.path, one.row_group, one.row, one.column, one.reason, one.part_name) for one in loader.skipped}
            )
        with (
            dataset.loader(on_error="skip", skip_limit=9, **options) as loader,
            pytest.raises(DecodeError, match="10 rows"),
        ):
            list(loader)
        with dataset.loader(on_error="skip", skip_limit=10, **options) as loader:
            list(loader)
        with dataset.loader(**options) as loader, pytest.raises(DecodeError) as caught:
            list(loader)
        errors.append(caught.value)
    assert found[0] == found[1]
    assert {one[1:3] for one in found[0]} == {(0, 3), (0, 130), (0, 131), (0, 299), (1, 299)}
    for error in errors:
        assert any(one[:3] == (error.path, error.row_group, error.row) for one in found[0])
        assert f"{error.path}, row group {error.row_group}, row {error.row}:" in str(error)


def test_the_memory_error_names_the_part_and_does_not_advise_smaller_row_groups(tmp_path):
    dataset = penstock.open(write(tmp_path))
    options = {"batch_size": 8, "shuffle": True, "memory_bytes": 1_000, "rank": 0, "world": 1}
    with pytest.raises(
        BudgetError, match=r"largest part of a row group: .*parquet, row group \d, rows \d+ to \d+"
    ) as caught:
        dataset.loader(**options)
    assert "smaller row groups" not in str(caught.value)
    with pytest.raises(BudgetError, match=r"largest row group: .*, row group \d, .*leave parts=False out") as caught:
        dataset.loader(**options, parts=False)
    assert "smaller row groups" not in str(caught.value)
    with pytest.raises(BudgetError, match=r"smaller row groups$"):
        dataset.loader(**options | {"shuffle": False})
    (tmp_path / "small").mkdir()
    with pytest.raises(BudgetError, match=r"smaller row groups$"):  # none of them can be divided
        penstock.open(write(tmp_path / "small", 20)).loader(**options)


CROWDED = {"batch_size": 64, "shuffle": True, "rank": 0, "world": 1, "shuffle_bytes": 100_000}


def test_a_warning_about_whole_row_groups_names_what_divides_them(tmp_path):
    """`parts=False`, a state of whole row groups, a missing index, and a file without one beside a file with one."""
    for name, options in (("indexed", {}), ("plain", {"write_page_index": False}), ("mixed", {"files": 1})):
        (tmp_path / name).mkdir()
        write(tmp_path / name, **options)
    pq.write_table(
        pq.read_table(tmp_path / "plain" / "1.parquet"), tmp_path / "mixed" / "1.parquet", use_dictionary=False,
        data_page_size=1_000, write_batch_size=10,
    )  # fmt: skip
    indexed, plain, mixed = (penstock.open(tmp_path / name) for name in ("indexed", "plain", "mixed"))
    whole = indexed.plan(**CROWDED, parts=False)
    assert whole.warnings
    for text in whole.warnings:
        assert "leave parts=False out, for which row groups are read whole, or start the run" in text
    with pytest.warns(penstock.errors.PenstockWarning), indexed.loader(**CROWDED, parts=False) as loader:
        state = loader.state_dict()
    with indexed.loader(**CROWDED) as loader:
        loader.load_state_dict(state)
        assert "the state of this one has whole row groups" in str(loader.plan)
    for dataset in (plain, mixed):
        texts = dataset.plan(**CROWDED).warnings
        assert texts
        for text in texts:
            assert (
                "run `penstock index --beside URL` once, or load with parts=True, to read row groups in parts" in text
            )
            assert "smaller row groups" not in text


def test_the_memory_error_of_a_dataset_without_an_index_names_the_index(tmp_path):
    dataset = penstock.open(write(tmp_path, write_page_index=False))
    with pytest.raises(BudgetError, match=r"run `penstock index --beside URL` once, or load with parts=True") as caught:
        dataset.loader(**CROWDED, memory_bytes=1_000)
    assert "a loader that is to resume such a run needs parts=True as well" in str(caught.value)


def test_the_plan_counts_parts_and_the_pages_that_they_read_twice(tmp_path):
    dataset = penstock.open(write(tmp_path))
    options = {"batch_size": 64, "shuffle": True, "rank": 0, "world": 1, "shuffle_bytes": 100_000}
    plan = dataset.plan(**options)
    assert plan.order.parts
    assert (plan.num_chunks, plan.num_groups) == (len(split_row_groups(dataset.source).facts.chunk_rows), 4)
    assert 1 <= plan.page_factor < 1.2
    assert plan.read_factor >= plan.page_factor
    whole = dataset.plan(**options, parts=False)
    assert (whole.num_chunks, whole.num_groups, whole.page_factor) == (4, 4, None)
    assert whole.groups_per_batch <= plan.groups_per_batch <= plan.permuted_groups_per_batch <= 4
    with dataset.loader(**options) as loader:
        before = loader.plan.page_factor
        list(loader)
        assert loader.plan.page_factor == before == plan.page_factor, "kept columns are counted all the same"


def test_pages_of_unequal_rows_cost_what_the_plan_says(tmp_path):
    source = write(tmp_path)
    divided = ParquetParts(source, [np.array([0, 33, 187, 300, 500])] * 4)
    names = ["id", "image"]
    needed = sum(one.stop - one.start for chunk in range(4) for one in source.ranges(chunk, names))
    read = 0
    for chunk in range(16):
        read += sum(one.stop - one.start for one in divided.ranges(chunk, names))
        divided.read(chunk, names)
    source.split = lambda *, scan: Split(divided, divided.chunk, divided.first_row)
    plan = penstock.open(source, columns=names).plan(batch_size=8, shuffle=True)
    assert plan.page_factor == pytest.approx(read / needed)
    assert plan.page_factor > 1.01


def test_a_plan_and_a_loader_are_made_where_offset_indexes_cannot_be_read(tmp_path):
    source = write(tmp_path)
    dataset = penstock.open(source)
    options = {"batch_size": 8, "shuffle": True, "rank": 0, "world": 1}
    assert dataset.plan(**options).page_factor is not None
    for name in ("0.parquet", "1.parquet"):
        (tmp_path / name).unlink()
    assert dataset.plan(**options).page_factor is None
    dataset.loader(**options).close()


def test_a_file_that_was_written_again_is_noticed(tmp_path):
    divided = split_row_groups(write(tmp_path))
    divided.read(0, ["image"])
    write(tmp_path, 900)
    with pytest.raises(FileChanged):
        divided.read(1, ["image"])


def test_a_file_that_was_written_again_is_not_left_undivided(tmp_path):
    source = write(tmp_path)
    write(tmp_path, 900)
    other = pickle.loads(pickle.dumps(source))  # has no footers in memory
    with pytest.raises(FileChanged):
        other.split(scan=None)


def test_a_file_that_is_gone_is_named(tmp_path):
    divided = split_row_groups(write(tmp_path))
    (tmp_path / "0.parquet").unlink()
    for ask in (divided.read, divided.ranges):
        with pytest.raises(BadFile, match=r"0\.parquet.*not there any more"):
            ask(1, ["image"])


def test_a_file_that_was_only_touched_is_read(tmp_path):
    source = write(tmp_path)
    divided, other = split_row_groups(source), split_row_groups(source)
    before, ranges = divided.read(1, ["image"]), divided.ranges(1, ["image"])
    for ask in (lambda: divided.read(1, ["image"]).equals(before), lambda: other.ranges(1, ["image"]) == ranges):
        data = (tmp_path / "0.parquet").read_bytes()
        (tmp_path / "0.parquet").unlink()
        (tmp_path / "0.parquet").write_bytes(data)
        assert ask()


def test_rows_come_in_order_and_shuffled(tmp_path):
    divided = split_row_groups(write(tmp_path))
    dataset = penstock.open(divided)
    assert [row["id"] for row in dataset] == list(range(2_000))
    with dataset.loader(batch_size=50, shuffle=True, seed=1, rank=0, world=1) as loader:
        ids = np.concatenate([batch["id"] for batch in loader])
    assert sorted(ids.tolist()) == list(range(2_000))
