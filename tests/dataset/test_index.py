"""Row-group indexes find the row groups that hold a value, survive being stored, and refuse a dataset that changed."""

import datetime
import json
import pickle
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.dataset import open_parquet
from penstock.dataset.common_metadata import read_common_metadata, update_common_metadata
from penstock.dataset.index import (
    IntersectIndexSelector,
    RowGroupSelectorBase,
    SingleIndexSelector,
    UnionIndexSelector,
    select_row_groups,
)
from penstock.dataset.index_build import build_indexes, merge_all
from penstock.dataset.index_indexers import FieldNotNullIndexer, RowGroupIndexerBase, SingleFieldIndexer
from penstock.dataset.index_store import (
    INDEX_KEY,
    ROW_GROUPS_PER_FILE_KEY,
    load_indexes,
    store_indexes,
    value_from_json,
    value_to_json,
)
from penstock.errors import ColumnNotFound, MetadataError, SchemaError
from penstock.schema.stored import PETASTORM_INDEX_KEY
from penstock.source import Selection
from tests.dataset.filtering import chosen, rows
from tests.dataset.make import ids, write
from tests.depth import depth
from tests.schema.petastorm_bytes import Stub, dumps


def write_rows(root):
    """Write six chunks of four rows over two partitions, with an empty row group in the middle."""
    for part in range(2):
        here = range(part * 12, part * 12 + 12)
        columns = {
            "id": pa.array(here, pa.int64()),
            "color": pa.array([("red", "green", None, "blue")[i // 2 % 4] for i in here]),
            "tags": pa.array([[i % 5, i % 7] if i % 3 else None for i in here], pa.list_(pa.int16())),
            "rare": pa.array([1.5 if i == 13 else None for i in here], pa.float64()),
        }
        table = pa.table(columns)
        path = root / f"split={'ab'[part]}" / "part.parquet"
        path.parent.mkdir(parents=True)
        with pq.ParquetWriter(path, table.schema) as writer:
            for start in range(0, 12, 4):
                writer.write_table(table.slice(start, 4))
                if part == 0 and start == 0:
                    writer.write_table(table.slice(0, 0))
    return root


@pytest.fixture
def root(tmp_path):
    return write_rows(tmp_path / "data")


@pytest.fixture
def source(root):
    return open_parquet(str(root))


ALL = [
    SingleFieldIndexer("by_id", "id"),
    SingleFieldIndexer("by_color", "color"),
    SingleFieldIndexer("by_tag", "tags"),
    SingleFieldIndexer("by_split", "split"),
    FieldNotNullIndexer("has_rare", "rare"),
]


def plain_groups(source, column):
    """Value to chunks, row by row: the plain twin."""
    ds = penstock.api.Dataset(source, Selection.all(source.facts.chunk_rows), source.facts.arrow_schema.names)
    ends = np.cumsum(source.facts.chunk_rows)
    found: dict = {}
    for row in range(len(ds)):
        value = ds[row][column]
        elements = [] if value is None else list(value) if isinstance(value, np.ndarray) else [value]
        for element in elements:
            found.setdefault(element, set()).add(int(np.searchsorted(ends, row, "right")))
    return found


def groups_of(indexer):
    return {value: indexer.get_row_group_indexes(value) for value in indexer.indexed_values}


class TestBuilding:
    def test_every_index_is_that_of_the_plain_twin(self, source):
        built = {indexer.index_name: indexer for indexer in build_indexes(source, ALL, workers=2)}
        for name, column in (("by_id", "id"), ("by_color", "color"), ("by_tag", "tags"), ("by_split", "split")):
            assert groups_of(built[name]) == plain_groups(source, column), name
        assert built["has_rare"].get_row_group_indexes("whatever") == {3}
        assert built["has_rare"].indexed_values == ["Field is Not Null"]
        assert ALL[0].indexed_values == []  # what was given is not changed

    def test_rows_build_what_columns_build(self, source):
        built = {indexer.index_name: indexer for indexer in build_indexes(source, ALL, workers=1)}
        ds = penstock.api.Dataset(source, Selection.all(source.facts.chunk_rows), source.facts.arrow_schema.names)
        for model in ALL:
            parts = []
            for chunk in range(6):
                one = type(model)(model.index_name, model.column_names[0])
                one.build_index([ds[row] for row in range(4 * chunk, 4 * chunk + 4)], chunk)
                parts.append([one])
            [merged] = merge_all(parts)
            assert groups_of(merged) == groups_of(built[model.index_name])

    def test_numpy_values_are_found_as_pythons(self, source):
        [by_id] = build_indexes(source, [SingleFieldIndexer("by_id", "id")], workers=1)
        assert by_id.get_row_group_indexes(np.int32(5)) == by_id.get_row_group_indexes(5) == {1}
        assert by_id.get_row_group_indexes(99) == set()
        assert 99 not in by_id.indexed_values

    def test_indexers_of_the_users_own(self, source):
        [parity] = build_indexes(source, [Parity()], workers=2)
        assert parity.get_row_group_indexes("even") == {0, 1, 2, 3, 4, 5}
        store_indexes(source, [parity])
        stored = load_indexes(source)["parity"]
        assert groups_of(stored) == groups_of(parity)
        assert stored.column_names == ["id", "color"]
        with pytest.raises(NotImplementedError, match="its own class"):
            stored.build_index([{}], 0)

    def test_merging(self):
        one, other = SingleFieldIndexer("n", "c"), SingleFieldIndexer("n", "c")
        one.build_index([{"c": 1}, {"c": None}], 0)
        other.build_index([{"c": np.int64(1)}, {"c": 2}], 3)
        assert groups_of(one + other) == {1: {0, 3}, 2: {3}}
        assert groups_of(one) == {1: {0}}
        with pytest.raises(TypeError, match="indexes of one kind only"):
            one + FieldNotNullIndexer("n", "c")
        for wrong in (SingleFieldIndexer("m", "c"), SingleFieldIndexer("n", "d")):
            with pytest.raises(ValueError, match="cannot add the index"):
                one + wrong
        for indexer in (one, FieldNotNullIndexer("n", "c")):
            with pytest.raises(ValueError, match="without rows"):
                indexer.build_index([], 0)
        assert groups_of(pickle.loads(pickle.dumps(one))) == {1: {0}}

    def test_arrays_count_element_by_element_and_nan_not_at_all(self):
        index = SingleFieldIndexer("n", "c")
        index.build_index([{"c": np.array([[1, 2], [3, 4]])}, {"c": [5, None]}, {"c": float("nan")}], 7)
        assert groups_of(index) == {1: {7}, 2: {7}, 3: {7}, 4: {7}, 5: {7}}

    @pytest.mark.parametrize(
        ("indexers", "error", "says"),
        [
            ([], ValueError, "at least one indexer"),
            ([ALL[0], ALL[0]], ValueError, "name of its own"),
            (["id"], ValueError, "an indexer is wanted"),
            ([SingleFieldIndexer("x", "colour")], ColumnNotFound, "did you mean 'color'"),
        ],
    )
    def test_wrong_indexers(self, source, indexers, error, says):
        with pytest.raises(error, match=says):
            build_indexes(source, indexers, workers=1)


class Parity(RowGroupIndexerBase):
    """An indexer of the user's own, over two columns."""

    def __init__(self):
        self.groups = {}

    index_name = "parity"
    column_names = ("id", "color")

    @property
    def indexed_values(self):
        return list(self.groups)

    def get_row_group_indexes(self, value_key):
        return self.groups.get(value_key, set())

    def build_index(self, decoded_rows, row_group):
        for row in decoded_rows:
            assert set(row) == {"id", "color"}
            self.groups.setdefault(("even", "odd")[row["id"] % 2], set()).add(row_group)

    def __add__(self, other):
        found = Parity()
        for one in (self, other):
            for value, groups in one.groups.items():
                found.groups.setdefault(value, set()).update(groups)
        return found


VALUES = (
    st.integers()
    | st.text()
    | st.booleans()
    | st.binary()
    | st.floats(allow_nan=False)
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(datetime.UTC))
    | st.timedeltas()
    | st.builds(np.datetime64, st.integers(-(2**40), 2**40), st.sampled_from(["D", "s", "ms", "us", "ns"]))
    | st.builds(np.timedelta64, st.integers(-(2**40), 2**40), st.sampled_from(["D", "s", "ms", "us", "ns"]))
)


class TestStored:
    @given(VALUES)
    @settings(max_examples=depth(50, 5000), deadline=None)
    def test_values_keep_type_and_value(self, value):
        again = value_from_json(json.loads(json.dumps(value_to_json(value))))
        assert again == value
        assert type(again) is type(value)
        assert getattr(again, "dtype", None) == getattr(value, "dtype", None)

    def test_numpy_numbers_and_text_become_pythons(self):
        for value in (np.int8(3), np.float32(0.5), np.str_("x"), np.bytes_(b"x"), np.bool_(True)):
            assert value_from_json(value_to_json(value)) == value

    def test_round_trip(self, root, source):
        built = build_indexes(source, ALL, workers=1)
        before = source.facts.fingerprint
        store_indexes(source, built)
        again = open_parquet(str(root))
        assert again.facts.fingerprint == before  # the index is no part of the data
        for at in (source, again):  # also in a source that was opened before
            found = load_indexes(at)
            assert {name: groups_of(index) for name, index in found.items()} == {
                index.index_name: groups_of(index) for index in built
            }
            assert [type(index) for index in found.values()] == [type(index) for index in built]

    def test_storing_keeps_what_is_there(self, tmp_path):
        penstock.write({"x": np.arange(10)}, tmp_path / "d")
        source = open_parquet(str(tmp_path / "d"))
        update_common_metadata(source.entries[0], {b"other": b"kept"})
        for name in ("first", "second"):
            store_indexes(source, build_indexes(source, [SingleFieldIndexer(name, "x")], workers=1))
        pairs = read_common_metadata(source.entries[0].root)
        assert pairs[b"other"] == b"kept"
        assert list(load_indexes(source)) == ["second"]
        assert penstock.open(tmp_path / "d").schema.fields["x"].numpy_dtype is np.int64

    def test_a_dataset_that_changed_is_refused(self, root, source):
        store_indexes(source, build_indexes(source, ALL, workers=1))
        write(root / "split=0" / "part.parquet", ids(0, 3))
        with pytest.raises(
            MetadataError, match=r"has changed since .* \(6 row groups then, 7 in .*build the index again"
        ):
            load_indexes(open_parquet(str(root), columns=["id"]))

    def test_no_index(self, source):
        with pytest.raises(ValueError, match="build_rowgroup_index makes one"):
            load_indexes(source)

    @pytest.mark.parametrize(
        "damage",
        [
            b"{",
            b"[]",
            b'{"version": 1}',
            b'{"version": 1, "dataset": "?", "row_groups": 6, "indexes": [{"kind": "single_field"}]}',
            (
                b'{"version": 1, "dataset": "?", "row_groups": 6, "indexes": [{"kind": "single_field", "name": "n", '
                b'"columns": ["id"], "values": [[{"bytes": "%"}, [1]]]}]}'
            ),
            (
                b'{"version": 1, "dataset": "?", "row_groups": 6, "indexes": [{"kind": "single_field", "name": "n", '
                b'"columns": ["id"], "values": [[{"os.system": "x"}, [1]]]}]}'
            ),
        ],
    )
    def test_a_damaged_index_is_told(self, source, damage):
        text = damage.replace(b'"?"', b'"' + source.facts.fingerprint.encode() + b'"')
        update_common_metadata(source.entries[0], {INDEX_KEY: text})
        with pytest.raises(MetadataError, match=r"_common_metadata: .* index is damaged .*build the index again"):
            load_indexes(source)

    def test_a_later_version_is_told(self, source):
        update_common_metadata(source.entries[0], {INDEX_KEY: b'{"version": 2}'})
        with pytest.raises(MetadataError, match="upgrade Penstock"):
            load_indexes(source)

    def test_only_whole_folders_have_an_index(self, root):
        for part in (str(root / "split=a" / "part.parquet"), str(root / "*" / "*.parquet"), str(root / "split=a")):
            source = open_parquet(part)
            with pytest.raises(MetadataError, match="folder of a whole dataset"):
                store_indexes(source, build_indexes(source, ALL[:1], workers=1))

    def test_values_that_cannot_be_stored(self, source):
        index = SingleFieldIndexer("n", "id")
        index.add((1, 2), [0])
        with pytest.raises(SchemaError, match=r"index 'n' cannot be stored: .*tuple"):
            store_indexes(source, [index])


class TestPetastorms:
    """Indexes that Petastorm pickled are read without running them; its ordinals count empty row groups, too."""

    def put(self, source, data, counts=None):
        pairs = {PETASTORM_INDEX_KEY: data}
        if counts is not None:
            pairs[ROW_GROUPS_PER_FILE_KEY] = json.dumps(counts).encode()
        update_common_metadata(source.entries[0], pairs)

    def index(self, held, kind="SingleFieldIndexer"):
        state = {"_index_name": "by", "_column_name": "id", "_index_data": held}
        return dumps({"by": Stub("petastorm.etl.rowgroup_indexers", kind, state)}, 4)

    def test_ordinals_become_chunks(self, source):
        # Row groups of the first file: 4, 0, 4 and 4 rows.
        counts = {"split=a/part.parquet": 4, "split=b/part.parquet": 3}
        self.put(source, self.index({np.int64(7): {0, 2}, np.str_("é"): {1, 6}}), counts)
        found = load_indexes(source)["by"]
        assert groups_of(found) == {7: {0, 1}, "é": {5}}
        assert rows(
            source, select_row_groups(source, SingleIndexSelector("by", [7]), Selection.all(source.facts.chunk_rows))
        ) == [*range(8)]

    def test_not_null(self, source):
        self.put(source, self.index({3, 4}, "FieldNotNullIndexer"))
        assert load_indexes(source)["by"].get_row_group_indexes() == {2, 3}

    def test_ours_wins(self, source):
        self.put(source, self.index({1: {0}}))
        store_indexes(source, build_indexes(source, ALL[:1], workers=1))
        assert list(load_indexes(source)) == ["by_id"]

    def test_changed_files_are_noticed(self, source):
        self.put(source, self.index({1: {0}}), {"split=a/part.parquet": 4})
        with pytest.raises(MetadataError, match=r"has changed since .* \(4 row groups then"):
            load_indexes(source)

    def test_ordinals_beyond_the_dataset_are_noticed(self, source):
        self.put(source, self.index({1: {7}}))
        with pytest.raises(MetadataError, match="has changed since"):
            load_indexes(source)

    def test_what_a_pickle_asks_for_is_not_done(self, source):
        class Evil:
            def __reduce__(self):
                return print, ("run",)

        self.put(source, pickle.dumps({"by": Evil()}))
        with pytest.raises(MetadataError, match="not allowed"):
            load_indexes(source)


class TestSelecting:
    @pytest.fixture
    def indexed(self, source):
        store_indexes(source, build_indexes(source, ALL, workers=2))
        return source

    def chosen(self, source, selector, before=None):
        return rows(source, select_row_groups(source, selector, before or Selection.all(source.facts.chunk_rows)))

    def test_one_index(self, indexed):
        assert self.chosen(indexed, SingleIndexSelector("by_id", [0, 5, 6])) == [*range(8)]
        assert self.chosen(indexed, SingleIndexSelector("by_id", [99])) == []
        assert self.chosen(indexed, SingleIndexSelector("has_rare", ["x"])) == [12, 13, 14, 15]
        assert self.chosen(indexed, SingleIndexSelector("by_split", ["b"])) == [*range(12, 24)]

    def test_intersection_and_union(self, indexed):
        one, two = SingleIndexSelector("by_id", [0, 13]), SingleIndexSelector("by_split", ["b"])
        assert self.chosen(indexed, IntersectIndexSelector([one, two])) == [12, 13, 14, 15]
        assert self.chosen(indexed, UnionIndexSelector([one, two])) == [0, 1, 2, 3, *range(12, 24)]
        nested = UnionIndexSelector([IntersectIndexSelector([one, two]), SingleIndexSelector("by_id", [4])])
        assert self.chosen(indexed, nested) == [4, 5, 6, 7, 12, 13, 14, 15]
        assert nested.get_index_names() == ["by_id", "by_split"]

    def test_defect_5_2_7_index_ordinals_stay_right_under_filters(self, indexed):
        before = chosen(indexed, [("split", "=", "b"), ("id", "!=", 13)])
        # 13 lies in chunk 3, which is the first that the filter leaves.
        assert self.chosen(indexed, SingleIndexSelector("by_id", [13, 20]), before) == [12, 14, 15, 20, 21, 22, 23]
        assert self.chosen(indexed, SingleIndexSelector("by_id", [0]), before) == []

    def test_what_was_selected_is_equal_to_a_filter_of_the_same_rows(self, indexed):
        everything = Selection.all(indexed.facts.chunk_rows)
        by_index = select_row_groups(indexed, SingleIndexSelector("by_split", ["a"]), everything)
        assert by_index.digest() == chosen(indexed, [("split", "=", "a")]).digest()

    def test_selectors_of_the_users_own(self, indexed):
        class Even(RowGroupSelectorBase):
            def get_index_names(self):
                return []

            def select_row_groups(self, index_dict):
                return {0, 2, 4}

        assert self.chosen(indexed, Even()) == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]

        class Beyond(Even):
            def select_row_groups(self, index_dict):
                return {6}

        with pytest.raises(ValueError, match="the dataset has 6 with rows"):
            self.chosen(indexed, Beyond())

    def test_unknown_index(self, indexed):
        with pytest.raises(ValueError, match=r"no row-group index 'by_colour'.*did you mean 'by_color'"):
            self.chosen(indexed, SingleIndexSelector("by_colour", ["red"]))

    def test_no_index_at_all(self, source):
        with pytest.raises(ValueError, match="no row-group index is stored"):
            self.chosen(source, SingleIndexSelector("by_id", [1]))

    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (lambda: SingleIndexSelector("n", "red"), "list of values"),
            (lambda: UnionIndexSelector([]), "at least one"),
            (lambda: IntersectIndexSelector(["by_id"]), "selector is wanted"),
        ],
    )
    def test_wrong_arguments(self, make, says):
        with pytest.raises(ValueError, match=says):
            make()

    def test_what_is_no_selector(self, source):
        with pytest.raises(ValueError, match="selector is wanted"):
            self.chosen(source, {1, 2})

    def test_selectors_pickle(self, indexed):
        selector = UnionIndexSelector([SingleIndexSelector("by_id", [5]), SingleIndexSelector("by_color", ["red"])])
        again = pickle.loads(pickle.dumps(selector))
        assert repr(again) == repr(selector)
        assert self.chosen(indexed, again) == self.chosen(indexed, selector)


def test_decimals_and_dates_are_indexed(tmp_path):
    columns = {
        "price": pa.array([Decimal("1.50"), Decimal("2.25")], pa.decimal128(6, 2)),
        "day": pa.array([datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)]),
    }
    write(tmp_path / "a.parquet", columns, rows_per_group=1)
    source = open_parquet(str(tmp_path))
    indexers = [SingleFieldIndexer("by_price", "price"), SingleFieldIndexer("by_day", "day")]
    store_indexes(source, build_indexes(source, indexers, workers=1))
    found = load_indexes(source)
    assert found["by_price"].get_row_group_indexes(Decimal("2.25")) == {1}
    assert found["by_day"].get_row_group_indexes(datetime.date(2024, 1, 1)) == {0}
    assert found["by_day"].get_row_group_indexes(np.datetime64("2024-01-02T00", "us")) == {1}
