"""Schemas of files must agree, stored and given schemas decide, `_metadata` is used only where it can be trusted."""

import contextlib
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.codecs import NdarrayCodec, ScalarCodec
from penstock.dataset import open_parquet
from penstock.dataset.columns import Known, decide_columns
from penstock.dataset.unify_types import same_values
from penstock.errors import BadFile, CodecError, ColumnNotFound, MetadataError, SchemaError, UnsupportedType
from penstock.petastorm.etl.dataset_metadata import get_schema
from penstock.schema.stored import PETASTORM_SCHEMA_KEY, SCHEMA_KEY, schema_to_json
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.testing import RecordingFileSystem
from tests.dataset.make import ids, read_all, write, write_ids
from tests.depth import depth


class TestAgreement:
    def test_another_type_names_file_column_and_types(self, tmp_path):
        write_ids(tmp_path)
        write(tmp_path / "part-1.parquet", {"id": pa.array([1], pa.int32()), "value": [1.0]})
        with pytest.raises(SchemaError, match=r"'id' has type int32 in .*part-1.* int64 in .*part-0"):
            open_parquet(tmp_path)

    def test_a_missing_and_an_extra_column_are_named(self, tmp_path):
        write_ids(tmp_path)
        write(tmp_path / "part-1.parquet", {"id": [1]})
        with pytest.raises(SchemaError, match=r"'value' is missing in .*part-1"):
            open_parquet(tmp_path)
        write(tmp_path / "part-1.parquet", {"id": [1], "value": [1.0], "more": [1]})
        with pytest.raises(SchemaError, match=r"'more' has type int64 in .*part-1.* is missing in .*part-0"):
            open_parquet(tmp_path)

    def test_structs_of_other_names_do_not_agree(self, tmp_path):
        write(tmp_path / "0.parquet", {"s": [{"a": 1}]}, store_schema=False)
        write(tmp_path / "1.parquet", {"t": [{"a": 1}]}, store_schema=False)
        with pytest.raises(SchemaError, match=r"'s\.a' is missing in .*1\.parquet"):
            open_parquet(tmp_path)

    def test_with_columns_only_those_must_agree(self, tmp_path):
        write_ids(tmp_path)
        write(tmp_path / "part-1.parquet", {"id": [1], "value": ["text"]})
        source = open_parquet(tmp_path, columns=["id"])
        assert len(read_all(source, ["id"])) == 21
        with pytest.raises(SchemaError, match=r"part-1"):
            open_parquet(tmp_path, columns=["value"])
        with pytest.raises(ColumnNotFound, match="did you mean 'value'"):
            open_parquet(tmp_path, columns=["valu"])

    def test_order_and_nullability_may_differ(self, tmp_path):
        schema = pa.schema([pa.field("value", pa.float64()), pa.field("id", pa.int64(), nullable=False)])
        write(tmp_path / "a.parquet", pa.table({"value": [0.5], "id": [1]}, schema=schema))
        write(tmp_path / "b.parquet", ids(2, 4))
        source = open_parquet(tmp_path)
        assert source.facts.arrow_schema.names == ["value", "id"]
        assert source.facts.arrow_schema.field("id").nullable
        assert read_all(source).to_pydict() == {"value": [0.5, 1.0, 1.5], "id": [1, 2, 3]}

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (pa.string(), pa.large_string()),
            (pa.large_binary(), pa.binary()),
            (pa.string(), pa.dictionary(pa.int32(), pa.string())),
            (pa.dictionary(pa.int32(), pa.string()), pa.string()),
            (pa.dictionary(pa.int8(), pa.string()), pa.large_string()),
            (pa.null(), pa.string()),
            (pa.string(), pa.null()),
            (pa.list_(pa.field("item", pa.int64())), pa.list_(pa.field("element", pa.int64(), nullable=False))),
        ],
    )
    def test_the_same_values_in_another_dress(self, tmp_path, first, second):
        def values(kind):
            if pa.types.is_null(kind):
                return [None, None]
            if pa.types.is_list(kind):
                return [[1], [2, 3]]
            return [b"x", b"y"] if "binary" in str(kind) else ["x", "y"]

        for name, kind in (("a", first), ("b", second)):
            array = pa.array(values(kind), kind)
            write(tmp_path / f"{name}.parquet", pa.table({"c": array}))
        source = open_parquet(tmp_path)
        table = read_all(source)
        assert table["c"].to_pylist() == values(first) + values(second)
        assert table.schema.field("c").type == source.facts.arrow_schema.field("c").type

    @pytest.mark.parametrize(
        "second", [pa.string(), pa.large_string(), pa.dictionary(pa.int16(), pa.string())], ids=str
    )
    @pytest.mark.parametrize("inside", ["", "list", "struct", "map", "list of lists"])
    def test_indices_too_narrow_for_another_file(self, tmp_path, second, inside):
        narrow = pa.dictionary(pa.int8(), pa.string())
        for name, values, kind in (("a", ["x"], narrow), ("b", [f"v{i}" for i in range(300)], second)):
            array, each = pa.array(values, kind), pa.array(range(len(values) + 1), pa.int32())
            if inside == "struct":
                array = pa.StructArray.from_arrays([array], ["u"])
            elif inside == "map":
                array = pa.MapArray.from_arrays(each, pa.array(values), array)
            elif inside:
                array = pa.ListArray.from_arrays(each, array)
            if inside == "list of lists":
                array = pa.ListArray.from_arrays(each, array)
            write(tmp_path / f"{name}.parquet", pa.table({"c": array}))
        ds = penstock.open(tmp_path)
        with ds.loader(batch_size=64, on_error="skip") as loader:
            found = [value for batch in loader for (column,) in [batch.values()] for value in column]
            assert not loader.skipped
        while isinstance(found[0], list | np.ndarray):
            found = [value for row in found for value in row]
        if inside == "map":
            found = [value for _, value in found]
        assert found == ["x", *(f"v{i}" for i in range(300))]

    def test_files_that_cannot_be_cast_are_an_error_not_damage(self, tmp_path, monkeypatch):
        write(tmp_path / "a.parquet", {"c": pa.array(["x"])})
        write(tmp_path / "b.parquet", {"c": pa.array(["y", "z"], pa.large_string())})
        ds = penstock.open(tmp_path)

        def cast_column(*_):
            raise pa.ArrowInvalid("offsets do not fit")

        monkeypatch.setattr("penstock.dataset.files.cast_column", cast_column)
        with ds.loader(batch_size=2, on_error="skip") as loader, pytest.raises(SchemaError, match=r"'c'.*b\.parquet"):
            list(loader)

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (pa.int64(), pa.duration("us")),
            (pa.timestamp("us"), pa.timestamp("us", "UTC")),
            (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")),
            (pa.list_(pa.int64()), pa.list_(pa.int32())),
            (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())])),
            (pa.string(), pa.binary()),
            (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int32())),
        ],
    )
    def test_types_that_only_look_alike(self, first, second):
        assert not same_values(first, second)
        assert same_values(first, first)

    def test_types_that_parquet_does_not_tell_apart(self, tmp_path):
        write(tmp_path / "a.parquet", {"c": pa.array([1], pa.int64())})
        write(tmp_path / "b.parquet", {"c": pa.array([1], pa.duration("us"))})
        with pytest.raises(SchemaError, match=r"duration"):
            open_parquet(tmp_path)

    def test_metadata_of_writers_may_differ(self, tmp_path):
        for number in range(3):
            table = pa.table(ids(number, number + 1)).replace_schema_metadata({"pandas": f"{number}"})
            write(tmp_path / f"{number}.parquet", table)
        assert read_all(open_parquet(tmp_path))["id"].to_pylist() == [0, 1, 2]


