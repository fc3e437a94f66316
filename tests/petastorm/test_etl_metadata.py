"""`petastorm.etl`: schemas and row groups of a dataset, stored metadata made anew, and what the shell prints of it."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
import penstock.spark
from penstock.codecs import NdarrayCodec
from penstock.dataset.common_metadata import update_common_metadata
from penstock.dataset.index_store import INDEX_KEY
from penstock.errors import MetadataError, SchemaError
from penstock.petastorm.etl import dataset_metadata, legacy, metadata_util, petastorm_generate_metadata
from penstock.petastorm.etl.dataset_metadata import (
    ROW_GROUPS_PER_FILE_KEY,
    UNISCHEMA_KEY,
    PetastormMetadataError,
    PetastormMetadataGenerationError,
    get_schema,
    get_schema_from_dataset_url,
    infer_or_load_unischema,
    load_row_groups,
)
from penstock.petastorm.etl.petastorm_generate_metadata import generate_petastorm_metadata
from penstock.petastorm.etl.rowgroup_indexers import SingleFieldIndexer
from penstock.petastorm.etl.rowgroup_indexing import build_rowgroup_index
from penstock.petastorm.reader import make_reader
from penstock.petastorm.selectors import SingleIndexSelector
from penstock.petastorm.unischema import Unischema, UnischemaField
from penstock.schema.petastorm_pickle import load_unischema
from penstock.schema.stored import SCHEMA_KEY
from tests.dataset.make import write, write_ids
from tests.schema import petastorm_bytes

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = Unischema(
    "Cells",
    [UnischemaField("id", np.int64, (), None, False), UnischemaField("a", np.uint8, (2,), NdarrayCodec(), False)],
)
HERE = f"{__name__}.SCHEMA"


def rows(count: int) -> list[dict[str, object]]:
    return [{"id": i, "a": np.array([i, i], np.uint8)} for i in range(count)]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Cells of SCHEMA in Parquet that says nothing of it, in two files with a partition."""
    cells = [NdarrayCodec().encode(SCHEMA.fields["a"], np.array([i, i], np.uint8)) for i in range(6)]
    for number in range(2):
        table = pa.table({"id": pa.array(range(6)), "a": pa.array([bytes(cell) for cell in cells], pa.binary())})
        write(tmp_path / "plain" / f"part={number}" / "a.parquet", table, rows_per_group=4)
    return tmp_path / "plain"


def url_of(path: Path) -> str:
    return f"file://{path}"


def stored_pairs(path: Path) -> dict[bytes, bytes]:
    return pq.read_metadata(path / "_common_metadata").metadata or {}


# -- asking ---------------------------------------------------------------------------------------------------------


def test_the_stored_schema_is_found_by_url_by_file_and_by_dataset(tmp_path: Path) -> None:
    penstock.write(rows(5), tmp_path / "data", SCHEMA, rows_per_file=2)
    url = url_of(tmp_path / "data")
    files = [f"{url}/part-000001.parquet", f"{url}/part-000000.parquet"]
    for found in (
        get_schema_from_dataset_url(url),
        get_schema_from_dataset_url(url + "/"),
        get_schema_from_dataset_url(files[0]),
        get_schema_from_dataset_url(files),  # where Petastorm lost it
        get_schema_from_dataset_url(str(tmp_path / "data"), filesystem=pa.fs.LocalFileSystem()),
        get_schema(url),
        get_schema(penstock.open(url)),
        get_schema(pq.ParquetDataset(tmp_path / "data")),
        infer_or_load_unischema(url),
    ):
        assert found == SCHEMA
        assert isinstance(found.a.codec, NdarrayCodec)


def test_a_pickled_schema_is_read(plain: Path) -> None:
    pickled = petastorm_bytes_of_schema()
    schema = pq.read_schema(plain / "part=0" / "a.parquet").with_metadata({UNISCHEMA_KEY: pickled})
    pq.write_metadata(schema, plain / "_common_metadata")
    assert list(get_schema_from_dataset_url(url_of(plain)).fields) == ["id", "a"]
    assert legacy.restricted_loads(pickled) == legacy.depickle_legacy_package_name_compatible(pickled)


def petastorm_bytes_of_schema(codec: petastorm_bytes.Stub | None = None) -> bytes:
    """Return SCHEMA as Petastorm would have pickled it."""
    scalar = petastorm_bytes.codec("ScalarCodec", _spark_type=petastorm_bytes.spark("LongType"))
    values = [
        ("id", petastorm_bytes.Named("numpy", "int64"), (), scalar, False),
        ("a", petastorm_bytes.Named("numpy", "uint8"), (2,), codec or petastorm_bytes.codec("NdarrayCodec"), False),
    ]
    fields = {v[0]: petastorm_bytes.FieldStub("new", "petastorm.unischema", v) for v in values}
    state = {"_name": "Cells", "_fields": OrderedDict(fields), **fields}
    return petastorm_bytes.dumps(petastorm_bytes.Stub("petastorm.unischema", "Unischema", state), 4)


