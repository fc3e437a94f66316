"""Sources become one ordered list of files, whatever else lies beside them."""

import os

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.dataset.catalog import FileCatalog, root_folder
from penstock.errors import DatasetIncomplete, DatasetNotFound
from tests.dataset.make import ids, write


def find(sources, **more):
    return FileCatalog(sources, **more).entries()


def relatives(sources, **more):
    return [file.relative for file in find(sources, **more)]


@pytest.fixture
def root(tmp_path):
    for name in ("b.parquet", "a.parquet", "k=2/c.parquet", "k=1/c.parquet"):
        write(tmp_path / name, ids(0, 3))
    return tmp_path


def test_a_folder_gives_its_files_in_order(root):
    files = find(root)
    assert [file.relative for file in files] == ["a.parquet", "b.parquet", "k=1/c.parquet", "k=2/c.parquet"]
    assert all(file.size == (root / file.relative).stat().st_size for file in files)
    assert files[2].path == f"{root.as_posix()}/k=1/c.parquet"


def test_a_file_url_and_a_slash_at_the_end_give_the_same(root):
    assert relatives(root.as_uri()) == relatives(f"{root}/") == relatives(str(root))


def test_a_list_keeps_the_users_order(root):
    assert relatives([root / "k=2", root / "a.parquet", root / "k=1/c.parquet"]) == [
        "k=2/c.parquet",
        "a.parquet",
        "k=1/c.parquet",
    ]


@pytest.mark.parametrize("source", [None, 3, b"folder"])
def test_a_source_that_is_no_path_is_told(source):
    with pytest.raises(TypeError, match="a source is a path or URL, or a list of them; got"):
        find(source)


def test_a_file_named_twice_comes_twice(root):
    assert relatives([root / "a.parquet", root / "a.parquet"]) == ["a.parquet"] * 2


def test_a_pattern_gives_paths_below_its_fixed_part(root):
    assert relatives(f"{root}/*.parquet") == ["a.parquet", "b.parquet"]
    assert relatives(f"{root}/k=*/*") == relatives(f"{root}/k=*") == ["k=1/c.parquet", "k=2/c.parquet"]
    assert relatives(f"{root}/k=1/*.parquet") == ["k=1/c.parquet"]


def test_a_name_with_brackets_that_exists_is_no_pattern(tmp_path):
    write(tmp_path / "[a]" / "x[1].parquet", ids(0, 1))
    assert relatives(tmp_path / "[a]") == ["x[1].parquet"]
    assert relatives(tmp_path / "[a]" / "x[1].parquet") == ["x[1].parquet"]


def test_hidden_and_foreign_files_lie_in_peace(root):
    for name in ("_SUCCESS", ".a.parquet.crc", "README.txt", "labels.csv", "_temporary/0/x.parquet", "empty"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"" if name == "empty" else b"text, not Parquet")
    assert relatives(root) == ["a.parquet", "b.parquet", "k=1/c.parquet", "k=2/c.parquet"]
    assert relatives(f"{root}/*") == ["a.parquet", "b.parquet", "k=1/c.parquet", "k=2/c.parquet"]


def test_files_of_an_append_that_died_while_it_committed_do_not_open(root):
    (root / "_temporary" / "0" / "task_1").mkdir(parents=True)
    (root / "_SUCCESS").touch()
    now = (root / "_SUCCESS").stat().st_mtime_ns
    assert len(relatives(root)) == 4  # an append that has moved nothing yet
    write(root / "k=1" / "part-00000.parquet", ids(0, 3))
    os.utime(root / "k=1" / "part-00000.parquet", ns=(now + 10**9, now + 10**9))
    with pytest.raises(DatasetIncomplete, match=r"newer than _SUCCESS \(k=1/part-00000.parquet, 1 in all"):
        relatives(root)
    (root / "_temporary" / "0" / "task_1").rmdir()
    (root / "_temporary" / "0").rmdir()
    (root / "_temporary").rmdir()
    assert len(relatives(root)) == 5