SCHEMA = Unischema(
    "Stored",
    [
        UnischemaField("day", np.str_, (), ScalarCodec(pa.string()), False),
        UnischemaField("value", np.float64, (), None, False),
        UnischemaField("id", np.int64, (), None, False),
    ],
)


def stored(schema):
    return {SCHEMA_KEY: schema_to_json(schema).encode()}


def write_common(root, schema, name="_common_metadata"):
    pq.write_metadata(pa.table(ids(0, 0)).schema.with_metadata(stored(schema)), root / name)


class TestStored:
    @pytest.fixture
    def root(self, tmp_path):
        for day in ("01", "02"):
            write(tmp_path / f"day={day}" / "x.parquet", ids(int(day), int(day) + 2))
        return tmp_path

    def test_its_order_and_types_win(self, root):
        write_common(root, SCHEMA)
        source = open_parquet(root)
        assert source.facts.arrow_schema.names == list(source.facts.unischema.fields) == ["day", "value", "id"]
        assert source.facts.arrow_schema.field("day").type == pa.string()
        assert source.read(1, ["id", "day"]).to_pydict() == {"id": [2, 3], "day": ["02", "02"]}
        assert source.facts.unischema._name == "Stored"

    def test_without_it_the_partition_is_as_it_reads_and_last(self, root):
        source = open_parquet(root)
        assert source.facts.arrow_schema.names == ["id", "value", "day"]
        assert source.facts.constants["day"].to_pylist() == ["01", "02"]

    def test_a_single_file_describes_itself(self, tmp_path):
        table = pa.table(ids(0, 2)).replace_schema_metadata(stored(SCHEMA))
        write(tmp_path / "day=03" / "x.parquet", table)
        for source in (tmp_path, tmp_path / "day=03" / "x.parquet", f"{tmp_path}/*/*.parquet"):
            assert open_parquet(source).facts.unischema._name == "Stored"
            assert open_parquet(source).facts.constants["day"].to_pylist() == ["03"]

    def test_files_whose_stored_schemas_disagree_are_named(self, tmp_path):
        def scalar(name, dtype):
            return UnischemaField(name, dtype, (), None, False)

        for number, dtype in enumerate((np.int64, np.int64, np.int32)):
            schema = Unischema("S", [scalar("id", dtype), scalar("value", np.float64)])
            write(tmp_path / f"{number}.parquet", pa.table(ids(0, 2)).replace_schema_metadata(stored(schema)))
        with pytest.raises(SchemaError, match=r"'id' is .*0\.parquet but .*2\.parquet"):
            open_parquet(tmp_path)
        assert open_parquet(tmp_path, columns=["value"]).facts.chunk_rows.sum() == 6
        assert open_parquet(tmp_path, schema=Unischema("Mine", [])).facts.chunk_rows.sum() == 6

    def test_folders_whose_stored_schemas_disagree_are_named(self, tmp_path):
        for name, dtype in (("a", np.int64), ("b", np.int32)):
            write_ids(tmp_path / name)
            write_common(tmp_path / name, Unischema("S", [UnischemaField("id", dtype, (), None, False)]))
        with pytest.raises(SchemaError, match=r"'id' is .*a but .*b"):
            open_parquet([tmp_path / "a", tmp_path / "b"])
        assert open_parquet([tmp_path / "a", tmp_path / "a"]).facts.chunk_rows.sum() == 60

    def test_a_file_finds_the_metadata_beside_it(self, root):
        write_common(root, SCHEMA)
        assert open_parquet([root / "day=02" / "x.parquet"]).facts.unischema._name == "Stored"

    def test_metadata_in_place_of_common_metadata(self, root):
        write_common(root, SCHEMA, "_metadata")
        assert open_parquet(root).facts.unischema._name == "Stored"

    def test_a_foreign_common_metadata_says_nothing(self, root):
        pq.write_metadata(pa.schema([("other", pa.int8())]), root / "_common_metadata")
        assert open_parquet(root).facts.unischema._name == "inferred_schema"

    def test_a_damaged_one_is_named(self, root):
        (root / "_common_metadata").write_bytes(b"")
        with pytest.raises(MetadataError, match=r"_common_metadata.*delete it, or pass schema="):
            open_parquet(root)
        assert open_parquet(root, schema=Unischema("Mine", [])).facts.arrow_schema.names == ["id", "value", "day"]

    def test_a_field_that_the_files_do_not_hold_is_named(self, root):
        more = Unischema("Stored", [*SCHEMA.fields.values(), UnischemaField("gone", np.int8, (), None, True)])
        write_common(root, more)
        with pytest.raises(SchemaError, match=r"schema stored in .*_common_metadata has the field 'gone'"):
            open_parquet(root)
        assert open_parquet(root, columns=["id", "day"]).facts.arrow_schema.names == ["day", "value", "id"]
        with pytest.raises(SchemaError, match="'gone'"):
            open_parquet(root, columns=["gone"])

    def test_columns_that_it_does_not_know_are_appended(self, root):
        write_common(root, Unischema("Stored", [SCHEMA.fields["value"]]))
        source = open_parquet(root)
        assert list(source.facts.unischema.fields) == ["value", "id", "day"]
        assert source.facts.unischema.fields["id"].numpy_dtype is np.int64

    def test_a_given_schema_overrides(self, root):
        write_common(root, SCHEMA)
        given = Unischema("Given", [UnischemaField("day", np.int16, (), None, False)])
        source = open_parquet(root, schema=given)
        assert list(source.facts.unischema.fields) == ["day", "id", "value"]
        assert source.facts.unischema._name == "Given"
        assert source.facts.constants["day"].to_pylist() == [1, 2]
        assert source.read(0, ["day"])["day"].type == pa.int16()
        with pytest.raises(SchemaError, match="schema= has the field 'gone'"):
            open_parquet(root, schema=Unischema("Given", [UnischemaField("gone", np.int16, (), None, False)]))

    def test_a_given_codec_applies(self, tmp_path):
        write(tmp_path / "x.parquet", {"m": [b"12"]})
        field = UnischemaField("m", np.float32, (2,), NdarrayCodec(), False)
        source = open_parquet(tmp_path, schema=Unischema("Given", [field]))
        assert source.facts.unischema.fields["m"].codec == NdarrayCodec()

    def test_a_partition_that_does_not_fit_is_named(self, root):
        (root / "day=02").rename(root / "day=first")
        given = Unischema("Given", [UnischemaField("day", np.int16, (), None, False)])
        with pytest.raises(SchemaError, match="day=first"):
            open_parquet(root, schema=given)


