"""Predicates over a dataset keep the rows that `do_include` keeps one by one, and read no more than they must."""

import datetime
import operator
from decimal import Decimal
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.dataset import open_parquet
from penstock.dataset.row_filter import RowFilter, evaluate
from penstock.dataset.select_rows import BLOCK_BYTES
from penstock.dataset.statistics import judge
from penstock.errors import BadFile, ColumnNotFound, DecodeError, SchemaError
from penstock.predicates import (
    in_intersection,
    in_lambda,
    in_negate,
    in_pseudorandom_split,
    in_reduce,
    in_set,
)
from penstock.source import Selection
from penstock.testing import RecordingFileSystem
from tests.dataset.filtering import chosen, kept, rows
from tests.dataset.make import ids, write, write_ids
from tests.dataset.test_predicates import Odd, is_even
from tests.depth import depth

NAN = float("nan")


class Never(in_set):
    """A subclass that means something else."""

    def do_include(self, values):
        return False


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Five chunks over two partitions, with nulls, lists, dates, decimals and decoded arrays."""
    root = tmp_path_factory.mktemp("rows")
    for number, split in enumerate(("train", "val")):
        count = 12 if number == 0 else 8
        start = number * 12
        here = range(start, start + count)
        columns = {
            "id": pa.array(here, pa.int64()),
            "label": pa.array([f"c{i // 4}" for i in here]),
            "score": pa.array([NAN if i % 5 == 0 else None if i % 7 == 0 else i / 4 for i in here], pa.float32()),
            "maybe": pa.array([None if i % 3 == 0 else i % 4 for i in here], pa.int16()),
            "flag": pa.array([None if i == 5 else i % 2 == 0 for i in here]),
            "day": pa.array([datetime.date(2024, 1, 1 + i) for i in here]),
            "price": pa.array([Decimal(i) / 2 for i in here], pa.decimal128(9, 2)),
            "tags": pa.array([None if i == 3 else list(range(i % 3, i % 5)) for i in here], pa.list_(pa.int32())),
            "words": pa.array([[f"w{i % 3}", None] for i in here], pa.list_(pa.string())),
            "box": pa.array([[i, i + 1] for i in here], pa.list_(pa.int64(), 2)),
        }
        write(root / f"split={split}" / "part-0.parquet", columns, rows_per_group=4)
    return open_parquet(str(root))


def table_rows(source):
    """Every row as the dict that a predicate gets: the plain way."""
    dataset = penstock.api.Dataset(source, Selection.all(source.facts.chunk_rows), source.facts.arrow_schema.names)
    return [dataset[i] for i in range(len(dataset))]


LEAVES = [
    in_set([3, 4, 17, "x"], "id"),
    in_set(["c1", "c4"], "label"),
    in_set(["val"], "split"),
    in_set([1.5, NAN, 4], "score"),
    in_set([None, 0.25], "score"),
    in_set([1, None], "maybe"),
    in_set([True], "flag"),
    in_set([0, None], "flag"),
    in_set([datetime.date(2024, 1, 5), np.datetime64("2024-01-17", "ns")], "day"),
    in_set([Decimal("1.50"), 3, 4.5], "price"),
    in_set([], "id"),
    in_set([3, 4, 5, 6, 7], "id"),
    in_set([1], "label"),
    in_intersection([2, 3.0], "tags"),
    in_intersection(["w1"], "words"),
    in_intersection([None], "words"),
    in_intersection([4, 19], "box"),
    in_lambda(["id", "split"], lambda i, split: i % 3 == 0 or split == "val"),
    in_lambda(["split"], lambda split: split == "train"),
    in_lambda(["maybe"], lambda m: m is None),
    in_lambda(["box", "tags"], lambda box, tags: tags is not None and box.sum() % 3 == len(tags)),
    in_pseudorandom_split([0.5, 0.5], 1, "label"),
    in_pseudorandom_split([0.3, 0.7], 0, "maybe"),
    Odd(),
    Never([1, 2, 3], "id"),
]


def trees():
    leaf = st.sampled_from(LEAVES)
    reducers = st.sampled_from([all, any, np.any, lambda answers: sum(answers) == 1, lambda answers: answers[0]])
    return st.recursive(
        leaf,
        lambda inner: (
            st.builds(in_negate, inner) | st.builds(in_reduce, st.lists(inner, min_size=1, max_size=3), reducers)
        ),
        max_leaves=5,
    )


class TestAgainstTheTwin:
    @pytest.mark.parametrize("predicate", LEAVES, ids=repr)
    def test_each(self, source, predicate):
        expected = [i for i, row in enumerate(table_rows(source)) if predicate.do_include(row)]
        assert kept(source, predicate) == expected
        assert kept(source, in_negate(predicate)) == sorted(set(range(20)) - set(expected))

    @given(st.data())
    @settings(max_examples=depth(50, 2000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_trees(self, source, data):
        predicate = data.draw(trees())
        table = _ROWS.setdefault(id(source), table_rows(source))
        expected = [i for i, row in enumerate(table) if predicate.do_include(row)]
        assert kept(source, predicate) == expected
        before = chosen(source, [("id", "in", [0, 3, 5, 9, 12, 13, 14, 15, 19])])
        assert kept(source, predicate, before) == [i for i in expected if i in rows(source, before)]

    @given(st.data())
    @settings(max_examples=depth(50, 2000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_what_is_known_of_chunks_is_true(self, source, data):
        predicate = data.draw(trees())
        table = _ROWS.setdefault(id(source), table_rows(source))
        known = judge(source, RowFilter(predicate), np.arange(5))
        for chunk, (may_pass, may_fail) in enumerate(zip(known.may_pass, known.may_fail, strict=True)):
            answers = [bool(predicate.do_include(row)) for row in table[4 * chunk : 4 * chunk + 4]]
            assert may_pass or not any(answers)
            assert may_fail or all(answers)

    def test_a_batch_in_memory(self, source):
        dataset = penstock.api.Dataset(source, Selection.all(source.facts.chunk_rows), source.facts.arrow_schema.names)
        batch = dataset.head(20)
        for predicate in LEAVES:
            expected = [bool(predicate.do_include(row)) for row in table_rows(source)]
            assert evaluate(predicate, batch, 20, batched=False).tolist() == expected, predicate
        both = in_reduce([LEAVES[0], LEAVES[17]], all)
        assert evaluate(both, batch, 20, batched=False).tolist() == [both.do_include(row) for row in table_rows(source)]
        assert evaluate(both, {"id": np.zeros(0, int), "split": []}, 0, batched=False).tolist() == []
        with pytest.raises(ColumnNotFound, match="no column 'id'"):
            evaluate(LEAVES[0], {"ids": np.zeros(3)}, 3, batched=False)


_ROWS: dict = {}


class OnlyThePort:
    """A source that has nothing but the methods of `penstock.source.Source`, with or without statistics."""

    def __init__(self, source, *, statistics):
        self._source, self._statistics = source, statistics
        self.facts, self.read, self.locate = source.facts, source.read, source.locate

    def statistics(self, column, **options):
        return self._source.statistics(column, **options) if self._statistics else None


@pytest.mark.parametrize("statistics", [True, False])
def test_any_source_can_be_filtered(source, statistics):
    port = OnlyThePort(source, statistics=statistics)
    tuples = [[("id", ">", 3), ("split", "=", "train")], [("label", "in", ["c4"]), ("score", "!=", 1.0)]]
    for filters in (*LEAVES, tuples, pc.field("maybe").is_null(), pc.scalar(False)):
        assert rows(source, chosen(port, filters)) == kept(source, filters)


class TestBatched:
    """Functions get pandas Series, one chunk at a time; shipped predicates work all the same."""

    @pytest.fixture(autouse=True)
    def _pandas(self):
        pytest.importorskip("pandas")

    def test_shipped_predicates_keep_the_same_rows(self, source):
        for predicate in LEAVES:
            if not isinstance(predicate, in_lambda | Odd | Never):
                assert kept(source, predicate, batched=True) == kept(source, predicate)

    def test_functions_get_series(self, source):
        seen = []

        def above(ids, maybe):
            seen.append((type(ids).__name__, len(ids), maybe.dtype.kind))
            return (ids > 9) & (maybe != 3)

        expected = [i for i in range(10, 20) if i % 3 == 0 or i % 4 != 3]
        assert kept(source, in_lambda(["id", "maybe"], above), batched=True) == expected
        assert sorted(set(seen)) == [("Series", 4, "f")]
        assert kept(source, in_negate(in_lambda(["id", "maybe"], above)), batched=True) == [
            i for i in range(20) if i not in expected
        ]

    def test_series_are_what_arrow_gives_pandas(self, source):
        import pandas as pd

        whole = {}
        for name in source.facts.arrow_schema.names:
            if name != "split":

                def note(series, name=name):
                    whole.setdefault(name, []).append(series)
                    return series.map(lambda _: True).astype(bool)

                assert len(kept(source, in_lambda([name], note), batched=True)) == 20
        for name, parts in whole.items():
            arrow = [source.read(chunk, [name]).column(0).to_pandas() for chunk in range(5)]
            found = sorted(parts, key=lambda part: [str(v) for v in part])
            arrow = sorted(arrow, key=lambda part: [str(v) for v in part])
            for mine, theirs in zip(found, arrow, strict=True):
                if mine.dtype != theirs.dtype:  # pandas 3 has a dtype of its own for text
                    assert (mine.dtype, theirs.dtype.kind) == (np.dtype(object), "O"), name
                for a, b in zip(mine, theirs, strict=True):
                    same = np.array_equal(a, b) if isinstance(b, np.ndarray) else a == b or (pd.isna(a) and pd.isna(b))
                    assert same, (name, a, b)

    def test_large_integers_with_nulls_stay_exact(self, tmp_path):
        big = 2**53 + 1
        write(tmp_path / "a.parquet", {"id": pa.array([big, None, big - 1], pa.int64())})
        assert kept(open_parquet(str(tmp_path)), in_lambda(["id"], lambda i: i == big), batched=True) == [0]

    def test_a_subclass_gets_a_data_frame(self, source):
        assert kept(source, Odd(), batched=True) == list(range(1, 20, 2))

    def test_reduce_functions_get_series(self, source):
        one = in_reduce([in_set(range(10), "id"), in_lambda(["id"], lambda i: i % 2 == 0)], lambda s: s[0] ^ s[1])
        assert kept(source, one, batched=True) == [i for i in range(20) if (i < 10) != (i % 2 == 0)]
        folded = in_reduce([Odd(), in_set(range(10), "id")], lambda s: reduce(operator.and_, s))
        assert kept(source, folded, batched=True) == [1, 3, 5, 7, 9]

    def test_nulls_among_answers_are_no(self, source):
        import pandas as pd

        answers = in_lambda(["maybe"], lambda m: pd.Series([None if pd.isna(v) else v > 1 for v in m], dtype=object))
        expected = [i for i in range(20) if i % 3 and i % 4 > 1]
        assert kept(source, answers, batched=True) == expected
        nullable = in_lambda(["maybe"], lambda m: m.astype("Int64") > 1)
        assert kept(source, nullable, batched=True) == expected

    @pytest.mark.parametrize(
        ("function", "says"),
        [
            (lambda i: bool((i > 3).any()), r"it gave bool of shape \(\)"),
            (lambda i: i, "it gave Series of int64"),
            (lambda i: (i > 3)[:2], r"shape \(2,\)"),
            (lambda i: ["yes"] * len(i), "<U3"),
            (lambda i: i.map(lambda v: "yes").astype(object), "with 'yes' in it"),
        ],
    )
    def test_anything_but_truth_values_is_an_error(self, source, function, says):
        with pytest.raises(SchemaError, match=says):
            kept(source, in_lambda(["id"], function), batched=True)

    def test_over_exactly_the_partition_columns_functions_get_values(self, source):
        seen = []
        predicate = in_lambda(["split"], lambda split: seen.append(split) or split in {"val"})
        assert kept(source, predicate, batched=True) == list(range(12, 20))
        assert sorted(seen) == ["train", "val"]


class TestReading:
    def test_partition_predicates_read_nothing(self, source, monkeypatch):
        monkeypatch.setattr("penstock.dataset.parquet.read_columns", lambda *_: pytest.fail("a file was read"))
        calls = []
        by_function = in_lambda(["split"], lambda split: calls.append(split) or split == "val")
        for predicate in (by_function, in_set(["val"], "split"), in_negate(in_set(["train"], "split"))):
            assert kept(source, predicate) == list(range(12, 20))
        assert sorted(calls) == ["train", "val"]  # once for each value, not for each row
        both = in_reduce([in_set([], "id"), in_negate(by_function)], all)
        assert kept(source, both) == []

    @pytest.mark.parametrize(
        ("predicate", "chunks"),
        [
            (in_set([33, 34, 150], "id"), [3, 15]),
            (in_set(range(10, 20), "id"), [1]),
            (in_set([1000], "id"), []),
            (in_set(["33"], "id"), []),
            (in_reduce([in_set([33], "id"), in_lambda(["value"], lambda v: True)], all), [3]),
            (in_reduce([in_set([33], "id"), in_set([75.0], "value")], any), [3, 15]),
            (in_negate(in_negate(in_set([33], "id"))), [3]),
            (in_negate(in_reduce([in_negate(in_set([33], "id")), in_lambda(["value"], lambda v: False)], any)), [3]),
            (in_reduce([in_set([33], "id")], np.all), [3]),
        ],
    )
    def test_statistics_rule_out_row_groups(self, tmp_path, monkeypatch, predicate, chunks):
        source = open_parquet(str(write_ids(tmp_path, files=2, rows=100, rows_per_group=10)))
        read = set()
        whole = source.read

        def note(chunk, columns, **more):
            read.add(chunk)
            return whole(chunk, columns, **more)

        monkeypatch.setattr(source, "read", note)
        found = chosen(source, predicate)
        assert sorted(read) == chunks
        expected = [i for i in range(200) if predicate.do_include({"id": i, "value": i / 2})]
        assert rows(source, found) == expected

    def test_row_groups_of_one_value_are_decided_unread(self, tmp_path, monkeypatch):
        write(tmp_path / "a.parquet", {"kind": ["x"] * 4 + ["y"] * 4 + ["x", None] * 2}, rows_per_group=4)
        source = open_parquet(str(tmp_path))
        read = []
        whole = source.read
        monkeypatch.setattr(
            source, "read", lambda chunk, names, **more: read.append(chunk) or whole(chunk, names, **more)
        )
        assert kept(source, in_set(["x"], "kind")) == [0, 1, 2, 3, 8, 10]
        assert kept(source, in_negate(in_set(["x"], "kind"))) == [4, 5, 6, 7, 9, 11]
        assert kept(source, in_set(["x", None], "kind")) == [0, 1, 2, 3, 8, 9, 10, 11]
        assert sorted(read) == [2, 2]

    def test_statistics_decide_arrow_filters_that_all_rows_pass(self, tmp_path, monkeypatch):
        columns = ids(0, 40) | {"maybe": [None if i == 25 else i for i in range(40)]}
        write(tmp_path / "a.parquet", columns, rows_per_group=10)
        source = open_parquet(str(tmp_path))
        read = []
        whole = source.read
        monkeypatch.setattr(
            source, "read", lambda chunk, names, **more: read.append(chunk) or whole(chunk, names, **more)
        )
        assert kept(source, [("id", ">=", 15)]) == list(range(15, 40))
        assert read == [1]
        read.clear()
        assert kept(source, [("maybe", ">=", 20), ("maybe", "<", 1000)]) == [i for i in range(20, 40) if i != 25]
        assert read == [2]  # which has a null
        read.clear()
        assert kept(source, [("value", ">=", 5.0)]) == list(range(10, 40))
        assert sorted(read) == [1, 2, 3]  # floats may hold NaN, of which statistics say nothing

    @pytest.mark.parametrize("size", [2, 5000])
    def test_sets_of_texts_larger_and_smaller_than_a_column(self, tmp_path, size):
        texts = [None if i % 7 == 0 else f"t{i % 10}" for i in range(100)]
        write(tmp_path / "a.parquet", {"t": texts, "d": pa.array(texts).dictionary_encode()}, rows_per_group=40)
        source = open_parquet(str(tmp_path))
        for name in ("t", "d"):
            for more in ([], [None], [1, b"t1", NAN]):
                predicate = in_set([f"t{i}" for i in range(3, 3 + size)] + more, name)
                assert kept(source, predicate) == [i for i in range(100) if predicate.do_include({name: texts[i]})]

    @pytest.mark.parametrize(
        ("stored", "asked", "value", "read"),
        [
            (pa.array([1, 2, 3, 4], pa.int32()), np.uint8, 3, [1]),
            (pa.array([1, 2, 3, 4], pa.timestamp("s")), np.dtype("M8[us]"), np.datetime64(3, "s"), [1]),
            (pa.array([0.5, 1.5, 3, 4], pa.float32()), np.float64, 3.0, [1]),
            (pa.array([0.5, 1.5, 0.1, 4]), np.float32, np.float32(0.1), [0, 1]),
            (pa.array([1, 2, 3, 4]), np.str_, "3", [0, 1]),
            (pa.array(["1", "2", "3", "4"]), Decimal, 3, [0, 1]),
            (pa.array(["1", "2", "3", "4"]), np.bytes_, b"3", [0, 1]),
        ],
    )
    def test_statistics_count_only_where_values_are_delivered_as_stored(
        self, tmp_path, monkeypatch, stored, asked, value, read
    ):
        write(tmp_path / "a.parquet", {"x": stored}, rows_per_group=2)
        schema = penstock.Unischema("S", [penstock.UnischemaField("x", asked, (), None, False)])
        source = open_parquet(str(tmp_path), schema=schema)
        seen, whole = [], source.read
        monkeypatch.setattr(
            source, "read", lambda chunk, names, **more: seen.append(chunk) or whole(chunk, names, **more)
        )
        assert kept(source, in_set([value], "x")) == [2]
        assert sorted(seen) == read

    def test_only_the_predicates_columns_are_read(self, tmp_path):
        columns = ids(0, 400) | {"blob": pa.array([b"x" * 5000] * 400)}
        write(tmp_path / "data" / "a.parquet", columns, rows_per_group=100, compression="none", use_dictionary=False)
        fs = RecordingFileSystem()
        source = open_parquet(str(tmp_path / "data"), filesystem=fs)
        fs.reads.clear()
        assert kept(source, in_lambda(["id"], lambda i: i % 100 == 0)) == [0, 100, 200, 300]
        assert 3200 < fs.reads.num_bytes < 10_000

    def test_under_all_functions_see_only_what_is_left(self, tmp_path, monkeypatch):
        source = open_parquet(str(write_ids(tmp_path, files=1, rows=100, rows_per_group=50)))
        seen, read = [], []
        whole = source.read
        monkeypatch.setattr(
            source, "read", lambda chunk, names, **more: read.append((chunk, *names)) or whole(chunk, names, **more)
        )
        slow = in_lambda(["value"], lambda v: seen.append(v) or v < 20)
        both = in_reduce([slow, in_intersection_free(), in_set([1, 3, 60], "id")], all)
        assert kept(source, both) == [1, 3]
        assert sorted(seen) == [0.5, 1.5, 30.0]
        assert sorted(read) == [(0, "id"), (0, "value"), (1, "id"), (1, "value")]

    def test_rows_left_out_before_are_not_shown(self, source):
        before = chosen(source, [("id", ">", 17)])
        seen = []
        predicate = in_lambda(["id"], lambda i: seen.append(int(i)) or i == 19)
        assert kept(source, predicate, before) == [19]
        assert seen == [18, 19]

    def test_a_whole_chunk_that_passes_keeps_the_bitmap_of_before(self, source):
        before = chosen(source, [("id", "in", [0, 1, 13])])
        assert kept(source, in_set(["train"], "split"), before) == [0, 1]

    def test_equal_selections_have_equal_digests(self, source):
        by_filter = chosen(source, [("id", "<", 6)])
        by_predicate = chosen(source, in_lambda(["id"], lambda i: i < 6))
        assert by_predicate.digest() == by_filter.digest()


def in_intersection_free():
    """A fast predicate that keeps everything."""
    return in_pseudorandom_split([1.0], 0, "id")


class TestDecoded:
    def test_cells_are_decoded_for_the_predicate(self, tmp_path):
        schema = penstock.Unischema(
            "S",
            [
                penstock.UnischemaField("id", np.int64, (), None, False),
                penstock.UnischemaField("image", np.uint8, (4, 4), penstock.codecs.NdarrayCodec(), True),
                penstock.UnischemaField("free", np.float32, (None,), penstock.codecs.CompressedNdarrayCodec(), False),
                penstock.UnischemaField("small", np.uint8, (), penstock.codecs.ScalarCodec(), False),
            ],
        )
        data = [
            {
                "id": i,
                "image": None if i == 2 else np.full((4, 4), i, np.uint8),
                "free": np.arange(i, dtype=np.float32),
                "small": np.uint8(i),
            }
            for i in range(30)
        ]
        penstock.write(data, tmp_path / "d", schema=schema, row_group_bytes=500)
        ds = penstock.open(tmp_path / "d")
        assert len(ds.chunks) > 3

        def ids_of(predicate):
            return ds.where(predicate).select(["id"]).head(30)["id"].tolist()

        def check(image):
            return image is not None and image.shape == (4, 4) and image.dtype == np.uint8 and image[0, 0] > 26

        assert ids_of(in_lambda(["image"], check)) == [27, 28, 29]
        assert ids_of(in_lambda(["image"], lambda image: image is None)) == [2]
        assert ids_of(in_lambda(["free"], lambda free: len(free) == 7)) == [7]
        assert ids_of(in_intersection([20.0], "free")) == list(range(21, 30))
        assert ids_of(in_intersection([5, 6], "image")) == [5, 6]
        assert ids_of(in_set([5, 300], "small")) == [5]
        assert ids_of(in_lambda(["small"], lambda small: type(small) is np.uint8 and small == 9)) == [9]
        both = in_reduce([in_set([4, 5], "id"), in_lambda(["image"], lambda image: image[0, 0] == 5)], all)
        assert ids_of(both) == [5]

    def test_large_cells_are_decoded_in_blocks(self, tmp_path):
        sizes = []

        class Counting(penstock.codecs.NdarrayCodec):
            def decode_column(self, field, cells, out):
                sizes.append(len(cells))
                super().decode_column(field, cells, out)

        shape = (256, 256)
        schema = penstock.Unischema("S", [penstock.UnischemaField("m", np.int64, shape, Counting(), False)])
        penstock.write({"m": np.zeros((100, *shape), np.int64)}, tmp_path / "d", row_group_bytes=1 << 30)
        ds = penstock.open(tmp_path / "d", schema=schema)
        assert len(ds.chunks) == 1
        assert len(ds.where(in_lambda(["m"], lambda m: m[0, 0] == 0))) == 100
        assert sum(sizes) == 100
        assert max(sizes) <= BLOCK_BYTES // (8 * 256 * 256)

    def test_a_cell_that_cannot_be_decoded_is_named(self, tmp_path):
        schema = penstock.Unischema(
            "S", [penstock.UnischemaField("m", np.int64, (2,), penstock.codecs.NdarrayCodec(), False)]
        )
        path = write(tmp_path / "a.parquet", {"m": pa.array([b"junk"] * 3)})
        ds = penstock.open(path, schema=schema)
        with pytest.raises(
            DecodeError, match=r"column 'm', which the filter needs, in .*a\.parquet, row group 0, row 0"
        ):
            ds.where(in_lambda(["m"], lambda m: True))


class TestErrors:
    def test_unknown_fields_list_near_names(self, source):
        for predicate in (in_set([1], "lable"), in_lambda(["id", "lable"], lambda *_: True)):
            with pytest.raises(ColumnNotFound, match="did you mean 'label'"):
                chosen(source, predicate)

    def test_a_predicate_without_fields(self, source):
        for predicate in (in_lambda([], lambda: True), in_reduce([], all)):
            with pytest.raises(ValueError, match="names no fields"):
                chosen(source, predicate)

    def test_what_is_no_predicate(self, source):
        with pytest.raises(ValueError, match="or a predicate"):
            chosen(source, lambda row: True)

    def test_the_users_error_comes_through_with_its_place(self, source):
        def fail(value):
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine") as caught:
            chosen(source, in_lambda(["id"], fail))
        assert "part-0.parquet, row group" in caught.value.__notes__[0]

    def test_fields_that_hold_the_wrong_kind(self, source):
        with pytest.raises(SchemaError, match="use in_intersection"):
            chosen(source, in_set([1], "tags"))
        with pytest.raises(SchemaError, match="use in_intersection"):
            chosen(source, in_set([1], "box"))
        with pytest.raises(SchemaError, match="use in_set"):
            chosen(source, in_intersection([1], "id"))

    def test_damaged_row_groups(self, tmp_path):
        path = write(
            tmp_path / "a.parquet", ids(0, 2000), rows_per_group=1000, compression="none", use_dictionary=False
        )
        data = bytearray(path.read_bytes())
        data[4:40] = b"\xff" * 36
        path.write_bytes(data)
        predicate = in_lambda(["id"], lambda i: i % 1000 == 1)
        with pytest.raises(BadFile, match="row group 0"):
            chosen(open_parquet(str(path)), predicate)
        source = open_parquet(str(path), on_error="skip")
        assert kept(source, predicate) == [1001]
        assert len(chosen(source, predicate).skipped) == 1


class TestPublic:
    def test_where_takes_a_predicate(self, tmp_path):
        ds = penstock.open(write_ids(tmp_path))
        assert ds.where(in_set([3, 4], "id")).take([0, 1])["id"].tolist() == [3, 4]
        assert len(penstock.open(tmp_path, filters=in_lambda(["id"], is_even))) == 15
        combined = ds.where([("id", ">", 10)]).where(in_lambda(["id"], is_even)).where(in_negate(in_set([12], "id")))
        assert combined.head(100)["id"].tolist() == [14, 16, 18, 20, 22, 24, 26, 28]
        with combined.loader(batch_size=3, shuffle=True, seed=1) as loader:
            assert sorted(np.concatenate([batch["id"] for batch in loader]).tolist()) == list(range(14, 29, 2))

    def test_both_faces_have_the_same_classes(self):
        from penstock import predicates
        from penstock.petastorm import predicates as face

        for name in face.__all__:
            assert getattr(face, name) is getattr(predicates, name)
