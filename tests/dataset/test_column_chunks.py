from __future__ import annotations

import contextlib
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.dataset import column_chunks
from penstock.dataset.column_chunks import ColumnChunks
from penstock.dataset.thrift import ThriftError
from penstock.errors import BadFile
from tests.house import ROOT

TABLE = pa.table(
    {
        "i8": pa.array([-3, None, 5, 100], pa.int8()),
        "i64": pa.array([-(1 << 62), 0, 1, 1 << 62]),
        "u32": pa.array([0, 1, 1 << 31, (1 << 32) - 1], pa.uint32()),
        "u64": pa.array([0, 1, 1 << 63, (1 << 64) - 1], pa.uint64()),
        "f32": pa.array([-1.5, None, 0.0, 9.0], pa.float32()),
        "f64": [float("nan"), 1.0, -2.0, None],
        "flag": [True, False, None, True],
        "text": ["", "ä", None, "z" * 300],
        "bytes": [b"\xff", b"", b"\x00", None],
        "day": pa.array([date(1970, 1, 2), None, date(1900, 1, 1), date(2100, 1, 1)]),
        "s": pa.array([datetime(2020, 1, 1), None, datetime(1969, 1, 1), datetime(2020, 1, 2)], pa.timestamp("s")),
        "us": pa.array([datetime(2020, 1, 1, tzinfo=UTC)] * 4, pa.timestamp("us", "UTC")),
        "small": pa.array([Decimal("-1.50"), None, Decimal("2.25"), Decimal("0.00")], pa.decimal128(9, 2)),
        "large": pa.array([Decimal("-1.50"), None, Decimal("2.25"), Decimal("0.00")], pa.decimal128(30, 2)),
        "fixed": pa.array([b"ab", b"zz", None, b"aa"], pa.binary(2)),
        "nulls": pa.array([None] * 4, pa.int32()),
        "list": [[1, 2], [], None, [3]],
        "struct": [{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}, {"a": 4, "b": {"c": "y"}}],
        "map": pa.array([[("k", 1)], [], None, [("l", 2)]], pa.map_(pa.string(), pa.int32())),
        "word": pa.array(["a", "b", "a", None]).dictionary_encode(),
    }
)


def footer_of(path) -> bytes:
    data = path.read_bytes()
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


@pytest.fixture(
    params=[{}, {"version": "1.0", "use_dictionary": False}, {"compression": "zstd", "write_statistics": False}]
)
def file(tmp_path, request):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.concat_tables([TABLE] * 3), path, row_group_size=4, **request.param)
    return path


class TestAgainstArrow:
    """pyarrow is the twin: on sound footers both say the same."""

    def test_figures(self, file):
        chunks, theirs = ColumnChunks(footer_of(file)), pq.read_metadata(file)
        assert [leaf.path for leaf in chunks.leaves] == [
            theirs.schema.column(i).path for i in range(len(theirs.schema))
        ]
        assert chunks.file_paths == ["", "", ""]
        for group in range(3):
            for leaf in range(len(chunks.leaves)):
                column = theirs.row_group(group).column(leaf)
                assert chunks.num_values[group, leaf] == column.num_values
                assert chunks.uncompressed_bytes[group, leaf] == column.total_uncompressed_size
                assert chunks.compressed_bytes[group, leaf] == column.total_compressed_size
                assert chunks.data_page_offset[group, leaf] == column.data_page_offset
                assert chunks.dictionary_page_offset[group, leaf] == (column.dictionary_page_offset or -1)
                plain = {"PLAIN", "RLE", "BIT_PACKED", "BYTE_STREAM_SPLIT"}
                assert chunks.spelled_out[group, leaf] == plain.issuperset(column.encodings)
                statistics = column.statistics
                known = statistics is not None and statistics.has_null_count
                assert chunks.null_count[group, leaf] == (statistics.null_count if known else -1)

    def test_leaves_inside_lists_are_not_flat(self, file):
        flat = ColumnChunks(footer_of(file)).flat
        assert {"struct.a", "struct.b.c", "i8", "word"} <= flat.keys()
        assert not [path for path in flat if path.startswith(("list", "map"))]

    @pytest.mark.parametrize("name", [field.name for field in TABLE.schema if not pa.types.is_nested(field.type)])
    def test_bounds_enclose_the_values(self, file, name):
        chunks, field = ColumnChunks(footer_of(file)), TABLE.schema.field(name)
        kind = field.type.value_type if name == "word" else field.type
        bounds = chunks.bounds(0, chunks.flat[name], kind)
        statistics = pq.read_metadata(file).row_group(0).column(chunks.flat[name]).statistics
        if statistics is None or not statistics.has_min_max:
            assert bounds is None
            return
        values = [value for value in TABLE[name].to_pylist() if value is not None and value == value]
        assert bounds is not None
        assert [bound.as_py() for bound in bounds] == [min(values), max(values)]

    def test_files_that_spark_wrote(self):
        for path in sorted((ROOT / "tests" / "data" / "petastorm").rglob("*.parquet")):
            chunks, theirs = ColumnChunks(footer_of(path)), pq.read_metadata(path)
            sizes = [
                [theirs.row_group(g).column(i).total_compressed_size for i in range(theirs.num_columns)]
                for g in range(theirs.num_row_groups)
            ]
            assert chunks.compressed_bytes.tolist() == sizes


