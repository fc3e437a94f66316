"""Several writers, one dataset: parts are written anywhere, in any order, and committed once."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.codecs import ScalarCodec
from penstock.errors import DatasetExists, DatasetIncomplete, DatasetNotFound, SchemaError, StateMismatch
from penstock.schema.unischema import Unischema, UnischemaField
from tests.write.ids import IDS, ids

OTHER = Unischema("Ids", [UnischemaField("id", np.int32, (), ScalarCodec(), False)])


def part(url: str, number: int, count: int = 10, **options: Any) -> None:
    with penstock.Writer(url, IDS, part=number, **options) as writer:
        writer.extend({"id": np.arange(100 * number, 100 * number + count)})


def test_parts_become_one_dataset_in_their_order(url: str) -> None:
    for number in (2, 0, 1):
        part(url, number, rows_per_file=4)
    with pytest.raises(DatasetIncomplete, match=r"3 of the 3 parts begun are finished.*penstock.commit\(url\)"):
        penstock.open(url)
    written = penstock.commit(url, parts=3)
    assert (written.rows, written.files, written.path) == (30, 9, url)
    assert ids(url) == [100 * k + i for k in range(3) for i in range(10)]
    dataset = penstock.open(url)
    assert dataset.files[0] == "part-000000-000000.parquet"
    with pytest.raises(DatasetNotFound, match=r"no parts to commit.*complete"):
        penstock.commit(url)


def test_nothing_but_the_dataset_is_left(tmp_path: Path) -> None:
    part(str(tmp_path / "d"), 0)
    penstock.commit(tmp_path / "d")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == [
        "_common_metadata",
        "part-000000-000000.parquet",
    ]


def test_a_part_that_is_missing_or_not_finished_is_named(url: str) -> None:
    part(url, 0)
    writer = penstock.Writer(url, IDS, part=2)
    writer.append({"id": 1})
    with pytest.raises(DatasetIncomplete, match=r"part 2 \(not finished\).*resume=True"):
        penstock.commit(url)
    with pytest.raises(DatasetIncomplete, match=r"part 1 \(missing\), 2 \(not finished\)"):
        penstock.commit(url, parts=3)
    writer.commit()
    with pytest.raises(StateMismatch, match=r"has a part 2, but parts=2.*penstock.discard"):
        penstock.commit(url, parts=2)
    assert penstock.commit(url).rows == 11


def test_a_part_may_be_written_again(url: str) -> None:
    part(url, 0, rows_per_file=3)
    part(url, 1)
    part(url, 0, count=4, rows_per_file=3)
    assert penstock.commit(url).rows == 14
    assert ids(url) == [0, 1, 2, 3, *range(100, 110)]


def test_a_failed_part_leaves_nothing_of_it(url: str) -> None:
    part(url, 0)
    rows = ({"id": 1 // (50 - i)} for i in range(100))
    with pytest.raises(ZeroDivisionError):
        penstock.write(rows, url, IDS, part=1, rows_per_file=2)
    assert penstock.commit(url).rows == 10


def test_parts_must_agree(url: str) -> None:
    part(url, 0)
    with pytest.raises(StateMismatch, match="another schema or partition_by"):
        penstock.Writer(url, OTHER, part=1)
    with pytest.raises(StateMismatch, match="another schema or partition_by"):
        penstock.write({"id": [1], "x": [2]}, url, part=1, partition_by="x")
    assert penstock.commit(url).rows == 10


def test_parts_without_rows(url: str) -> None:
    part(url, 0, count=0)
    part(url, 1, count=0)
    assert penstock.commit(url).rows == 0
    assert len(penstock.open(url)) == 0


def test_parts_overwrite_together(url: str) -> None:
    penstock.write([{"id": -1}], url, IDS)
    with pytest.raises(DatasetExists, match="overwrite=True"):
        penstock.Writer(url, IDS, part=0)
    for number in range(2):
        part(url, number, overwrite=True)
        assert ids(url) == [-1]
    penstock.commit(url)
    assert ids(url) == [*range(10), *range(100, 110)]


def test_partitions_of_parts(url: str) -> None:
    for number in range(2):
        penstock.write({"id": np.arange(6), "k": np.arange(6) % 2}, url, part=number, partition_by="k")
    penstock.commit(url)
    assert set(penstock.open(url).files) == {f"k={k}/part-00000{p}-000000.parquet" for k in (0, 1) for p in (0, 1)}


def test_nothing_to_commit(url: str) -> None:
    with pytest.raises(DatasetNotFound, match="nothing is there"):
        penstock.commit(url)


def test_a_writer_alone_and_parts_do_not_mix_on_a_store() -> None:
    url = "memory://penstock-mix/d"
    try:
        writer = penstock.Writer(url, IDS)
        with pytest.raises(DatasetExists, match="being written without part="):
            penstock.Writer(url, IDS, part=0)
        writer.abort()
        part(url, 0)
        with pytest.raises(DatasetExists, match="incomplete"):
            penstock.Writer(url, IDS)
        with pytest.raises(DatasetExists, match="being written with part="):
            penstock.Writer(url, IDS, resume=True)
        assert penstock.discard(url) == 1
        assert penstock.write([{"id": 3}], url, IDS).rows == 1
    finally:
        fsspec.filesystem("memory").rm("/penstock-mix", recursive=True)


def test_two_processes_with_one_part_are_refused(tmp_path: Path) -> None:
    first = penstock.Writer(tmp_path / "d", IDS, part=0)
    with pytest.raises(DatasetExists, match="another process, also as part 0"):
        penstock.Writer(tmp_path / "d", IDS, part=0)
    first.append({"id": 1})
    first.commit()
    assert penstock.commit(tmp_path / "d").rows == 1


CHILD = """
import sys, numpy as np, penstock
from penstock.codecs import ScalarCodec
schema = penstock.Unischema("Ids", [penstock.UnischemaField("id", np.int64, (), ScalarCodec(), False)])
number = int(sys.argv[2])
penstock.write(({"id": 100 * number + i} for i in range(50)), sys.argv[1], schema, part=number, rows_per_file=20)
"""


def test_processes_at_once(tmp_path: Path) -> None:
    target = str(tmp_path / "d")
    children = [subprocess.Popen([sys.executable, "-c", CHILD, target, str(number)]) for number in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert penstock.commit(target, parts=3).rows == 150
    assert ids(target) == [100 * k + i for k in range(3) for i in range(50)]
    footer = pq.read_metadata(tmp_path / "d" / "_common_metadata")
    assert footer.num_row_groups == 0


OWN = """
import sys, numpy as np, penstock
class Own(penstock.codecs.DataframeColumnCodec):
    def encode(self, unischema_field, value):
        return value.tobytes()
penstock.register_codec(Own)
schema = penstock.Unischema("S", [penstock.UnischemaField("x", np.uint8, (3,), Own(), False)])
penstock.write([{"x": np.zeros(3, np.uint8)}], sys.argv[1], schema, part=0)
"""


def test_a_codec_need_not_be_known_to_commit(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", OWN, str(tmp_path / "d")], check=True)
    assert penstock.commit(tmp_path / "d").rows == 1


def test_a_refused_schema_leaves_no_part(url: str) -> None:
    with pytest.raises(SchemaError):
        penstock.write([{"id": "x"}], url, IDS, part=0)
    with pytest.raises(DatasetNotFound):
        penstock.commit(url)
