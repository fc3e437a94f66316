"""Generated datasets have exactly the row groups asked for, and values that follow from their seed."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from hypothesis import given, settings

from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.testing import ODD_FILES, assert_same, make_parquet, mixed, random_rows, strategies
from tests.depth import depth


def test_row_groups_are_cut_as_asked(tmp_path: Path) -> None:
    root = make_parquet(tmp_path / "odd")
    footers = [pq.read_metadata(path) for path in sorted(root.glob("*.parquet"))]
    assert [[f.row_group(g).num_rows for g in range(f.num_row_groups)] for f in footers] == [list(f) for f in ODD_FILES]
    assert pq.read_table(root)["id"].to_pylist() == list(range(51))


def test_mixed_columns_have_nulls_and_survive_parquet(tmp_path: Path) -> None:
    root = make_parquet(tmp_path, [(30,), (40,)], columns=mixed, metadata={b"k": b"v"})
    table = pq.read_table(root)
    assert table.num_rows == 70
    assert [name for name in table.column_names if table[name].null_count] == [
        *("small", "flag", "text", "blob", "when", "money", "ragged")
    ]
    assert pq.read_metadata(root / "part-00001.parquet").metadata[b"k"] == b"v"


def test_random_rows_fit_the_schema_and_follow_from_the_seed() -> None:
    schema = Unischema(
        "S",
        [
            UnischemaField("id", np.int32, (), ScalarCodec(), False),
            UnischemaField("text", np.str_, (), ScalarCodec(), True),
            UnischemaField("array", np.float32, (None, 3), NdarrayCodec(), True),
            UnischemaField("image", np.uint8, (4, 5, 3), CompressedImageCodec("png"), False),
        ],
    )
    rows = list(random_rows(schema, 50, seed=3))
    assert_same(rows, list(random_rows(schema, 50, seed=3)))
    assert all(isinstance(row["id"], np.int32) and row["image"].shape == (4, 5, 3) for row in rows)
    assert {type(row["text"]) for row in rows} == {str, type(None)}
    assert all(
        row["array"].dtype == np.float32 and row["array"].shape[1] == 3 for row in rows if row["array"] is not None
    )


@settings(max_examples=depth(20, 200), deadline=None)
@given(schema=strategies.unischemas())
def test_drawn_schemas_have_rows_that_their_codecs_take(schema: Unischema) -> None:
    for row in random_rows(schema, 3):
        for name, value in row.items():
            if value is not None:
                schema.fields[name].codec.encode(schema.fields[name], value)


@settings(max_examples=20, deadline=None)
@given(files=strategies.files(), table=strategies.tables())
def test_drawn_files_and_tables_are_small(files: list[list[int]], table: object) -> None:
    assert 1 <= len(files) <= 4
    assert all(rows >= 1 for groups in files for rows in groups)
    assert table.num_rows <= 30