class TestDigests:
    def test_metadata_and_footers_agree(self, tmp_path):
        collected = []
        pq.write_to_dataset(
            TABLE.select(["i64", "text"]), tmp_path, metadata_collector=collected, basename_template="{i}.parquet"
        )
        pq.write_metadata(TABLE.select(["i64", "text"]).schema, tmp_path / "_metadata", metadata_collector=collected)
        summary = ColumnChunks(footer_of(tmp_path / "_metadata"))
        assert summary.file_paths == ["0.parquet"]
        assert summary.digests == ColumnChunks(footer_of(tmp_path / "0.parquet")).digests

    def test_other_values_give_another_digest(self, tmp_path):
        digests = set()
        for last in (3, 4):
            pq.write_table(pa.table({"x": [1, 2, last]}), tmp_path / "x.parquet")
            digests |= set(ColumnChunks(footer_of(tmp_path / "x.parquet")).digests)
        assert len(digests) == 2

    def test_it_is_pinned(self):
        # Stored states hold digests of these: changing one breaks resumed runs.
        path = sorted((ROOT / "tests" / "data" / "petastorm").rglob("timed/*.parquet"))[0]
        assert [one.hex() for one in ColumnChunks(footer_of(path)).digests] == ["53622c691099ca88d40f05ad3798150e"]


def told(raw):
    """Everything that is read of a footer, or the error."""
    try:
        chunks = ColumnChunks(raw)
    except ThriftError:
        return "damaged"
    names = ("num_values", "uncompressed_bytes", "compressed_bytes", "data_page_offset", "dictionary_page_offset")
    names += ("null_count", "unencoded_bytes", "spelled_out")
    figures = {name: getattr(chunks, name).tolist() for name in names}
    return figures, chunks.file_paths, chunks.digests, chunks._bounds, chunks.null_elements().tolist()