PLAIN = Unischema("Plain", [UnischemaField("id", np.int64, (), None, False)])
DAMAGED = {
    "half": b'{"version": 1, "name": "S", "fie',
    "not text": b"\xff\xfe\x00",
    "a later version": b'{"version": 99}',
    "a dtype that does not exist": stored(PLAIN)[SCHEMA_KEY].replace(b'"int64"', b'"int65"'),
    "a codec without a name": stored(PLAIN)[SCHEMA_KEY].replace(b'"codec": null', b'"codec": {}'),
}


class TestDamagedSchema:
    """A stored schema that cannot be read is an error that names its file, and on_error="skip" leaves the file out."""

    @pytest.mark.parametrize("bad", [0, 1, 2])
    @pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
    def test_in_a_data_file(self, tmp_path, text, bad):
        for number in range(3):
            found = {SCHEMA_KEY: text} if number == bad else stored(PLAIN)
            table = pa.table(ids(10 * number, 10 * number + 2)).replace_schema_metadata(found)
            write(tmp_path / f"{number}.parquet", table)
        with pytest.raises((MetadataError, CodecError), match=rf"/{bad}\.parquet.*pass schema="):
            open_parquet(tmp_path)
        source = open_parquet(tmp_path, on_error="skip")
        assert [(path, reason.startswith(path)) for path, reason in source.facts.skipped] == [
            ((tmp_path / f"{bad}.parquet").as_posix(), True)
        ]
        assert source.facts.files == tuple(f"{number}.parquet" for number in range(3) if number != bad)
        assert open_parquet(tmp_path, schema=PLAIN).facts.chunk_rows.sum() == 6  # the stored ones are not looked at

    def test_in_all_data_files(self, tmp_path):
        for number in range(2):
            table = pa.table(ids(0, 2)).replace_schema_metadata({SCHEMA_KEY: b"?"})
            write(tmp_path / f"{number}.parquet", table)
        with pytest.raises(BadFile, match=r"none of the 2 files can be read; the first: .*/0\.parquet.*damaged"):
            open_parquet(tmp_path, on_error="skip")

    @pytest.mark.parametrize("key", [SCHEMA_KEY, PETASTORM_SCHEMA_KEY])
    @pytest.mark.parametrize("on_error", ["raise", "skip"])
    def test_beside_the_files(self, tmp_path, key, on_error):
        # It says how every file is decoded, so that "skip" does not leave it out.
        root = write_ids(tmp_path)
        pq.write_metadata(pa.schema([("id", pa.int64())]).with_metadata({key: b"junk"}), root / "_common_metadata")
        with pytest.raises(MetadataError, match=r"/_common_metadata: .*pass schema="):
            open_parquet(root, on_error=on_error)
        with pytest.raises(MetadataError, match="/_common_metadata: "):
            get_schema(f"file://{root}")

    def test_any_change_of_a_byte(self, tmp_path):
        text = stored(PLAIN)[SCHEMA_KEY]
        write(tmp_path / "0.parquet", ids(0, 2))
        rng = np.random.default_rng(0)
        for place in rng.integers(0, len(text), depth(40, 1000)):
            changed = bytearray(text)
            changed[place] ^= 1 << rng.integers(0, 8)
            table = pa.table(ids(2, 4)).replace_schema_metadata({SCHEMA_KEY: bytes(changed)})
            path = write(tmp_path / "1.parquet", table)
            told = path.as_posix()
            try:
                open_parquet(path)
            except (MetadataError, CodecError, SchemaError) as error:
                told = str(error)
            assert path.as_posix() in told
            with contextlib.suppress(SchemaError):  # read, and at odds with the columns: nobody knows which is wrong
                assert open_parquet(tmp_path, on_error="skip").facts.files in (
                    ("0.parquet",),
                    ("0.parquet", "1.parquet"),
                )