def test_plain_parquet_has_no_schema_and_an_inferred_one(plain: Path) -> None:
    with pytest.raises(PetastormMetadataError, match="plain Parquet; read it with make_batch_reader"):
        get_schema_from_dataset_url(url_of(plain))
    assert list(infer_or_load_unischema(url_of(plain)).fields) == ["part", "id", "a"]  # as Petastorm infers it


def test_a_damaged_schema_is_an_error_that_users_catch(plain: Path) -> None:
    damaged = pq.read_schema(plain / "part=0" / "a.parquet").with_metadata({UNISCHEMA_KEY: b"cos\nsystem\n."})
    pq.write_metadata(damaged, plain / "_common_metadata")
    with pytest.raises(PetastormMetadataError, match=r"os\.system"):
        get_schema_from_dataset_url(url_of(plain))
    assert PetastormMetadataError is MetadataError


@pytest.mark.parametrize("bad", [None, "/no/scheme", [], 3])
def test_what_is_no_url_is_a_value_error(bad: object) -> None:
    with pytest.raises(ValueError, match=r"scheme|empty|URL is text"):
        get_schema_from_dataset_url(bad)


def test_row_groups_come_in_the_order_of_their_ordinals(plain: Path) -> None:
    found = load_row_groups(url_of(plain))
    assert [(os.path.relpath(g.path, plain), g.row_group, g.partition_keys, g.num_rows) for g in found] == [
        ("part=0/a.parquet", 0, (("part", 0),), 4),
        ("part=0/a.parquet", 1, (("part", 0),), 2),
        ("part=1/a.parquet", 0, (("part", 1),), 4),
        ("part=1/a.parquet", 1, (("part", 1),), 2),
    ]
    assert [(g.row_group, g.num_rows) for g in load_row_groups(penstock.open(plain))] == [(0, 4), (1, 2)] * 2


def test_row_groups_are_those_of_the_files_whatever_was_stored(tmp_path: Path) -> None:
    """Petastorm failed where its own numbers did not know a file, or where another writer's metadata lay there."""
    write_ids(tmp_path, files=2)
    schema = pq.read_schema(tmp_path / "part-0.parquet")
    numbers = {ROW_GROUPS_PER_FILE_KEY: json.dumps({"part-0.parquet": 9}).encode()}
    pq.write_metadata(schema.with_metadata(numbers), tmp_path / "_common_metadata")
    assert len(load_row_groups(url_of(tmp_path))) == 6


def test_writing_by_spark_is_that_of_penstock_itself() -> None:
    assert dataset_metadata.materialize_dataset is penstock.spark.materialize_dataset


# -- storing --------------------------------------------------------------------------------------------------------


def test_a_schema_is_stored_with_plain_parquet_and_read_by_everyone(plain: Path) -> None:
    generate_petastorm_metadata(None, url_of(plain), HERE)
    assert get_schema_from_dataset_url(url_of(plain)) == SCHEMA
    assert penstock.open(plain)[7]["a"].tolist() == [1, 1]
    assert sorted(path.name for path in plain.iterdir()) == ["_common_metadata", "part=0", "part=1"]
    generate_petastorm_metadata(None, url_of(plain))  # from what is stored
    assert get_schema_from_dataset_url(url_of(plain)) == SCHEMA


def test_other_entries_stay_and_petastorms_are_brought_in_line(plain: Path) -> None:
    schema = pq.read_schema(plain / "part=0" / "a.parquet")
    old = {b"mine": b"1", UNISCHEMA_KEY: petastorm_bytes_of_schema(), ROW_GROUPS_PER_FILE_KEY: b'{"gone.parquet": 3}'}
    pq.write_metadata(schema.with_metadata(old), plain / "_common_metadata")
    generate_petastorm_metadata(None, url_of(plain))
    pairs = stored_pairs(plain)
    assert pairs[b"mine"] == b"1"
    assert load_unischema(pairs[UNISCHEMA_KEY]) == load_unischema(old[UNISCHEMA_KEY])
    assert json.loads(pairs[ROW_GROUPS_PER_FILE_KEY]) == {"part=0/a.parquet": 2, "part=1/a.parquet": 2}
    generate_petastorm_metadata(None, url_of(plain), f"{__name__}.OTHER")
    assert load_unischema(stored_pairs(plain)[UNISCHEMA_KEY]) == OTHER
    assert get_schema_from_dataset_url(url_of(plain)) == OTHER


def test_a_pickle_with_a_codec_of_others_stays_while_it_says_the_same(plain: Path) -> None:
    schema = pq.read_schema(plain / "part=0" / "a.parquet")
    foreign = petastorm_bytes.Stub("petastorm.others", "Codec", {"level": 3})
    pickled = petastorm_bytes_of_schema(foreign)
    pq.write_metadata(schema.with_metadata({UNISCHEMA_KEY: pickled}), plain / "_common_metadata")
    generate_petastorm_metadata(None, url_of(plain))
    pairs = stored_pairs(plain)
    assert pairs[UNISCHEMA_KEY] == pickled
    assert json.loads(pairs[ROW_GROUPS_PER_FILE_KEY]) == {"part=0/a.parquet": 2, "part=1/a.parquet": 2}
    generate_petastorm_metadata(None, url_of(plain), f"{__name__}.LISTS")
    assert not {UNISCHEMA_KEY, ROW_GROUPS_PER_FILE_KEY} & set(stored_pairs(plain))  # Petastorm cannot read that one