def both(raw):
    """What the pattern and what reading field by field make of a footer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_chunks, "LEAST_CHUNKS", 0)
        fast = told(raw)
        patch.setattr(column_chunks, "LEAST_CHUNKS", 1 << 60)
        return fast, told(raw)


class TestPattern:
    """Column chunks are read by one regular expression; reading field by field is its plain twin."""

    def test_they_agree_on_what_arrow_writes(self, file):
        fast, plain = both(footer_of(file))
        assert fast == plain != "damaged"

    def test_they_agree_on_what_spark_writes(self):
        for path in sorted((ROOT / "tests" / "data" / "petastorm").rglob("*.parquet")):
            fast, plain = both(footer_of(path))
            assert fast == plain != "damaged"

    def test_they_agree_on_a_summary(self, tmp_path):
        collected: list = []
        pq.write_to_dataset(TABLE, tmp_path, metadata_collector=collected, basename_template="{i}.parquet")
        pq.write_metadata(TABLE.schema, tmp_path / "_metadata", metadata_collector=collected)
        fast, plain = both(footer_of(tmp_path / "_metadata"))
        assert fast == plain
        assert fast[1] == ["0.parquet"]

    @given(data=st.data())
    def test_they_agree_on_damaged_footers(self, data):
        fast, plain = both(mutated(data))
        assert fast == plain

    def test_most_column_chunks_are_read_by_the_pattern(self, tmp_path):
        pq.write_table(TABLE, tmp_path / "a.parquet")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(column_chunks, "LEAST_CHUNKS", 0)
            patch.setattr(column_chunks, "_read_chunk", lambda chunk, leaf, bounds: missed.append(chunk))
            missed: list = []
            with contextlib.suppress(TypeError):
                ColumnChunks(footer_of(tmp_path / "a.parquet"))
        assert len(missed) <= 1  # the text of 300 bytes


def mutated(data):
    """Return a footer with one thing changed."""
    sound = SOUND
    position = data.draw(st.integers(0, len(sound) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "set"]))
    if kind == "flip":
        return sound[:position] + bytes([sound[position] ^ 1 << data.draw(st.integers(0, 7))]) + sound[position + 1 :]
    if kind == "cut":
        return sound[:position]
    if kind == "insert":
        return sound[:position] + data.draw(st.binary(min_size=1, max_size=20)) + sound[position:]
    return sound[:position] + data.draw(st.binary(min_size=1, max_size=1)) + sound[position + 1 :]


class TestDamage:
    @given(data=st.data())
    def test_bytes_that_are_not_a_footer(self, data):
        bad = mutated(data)
        try:
            chunks = ColumnChunks(bad)
        except ThriftError:
            return
        for group in range(len(chunks.digests)):
            for leaf in range(len(chunks.leaves)):
                chunks.bounds(group, leaf, pa.int64())
                chunks.bounds(group, leaf, pa.timestamp("s"))
                chunks.bounds(group, leaf, pa.string())
                chunks.bounds(group, leaf, pa.decimal128(30, 2))

    def test_a_list_where_a_number_belongs(self):
        at = SOUND.index(b"\x19", SOUND.index(b"\x1c\x15", 1000)) + 2
        with pytest.raises(ThriftError):
            ColumnChunks(SOUND[:at] + b"\x19" + SOUND[at:])

    def test_deep_nesting_is_an_error(self):
        with pytest.raises(ThriftError, match="nested more than"):
            ColumnChunks(b"\x1c" * 100_000)

    def test_an_announced_length_allocates_nothing(self):
        with pytest.raises(ThriftError, match="too many for the bytes left"):
            ColumnChunks(b"\x29\xfc\xff\xff\xff\xff\x7f")
        with pytest.raises(ThriftError, match="are left"):
            ColumnChunks(b"\x18\xff\xff\xff\xff\x7f")

    @pytest.fixture
    def damaged(self, tmp_path):
        """A column chunk claims another physical type: pyarrow would end the process when asked for its statistics."""
        path = tmp_path / "bad.parquet"
        pq.write_table(pa.table({"text": ["a", "b"]}), path, use_dictionary=False)
        data = path.read_bytes()
        start = data.index(b"\x1c\x15\x0c\x19", len(data) - 8 - int.from_bytes(data[-8:-4], "little"))
        path.write_bytes(data[: start + 2] + b"\x02" + data[start + 3 :])
        return tmp_path

    def test_a_damaged_footer_is_named(self, damaged):
        with pytest.raises(BadFile, match=r"bad\.parquet.*physical type 1 where the schema says 6"):
            penstock.open(damaged).loader(batch_size=2)

    def test_filters_do_without_its_statistics(self, damaged):
        assert len(penstock.open(damaged, filters=[("text", "=", "a")])) == 1

    def test_skipping_leaves_the_file_out(self, damaged):
        pq.write_table(pa.table({"text": ["c", "d"]}), damaged / "good.parquet")
        dataset = penstock.open(damaged, on_error="skip")
        assert dataset.take([0, 1])["text"].tolist() == ["c", "d"]
        assert [path.endswith("bad.parquet") for path, _ in dataset.skipped] == [True]


def _sound() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink)
    data = sink.getvalue().to_pybytes()
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


SOUND = _sound()


class TestElements:
    """What lists hold, without the lists themselves; `null_count` also counts empty and null lists."""

    def test_null_elements_are_told_from_empty_and_null_lists(self, tmp_path):
        sure = pa.list_(pa.field("element", pa.int64(), nullable=False))
        columns = {
            "some": [[1, None], [], None, [None, 2]],
            "full": [[1], [2], [3], [4]],
            "none": [[1], [], None, [2]],
            "sure": pa.array([[1], [], None, [2]], sure),
            "flat": [1, None, 3, 4],
        }
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        chunks = ColumnChunks(footer_of(tmp_path / "a.parquet"))
        [found] = chunks.null_elements().tolist()
        newer = int(pa.__version__.split(".")[0]) >= 19  # writes size statistics
        assert found == ([2, 0, 0, 0, 1] if newer else [-1, 0, -1, 0, 1])