class TestUnsupported:
    def known(self):
        fields = [("id", pa.int64()), ("gap", pa.month_day_nano_interval())]
        return Known(pa.schema(fields), {}, None, "", None, "a.parquet")

    def test_it_is_refused_at_opening(self):
        with pytest.raises(UnsupportedType, match="'gap'"):
            decide_columns(self.known(), None)
        with pytest.raises(UnsupportedType, match="'gap'"):
            decide_columns(self.known(), ["gap"])

    def test_the_error_names_a_file(self):
        with pytest.raises(UnsupportedType, match=r"^a\.parquet: .*'gap'"):
            decide_columns(self.known(), None)

    def test_it_may_be_left_out(self):
        assert decide_columns(self.known(), ["id"]).arrow_schema.names == ["id"]


class TestErrorsAboutColumns:
    """A damaged footer may give a column another name or type: errors about columns say which file has it."""

    @pytest.mark.parametrize(
        ("columns", "wrong"),
        [
            ({"id": [1], "arrays": [b""]}, "has the field 'array', which the files do not hold"),
            ({"id": [1], "array": [1]}, "column 'array' is stored as int64"),
            ({"id": [1], "array": [{"a": 1}], "array.a": [1]}, "array.a"),
        ],
    )
    def test_they_name_the_first_file(self, tmp_path, columns, wrong):
        fields = [UnischemaField("id", np.int64, ()), UnischemaField("array", np.float32, (2,), NdarrayCodec())]
        write_common(tmp_path, Unischema("S", fields))
        write(tmp_path / "a.parquet", columns)
        with pytest.raises(SchemaError, match=rf"a\.parquet: .*{wrong}"):
            penstock.open(tmp_path)


