"""Files that cannot be read are named, with what was found and what to do; or left out and listed."""

import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.dataset import open_parquet
from penstock.errors import BadFile
from tests.dataset.make import ids, read_all, write, write_ids
from tests.fuzz.parquet_files import footer_start


def spoil(path, kind):
    data = path.read_bytes()
    contents = {
        "empty": b"",
        "tiny": b"PAR1",
        "truncated": data[: len(data) // 2],
        "text": b"id,value\n1,2\n3,4\n5,6\n",
        "damaged footer": data[:-60] + b"\xff" * 40 + data[-20:],
        "wrong length": data[:-8] + b"\xff\xff\xff\x7f" + data[-4:],
        "encrypted": b"PARE" + data[4:-4] + b"PARE",
    }
    path.write_bytes(contents[kind])


KINDS = {
    "empty": "it has 0 bytes",
    "tiny": "4 bytes",
    "truncated": "it is truncated",
    "text": r"begins with b'id,v'.*Parquet begins and ends with b'PAR1'",
    "damaged footer": "its footer is damaged",
    "wrong length": "its footer is damaged",
    "encrypted": "encrypted",
}


@pytest.fixture(params=[0, 1, 2])
def spoiled(tmp_path, request):
    write_ids(tmp_path)
    return tmp_path / f"part-{request.param}.parquet"


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_file_is_named_with_what_was_found(spoiled, kind):
    spoil(spoiled, kind)
    with pytest.raises(BadFile, match=KINDS[kind]) as caught:
        open_parquet(spoiled.parent)
    assert caught.value.path == spoiled.as_posix()
    assert spoiled.name in str(caught.value)
    assert caught.value.row_group is None


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_left_out_and_listed(spoiled, kind):
    spoil(spoiled, kind)
    source = open_parquet(spoiled.parent, on_error="skip")
    [(path, reason)] = source.facts.skipped
    assert path == spoiled.as_posix()
    assert "cannot be read as Parquet" in reason
    assert len(source.facts.files) == 2
    bad = int(spoiled.stem[-1])
    expected = [i for i in range(30) if i // 10 != bad]
    assert read_all(source)["id"].to_pylist() == expected


def test_the_first_bad_file_in_order_is_told(tmp_path):
    write_ids(tmp_path, files=9)
    for number in (7, 4, 8):
        spoil(tmp_path / f"part-{number}.parquet", "empty")
    with pytest.raises(BadFile, match="part-4"):
        open_parquet(tmp_path)


def test_no_good_file_at_all(tmp_path):
    write_ids(tmp_path)
    for number in range(3):
        spoil(tmp_path / f"part-{number}.parquet", "text")
    with pytest.raises(BadFile, match="none of the 3 files can be read"):
        open_parquet(tmp_path, on_error="skip")


def test_a_link_to_nothing_is_told(tmp_path):
    write_ids(tmp_path)
    (tmp_path / "part-3.parquet").symlink_to(tmp_path / "not-fetched")
    with pytest.raises(BadFile, match="a link to nothing"):
        open_parquet(tmp_path)


@pytest.mark.parametrize("pattern", ["", "/*.parquet", "/**"])
def test_a_link_to_itself_is_told(tmp_path, pattern):
    write_ids(tmp_path)
    (tmp_path / "part-3.parquet").symlink_to("part-3.parquet")
    with pytest.raises(BadFile, match=r"part-3\.parquet cannot be read .*a link to nothing"):
        open_parquet(f"{tmp_path}{pattern}")
    source = open_parquet(f"{tmp_path}{pattern}", on_error="skip")
    assert [path for path, _ in source.facts.skipped] == [(tmp_path / "part-3.parquet").as_posix()]


class TestNamesThatAreNotUtf8:
    @pytest.fixture(params=[b"part-\xff.parquet", b"k=\xff/part.parquet"])
    def bad(self, tmp_path, request):
        write_ids(tmp_path / "k=1")
        path = os.fsencode(tmp_path) + b"/" + request.param
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            shutil.copy(tmp_path / "k=1" / "part-0.parquet", path)
        except OSError:
            pytest.skip("this filesystem takes only UTF-8")
        return os.fsdecode(path)

    @pytest.mark.parametrize("pattern", ["", "/**", "/**/*.parquet"])
    def test_they_are_told_and_left_out(self, tmp_path, bad, pattern):
        with pytest.raises(BadFile, match=r"its name is not UTF-8.*rename it") as caught:
            open_parquet(f"{tmp_path}{pattern}")
        assert caught.value.path == bad
        source = open_parquet(f"{tmp_path}{pattern}", on_error="skip")
        assert [path for path, _ in source.facts.skipped] == [bad]
        assert source.facts.chunk_rows.sum() == 30

    def test_named_by_the_user(self, bad):
        for place in (bad, [bad], f"{bad}*"):
            with pytest.raises(BadFile, match=r"not UTF-8.*rename it") as caught:
                open_parquet(place, on_error="skip")
            assert caught.value.path.startswith(bad)

    def test_other_files_lie_in_peace(self, tmp_path):
        write_ids(tmp_path)
        try:
            with open(os.fsencode(tmp_path) + b"/READM\xc9", "wb") as stream:
                stream.write(b"all about it")
        except OSError:
            pytest.skip("this filesystem takes only UTF-8")
        for place in (tmp_path, f"{tmp_path}/*"):
            assert open_parquet(place).facts.chunk_rows.sum() == 30


def test_a_named_file_that_is_no_parquet(tmp_path):
    (tmp_path / "a.txt").write_text("some longer text")
    with pytest.raises(BadFile, match="other formats are not read"):
        open_parquet(tmp_path / "a.txt")


def spoil_page(path, group, column):
    """Overwrite the pages of a column in a row group."""
    info = pq.read_metadata(path).row_group(group).column(column)
    start = min(offset for offset in (info.dictionary_page_offset, info.data_page_offset) if offset)
    data = bytearray(path.read_bytes())
    data[start : start + info.total_compressed_size] = b"\xff" * info.total_compressed_size
    path.write_bytes(data)


def test_a_corrupt_page_names_file_row_group_and_column(tmp_path):
    write_ids(tmp_path)
    spoil_page(tmp_path / "part-1.parquet", 2, 1)
    source = open_parquet(tmp_path)
    with pytest.raises(BadFile, match=r"part-1\.parquet, row group 2, column 'value'") as caught:
        source.read(5, ["id", "value"])
    assert (caught.value.row_group, caught.value.column) == (2, "value")
    assert caught.value.__cause__ is not None
    assert source.read(5, ["id"])["id"].to_pylist() == [18, 19]
    assert source.read(4, ["id", "value"]).num_rows == 4


def test_a_corrupt_leaf_of_a_struct_is_named_by_path(tmp_path):
    write(tmp_path / "x.parquet", {"s": [{"a": 1, "b": 2}] * 5, "t": ["x"] * 5})
    spoil_page(tmp_path / "x.parquet", 0, 1)
    with pytest.raises(BadFile, match=r"column 's\.b'"):
        open_parquet(tmp_path).read(0, ["t", "s.a", "s.b"])


def test_bytes_of_a_row_ask_for_no_pages_that_are_fixed(tmp_path):
    write_ids(tmp_path)
    spoil_page(tmp_path / "part-0.parquet", 0, 0)
    assert open_parquet(tmp_path).row_bytes() == 16.25


@pytest.mark.parametrize("position", range(-1, -400, -13))
def test_a_flipped_byte_in_the_footer_never_crashes(tmp_path, position):
    path = write(tmp_path / "x.parquet", ids(0, 5))
    data = bytearray(path.read_bytes())
    data[position] ^= 0x41
    path.write_bytes(data)
    try:
        source = open_parquet(tmp_path)
        for chunk in range(len(source.facts.chunk_rows)):
            source.read(chunk, source.facts.arrow_schema.names)
    except (BadFile, pa.ArrowException, ValueError, MemoryError):
        pass


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_more_rows_than_any_file_has_are_a_damaged_footer(tmp_path, on_error):
    path = write(tmp_path / "a.parquet", ids(0, 1000))
    data = path.read_bytes()
    at, rows = footer_start(data), bytes([2000 & 127 | 128, 2000 >> 7])  # 1000 as Thrift writes it
    footer = data[at:-8].replace(rows, b"\xfe" + b"\xff" * 8 + b"\x01")
    path.write_bytes(data[:at] + footer + len(footer).to_bytes(4, "little") + data[-4:])
    with pytest.raises(BadFile, match=r"a\.parquet.*a row group of 9223372036854775807 rows"):
        open_parquet(tmp_path, on_error=on_error)


def test_a_list_longer_than_the_footer_is_refused_before_memory_is_taken(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": [1]})
    data = path.read_bytes()
    at = footer_start(data)
    assert data[at + 2 : at + 4] == b"\x19\x2c"  # the schema: a list of two structs
    footer = data[at : at + 3] + b"\xfc" + b"\xc0\x84\x3d" + data[at + 4 : -8]  # of a million
    path.write_bytes(data[:at] + footer + len(footer).to_bytes(4, "little") + data[-4:])
    with pytest.raises(BadFile, match=r"a\.parquet.*[Ee]xceeded size limit"):
        open_parquet(tmp_path)


def test_a_column_chunk_of_negative_size_is_damage(tmp_path):
    path = write(tmp_path / "a.parquet", {"x": ["a" * 1000]}, compression="none", use_dictionary=False)
    size = 2 * pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size
    data = path.read_bytes()
    at = footer_start(data)
    written, negative = (bytes([number & 127 | 128, number >> 7]) for number in (size, size - 1))
    assert data[at:].count(written) >= 2
    path.write_bytes(data[:at] + data[at:].replace(written, negative))
    with pytest.raises(BadFile, match=r"a\.parquet.*negative size"):
        open_parquet(tmp_path).row_bytes()
    with pytest.raises(BadFile, match=r"a\.parquet.*negative size"):
        open_parquet(tmp_path, on_error="skip")