@pytest.mark.parametrize("last", ["_SUCCESS", "_common_metadata"])
def test_a_folder_that_outlives_a_failed_job_by_a_moment_hides_no_dataset(tmp_path, last):
    """Tasks that still run when a job is given up make `_temporary` again; Spark does not remove it."""
    write(tmp_path / "part-000000.parquet", ids(0, 3))
    if last == "_SUCCESS":
        (tmp_path / last).touch()
    else:
        pq.write_metadata(pa.schema([("id", pa.int64())]), tmp_path / last)
    now = (tmp_path / last).stat().st_mtime_ns
    (tmp_path / "_temporary" / "0").mkdir(parents=True)
    assert relatives(tmp_path) == ["part-000000.parquet"]
    write(tmp_path / "part-00001-x.parquet", ids(0, 3))
    os.utime(tmp_path / "part-00001-x.parquet", ns=(now + 10**9, now + 10**9))
    with pytest.raises(DatasetIncomplete, match=rf"newer than {last} \(part-00001-x.parquet, 1 in all"):
        relatives(tmp_path)


@pytest.mark.parametrize(("first", "last"), [("_SUCCESS", "_common_metadata"), ("_common_metadata", "_SUCCESS")])
def test_the_rows_of_an_append_that_ended_are_not_said_to_be_deleted(tmp_path, first, last):
    """Whichever came last, the end of an append or of its metadata, what lies before it is complete."""
    write(tmp_path / "part-00000.parquet", ids(0, 3))
    write(tmp_path / "part-00001.parquet", ids(3, 6))
    (tmp_path / "_SUCCESS").touch()
    pq.write_metadata(pa.schema([("id", pa.int64())]), tmp_path / "_common_metadata")
    (tmp_path / "_temporary").mkdir()
    now = 10**18
    for second, name in enumerate(["part-00000.parquet", first, "part-00001.parquet", last]):
        os.utime(tmp_path / name, ns=(now + second * 10**9,) * 2)
    assert len(relatives(tmp_path)) == 2
    write(tmp_path / "part-00002.parquet", ids(6, 9))
    with pytest.raises(DatasetIncomplete, match=rf"newer than {last} \(part-00002.parquet, 1 in all"):
        relatives(tmp_path)


def test_parquet_of_any_name_is_found_by_its_magic(root):
    write(root / "000000_0", ids(0, 3))
    (root / "000001_0").write_bytes(b"PAR1 but truncated")
    write(root / "c.PARQ", ids(0, 3))
    assert [name for name in relatives(root) if "=" not in name] == [
        "000000_0",
        "000001_0",
        "a.parquet",
        "b.parquet",
        "c.PARQ",
    ]


def test_a_file_that_the_user_names_is_taken_whatever_it_is(root):
    (root / "data.txt").write_text("not Parquet")
    assert relatives(root / "data.txt") == ["data.txt"]


def test_what_is_not_there_is_named_with_near_names(root):
    with pytest.raises(DatasetNotFound, match=r"did you mean 'a\.parquet'"):
        find(root / "a.parque")
    with pytest.raises(DatasetNotFound, match="nothing matches"):
        find(f"{root}/z*")


def test_a_folder_without_parquet_says_what_it_holds(tmp_path):
    with pytest.raises(DatasetNotFound, match="it is empty"):
        find(tmp_path)
    (tmp_path / "a.csv").write_text("a,b")
    with pytest.raises(DatasetNotFound, match=r"1 other files \('a\.csv'\)"):
        find(tmp_path)
    with pytest.raises(DatasetNotFound, match="no source"):
        find([])


def test_one_empty_source_of_a_list_is_an_error(root, tmp_path_factory):
    with pytest.raises(DatasetNotFound, match="no Parquet files"):
        find([root, tmp_path_factory.mktemp("empty")])


def test_roots_are_above_partition_folders(root):
    assert root_folder("/data/a=1/b=2") == "/data"
    assert root_folder("/data/=x") == "/data/=x"
    assert find(root / "k=1" / "c.parquet")[0].root.path == root.as_posix()
    assert find(root)[0].root.names == frozenset()
    assert find(root / "a.parquet")[0].root.names is None


def test_metadata_files_are_noted(root):
    for name in ("_metadata", "_common_metadata", "k=1/_metadata"):
        (root / name).touch()
    assert find(root)[0].root.names == {"_metadata", "_common_metadata"}


def test_a_store_gives_the_same_list(root):
    memory = fsspec.filesystem("memory")
    for file in find(root):
        memory.pipe(f"/discover/x/{file.relative}", (root / file.relative).read_bytes())
    memory.pipe("/discover/x/README", b"hello")
    assert relatives("memory://discover/x") == relatives(root)
    assert relatives("discover/x", filesystem=memory) == relatives(root)
    assert relatives("memory://discover/x/k=*/*.parquet") == ["k=1/c.parquet", "k=2/c.parquet"]
    memory.rm("/discover", recursive=True)