class TestSummary:
    """`_metadata`: every footer in one file."""

    @pytest.fixture
    def root(self, tmp_path):
        return write_ids(tmp_path, files=8)

    def summarise(self, root, names=None, name="_metadata"):
        collected = []
        for path in sorted(root.rglob("*.parquet")):
            footer = pq.read_metadata(path)
            footer.set_file_path(path.relative_to(root).as_posix())
            if names is None or path.name in names:
                collected.append(footer)
        pq.write_metadata(pq.read_schema(sorted(root.rglob("*.parquet"))[0]), root / name, metadata_collector=collected)

    def opened(self, root, **more):
        fs = RecordingFileSystem()
        source = open_parquet(str(root), filesystem=fs, **more)
        return source, {path.rpartition("/")[2] for path in fs.reads.opened}

    def test_one_that_counts_less_than_no_rows_is_not_used(self, root):
        write(root / "part-0.parquet", ids(0, 1000))
        self.summarise(root)
        data = (root / "_metadata").read_bytes()
        rows = bytes([2000 & 127 | 128, 2000 >> 7])  # 1000 as Thrift writes it: twice, seven bits a byte
        (root / "_metadata").write_bytes(data.replace(rows, bytes([1999 & 127 | 128, 1999 >> 7])))
        assert min(pq.read_metadata(root / "_metadata").row_group(i).num_rows for i in range(4)) == -1000
        source, read = self.opened(root)
        assert len(read) == 9
        assert source.facts.chunk_rows.sum() == 1070

    def test_it_saves_reading_the_footers(self, root):
        plain, read = self.opened(root)
        assert len(read) == 8
        self.summarise(root)
        source, read = self.opened(root)
        assert "_metadata" in read
        assert len(read) < 8
        assert source.facts.chunk_rows.tolist() == plain.facts.chunk_rows.tolist()
        assert source.facts.fingerprint == plain.facts.fingerprint
        assert read_all(source).equals(read_all(plain))

    def test_a_part_of_the_files_is_not_enough(self, root):
        self.summarise(root, names=[f"part-{i}.parquet" for i in range(7)])
        source, read = self.opened(root)
        assert len(read) == 9
        assert source.facts.chunk_rows.sum() == 80

    def test_files_without_rows_are_in_no_summary(self, root):
        write(root / "part-8.parquet", ids(0, 0))
        self.summarise(root)
        assert len(self.opened(root)[0].facts.files) == 9

    def test_an_outdated_one_is_not_used(self, root):
        self.summarise(root)
        for path in root.glob("*.parquet"):
            write(path, ids(0, 20), rows_per_group=4)
        assert self.opened(root)[0].facts.chunk_rows.sum() == 160

    def test_a_shorter_file_is_noticed(self, root):
        self.summarise(root)
        write(root / "part-4.parquet", ids(0, 1))
        assert self.opened(root)[0].facts.chunk_rows.sum() == 71

    def test_what_it_says_wrongly_is_an_error_when_read(self, root):
        from penstock.errors import BadFile

        self.summarise(root)
        write(root / "part-1.parquet", ids(0, 500), rows_per_group=100)
        source, _ = self.opened(root)
        if source.facts.chunk_rows.sum() == 80:  # not among the samples
            with pytest.raises(BadFile, match=r"`_metadata`\) is outdated"):
                source.read(3, ["id"])

    def test_a_damaged_one_is_not_used(self, root):
        (root / "_metadata").write_bytes(b"PAR1 no PAR1")
        with pytest.raises(MetadataError, match="_metadata"):
            self.opened(root)
        write_common(root, Unischema("Stored", []))
        assert self.opened(root)[0].facts.chunk_rows.sum() == 80

    def test_bad_files_are_found_despite_it(self, root):
        self.summarise(root)
        (root / "part-5.parquet").write_bytes(b"PAR1" + bytes(2000))
        source, _ = self.opened(root, on_error="skip")
        assert [path.rpartition("/")[2] for path, _ in source.facts.skipped] == ["part-5.parquet"]


