"""The recording filesystem tells which bytes were read; the delaying one takes its time; neither changes a byte."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector, LocalFileSystem

from penstock.testing import DelayingFileSystem, RecordingFileSystem, make_parquet


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(make_parquet(tmp_path, [(100, 50, 200)]) / "part-00000.parquet")


def test_reads_are_recorded_by_path_and_range(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(100)))
    fs = RecordingFileSystem()
    with fs.open_input_file(str(path)) as stream:
        assert stream.read_at(10, 20) == bytes(range(20, 30))
        assert stream.read_at(10, 95) == bytes(range(95, 100))
        assert stream.size() == 100
    assert fs.reads.opened == [str(path)]
    assert fs.reads.ranges(str(path)) == [(20, 30), (95, 100)]
    assert fs.reads.paths == {str(path)}
    assert (fs.reads.num_bytes, fs.reads.num_reads) == (15, 2)
    assert fs.reads.touched(str(path), 29, 40)
    assert not fs.reads.touched(str(path), 30, 95)
    assert fs.reads.ranges("elsewhere") == []
    fs.reads.clear()
    assert (fs.reads.opened, fs.reads.num_bytes, fs.reads.paths) == ([], 0, set())


def test_only_the_row_group_asked_for_is_read(file: str) -> None:
    fs = RecordingFileSystem()
    footer = pq.read_metadata(file)
    with fs.open_input_file(file) as stream:
        table = pq.ParquetFile(stream, metadata=footer, pre_buffer=False).read_row_group(1, use_threads=False)
    assert table["id"].to_pylist() == list(range(100, 150))
    chunks = [footer.row_group(group).column(0) for group in range(3)]
    spans = [(c.dictionary_page_offset or c.data_page_offset, c.total_compressed_size) for c in chunks]
    assert [fs.reads.touched(file, start, start + size) for start, size in spans] == [False, True, False]


def test_everything_else_passes_through(tmp_path: Path) -> None:
    fs = RecordingFileSystem()
    root = str(tmp_path / "new")
    fs.create_dir(f"{root}/deep", recursive=True)
    with fs.open_output_stream(f"{root}/deep/a") as stream:
        stream.write(b"hello")
    with fs.open_append_stream(f"{root}/deep/a") as stream:
        stream.write(b" you")
    fs.copy_file(f"{root}/deep/a", f"{root}/b")
    fs.move(f"{root}/b", f"{root}/c")
    with fs.open_input_stream(f"{root}/c") as stream:
        assert stream.read() == b"hello you"
    assert {info.base_name for info in fs.get_file_info(FileSelector(root, recursive=True))} == {"a", "c", "deep"}
    fs.delete_file(f"{root}/c")
    fs.delete_dir_contents(f"{root}/deep")
    fs.delete_dir(root)
    assert fs.get_file_info(root).type.name == "NotFound"
    assert "recording" in fs.type_name


def test_threads_may_read_at_once(file: str) -> None:
    fs = RecordingFileSystem()

    def read(group: int) -> int:
        with fs.open_input_file(file) as stream:
            return int(pq.ParquetFile(stream).read_row_group(group).num_rows)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(read, [0, 1, 2] * 8)) == 8 * 350
    assert len(fs.reads.opened) == 24
    assert threading.active_count() < 20


def test_delays_add_up_in_one_thread_and_overlap_in_many(file: str) -> None:
    fs = DelayingFileSystem(LocalFileSystem(), latency_s=0.05)
    start = time.perf_counter()
    with fs.open_input_file(file) as stream:
        assert stream.read_at(4, 0) == b"PAR1"
    assert time.perf_counter() - start >= 0.1

    slow = DelayingFileSystem(LocalFileSystem(), latency_s=0.4)

    def read(_: int) -> bytes:
        with slow.open_input_file(file) as stream:
            return bytes(stream.read_at(4, 0))

    start = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(8))) == {b"PAR1"}
    assert time.perf_counter() - start < 8 * 0.8


def test_rate_bounds_large_reads(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(100_000))
    fs = DelayingFileSystem(latency_s=0, bytes_per_s=1e6)
    start = time.perf_counter()
    with fs.open_input_file(str(path)) as stream:
        stream.read_at(100_000, 0)
    assert time.perf_counter() - start >= 0.1


def test_they_can_stand_before_each_other(file: str) -> None:
    recording = RecordingFileSystem()
    fs = DelayingFileSystem(recording, latency_s=0)
    with fs.open_input_file(file) as stream:
        assert stream.read_at(4, 0) == b"PAR1"
    assert recording.reads.ranges(file) == [(0, 4)]


def test_a_missing_file_is_the_error_people_know(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RecordingFileSystem().open_input_file(str(tmp_path / "none"))