LISTS = Unischema(
    "Lists", [UnischemaField("id", np.int64, (), None, False), UnischemaField("a", None, (), None, False)]
)


OTHER = Unischema("Other", [UnischemaField("id", np.int64, (), None, False)])


def test_what_does_not_fit_or_is_not_there_writes_nothing(plain: Path) -> None:
    with pytest.raises(PetastormMetadataGenerationError, match="unischema_class='package"):
        generate_petastorm_metadata(None, url_of(plain))
    with pytest.raises(PetastormMetadataGenerationError, match=r"cannot find the schema 'no_such\.Thing'"):
        generate_petastorm_metadata(None, url_of(plain), "no_such.Thing")
    with pytest.raises(PetastormMetadataGenerationError, match="is not a Unischema but a str"):
        generate_petastorm_metadata(None, url_of(plain), f"{__name__}.HERE")
    with pytest.raises(SchemaError, match="absent"):
        generate_petastorm_metadata(None, url_of(plain), f"{__name__}.ABSENT")
    assert sorted(path.name for path in plain.iterdir()) == ["part=0", "part=1"]


ABSENT = Unischema("Absent", [UnischemaField("absent", np.int64, (), None, False)])


def test_a_summary_of_all_footers_is_used_for_opening(plain: Path) -> None:
    generate_petastorm_metadata(None, url_of(plain), HERE, use_summary_metadata=True)
    summary = pq.read_metadata(plain / "_metadata")
    assert [summary.row_group(i).column(0).file_path for i in range(4)] == ["part=0/a.parquet"] * 2 + [
        "part=1/a.parquet"
    ] * 2
    assert penstock.open(plain).take([0, 11])["id"].tolist() == [0, 5]


@pytest.mark.parametrize("by_petastorm", [False, True])
def test_an_index_stays_while_no_file_has_changed(tmp_path: Path, *, by_petastorm: bool) -> None:
    url = url_of(tmp_path / "data")
    penstock.write({"id": np.arange(30), "a": np.zeros((30, 2), np.uint8)}, url, SCHEMA, row_group_bytes=100)
    build_rowgroup_index(url, None, [SingleFieldIndexer("by_id", "id")])
    if by_petastorm:  # whose index is not tied to a fingerprint, but to the row groups of each file
        update_common_metadata(penstock.open(url).source.entries[0], {INDEX_KEY: None})
    before = {key: value for key, value in stored_pairs(tmp_path / "data").items() if b"index" in key}
    assert len(before) == 2 - by_petastorm
    generate_petastorm_metadata(None, url)
    assert {key: value for key, value in stored_pairs(tmp_path / "data").items() if b"index" in key} == before
    with make_reader(url, rowgroup_selector=SingleIndexSelector("by_id", [7])) as reader:
        assert 7 in [int(row.id) for row in reader]
    penstock.write({"id": np.arange(5), "a": np.zeros((5, 2), np.uint8)}, tmp_path / "more", SCHEMA)
    next((tmp_path / "more").glob("*.parquet")).rename(tmp_path / "data" / "added.parquet")
    generate_petastorm_metadata(None, url)
    assert not [key for key in stored_pairs(tmp_path / "data") if b"index" in key]


def test_the_command_line_does_the_same(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    petastorm_generate_metadata.main(["--dataset_url", url_of(plain), "--unischema_class", HERE, "--master", "local"])
    assert SCHEMA_KEY in stored_pairs(plain)
    metadata_util.main(["--dataset-url", url_of(plain), "--schema"])
    assert capsys.readouterr().out == f"{SCHEMA}\n"


def test_an_index_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    indexers = pytest.importorskip("penstock.petastorm.etl.rowgroup_indexers")
    from penstock.petastorm.etl.rowgroup_indexing import build_rowgroup_index

    data = write_ids(tmp_path / "data", files=1, rows=3, rows_per_group=2)
    url = url_of(data)
    both = [indexers.SingleFieldIndexer("by_id", "id"), indexers.SingleFieldIndexer("by_value", "value")]
    build_rowgroup_index(url, None, both)
    metadata_util.main(["--dataset-url", url, "--index", "--print-values", "--skip-index", "by_value"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "index 'by_id' of id: 3 values"
    assert [line.split(":")[1] for line in lines[1:]] == [" row groups 0", " row groups 0", " row groups 1"]
    metadata_util.main(["--dataset-url", url, "--index"])
    assert len(capsys.readouterr().out.splitlines()) == 2


# -- pickles --------------------------------------------------------------------------------------------------------


def test_an_unpickler_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(petastorm_bytes_of_schema())
    with open(tmp_path / "p", "rb") as file:
        assert list(legacy.RestrictedUnpickler(file).load().fields) == ["id", "a"]
    with pytest.raises(MetadataError, match=r"builtins\.eval"):
        legacy.restricted_loads(b"cbuiltins\neval\n(V1\ntR.")