def test_petastorms_row_group_counts_are_no_row_counts(tmp_path):
    write_ids(tmp_path)
    counts = {b"dataset-toolkit.num_row_groups_per_file.v1": b'{"part-0.parquet": 99}'}
    pq.write_metadata(pa.table(ids(0, 0)).schema.with_metadata(counts), tmp_path / "_common_metadata")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_parquet(tmp_path).facts.chunk_rows.sum() == 30


class TestStaleSummary:
    """`_metadata` spares reading the footers; files that were written since are still compared, when they are read."""

    @pytest.fixture
    def rewritten(self, tmp_path):
        """Ten files of int64, of which the third was written again with another type, and a `_metadata` from before."""
        collected: list = []
        for number in range(10):
            pq.write_table(pa.table({"x": [1, 2]}), tmp_path / f"{number}.parquet", metadata_collector=collected)
            collected[-1].set_file_path(f"{number}.parquet")
        pq.write_metadata(pa.schema([("x", pa.int64())]), tmp_path / "_metadata", metadata_collector=collected)

        def rewrite(values, number=2):
            before = (tmp_path / f"{number}.parquet").stat().st_size
            table = pa.table({"x": values}).replace_schema_metadata({"pad": "x" * before})
            pq.write_table(table, tmp_path / f"{number}.parquet")
            return tmp_path

        return rewrite

    @pytest.mark.parametrize(
        "values", [["3", "4"], [True, False], pa.array([3, 4], pa.timestamp("us")), pa.array([3, 4], pa.int32())]
    )
    def test_other_types_are_not_cast(self, rewritten, values):
        source = open_parquet(rewritten(values))
        with pytest.raises(SchemaError, match=r"files disagree: column 'x' has type .* in .*2\.parquet but int64"):
            source.read(2, ["x"])

    def test_a_sampled_file_of_another_type_is_found_at_opening(self, rewritten):
        with pytest.raises(SchemaError, match=r"9\.parquet"):
            open_parquet(rewritten(["3", "4"], number=9))
