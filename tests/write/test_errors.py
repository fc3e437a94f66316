"""Every refusal names the row, the field and the cure, and leaves nothing behind."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from penstock.errors import ColumnNotFound, SchemaError
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.write import write

SCHEMA = Unischema(
    "S",
    [
        UnischemaField("id", np.int32, (), ScalarCodec(), False),
        UnischemaField("tiny", np.uint8, (), ScalarCodec(), True),
        UnischemaField("name", np.str_, (), ScalarCodec(), True),
        UnischemaField("array", np.float32, (2,), NdarrayCodec(), True),
        UnischemaField("image", np.uint8, (4, 4), CompressedImageCodec("png"), True),
        UnischemaField("code", np.str_, (), ScalarCodec(), True),
    ],
)


def good(index: int) -> dict[str, Any]:
    return {"id": index, "array": np.zeros(2, np.float32)}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"id": None}, ["row 3", "field 'id'", "nullable=True"]),
        ({"nmae": "x"}, ["row 3", "'nmae'", "did you mean 'name'", "add a UnischemaField"]),
        ({"id": "seven"}, ["row 3", "field 'id'", "cannot encode str", "int32"]),
        ({"id": 2**40}, ["row 3", "field 'id'", "1099511627776", "int32", "wider type"]),
        ({"tiny": 300}, ["row 3", "field 'tiny'", "300", "uint8"]),
        ({"tiny": -1}, ["row 3", "field 'tiny'", "-1", "uint8"]),
        ({"name": 7}, ["row 3", "field 'name'", "str"]),
        ({"array": np.zeros(3, np.float32)}, ["row 3", "field 'array'", "shape (3,)", "shape (2,)", "NdarrayCodec"]),
        ({"array": np.zeros(2)}, ["row 3", "field 'array'", "float64", "float32", "convert the value"]),
        ({"array": [1.0, 2.0]}, ["row 3", "field 'array'", "list"]),
        ({"image": np.zeros((4, 5), np.uint8)}, ["row 3", "field 'image'", "(4, 5)", "(4, 4)"]),
    ],
)
@pytest.mark.parametrize("form", ["rows", "columns"])
def test_bad_values_are_named(tmp_path: Path, bad: dict[str, Any], words: list[str], form: str) -> None:
    rows = [dict.fromkeys(SCHEMA.fields) | good(i) for i in range(5)]
    rows[3] |= bad
    data: Any = iter(rows)
    if form == "columns":
        data = {name: [row.get(name) for row in rows] for name in {**SCHEMA.fields, **bad}}
    with pytest.raises(SchemaError) as caught:
        write(data, tmp_path / "d", SCHEMA)
    for word in words if form == "rows" or "nmae" not in bad else words[1:]:
        assert word in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="row 0, field 'id': missing value, but the field is not nullable"):
        write([{"name": "x"}], tmp_path / "d", SCHEMA)
    with pytest.raises(SchemaError, match="row 0, field 'id': missing value, but the field is not nullable"):
        write({"name": ["x"]}, tmp_path / "d", SCHEMA)
    with pytest.raises(SchemaError, match="row 0, field 'id': missing value, but the field is not nullable"):
        write(pa.table({"name": ["x"]}), tmp_path / "d", SCHEMA)


def test_rows_that_are_no_dicts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"row 0: expected a dict .* got tuple; .*_asdict"):
        write([(1, 2)], tmp_path / "d", SCHEMA)


def test_tables_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ColumnNotFound, match=r"no field 'nmae'.*did you mean 'name'"):
        write(pa.table({"id": [1], "nmae": ["x"]}), tmp_path / "d", SCHEMA)
    with pytest.raises(SchemaError, match=r"row 70001, field 'id'"):
        write(pa.table({"id": [1] * 70_001 + [None]}), tmp_path / "d", SCHEMA)
    with pytest.raises(SchemaError, match=r"row 0, field 'array'.*float64, shape \(2,\).*float32, shape \(2,\)"):
        write(pa.table({"id": [1], "array": [[1.0, 2.0]]}), tmp_path / "d", SCHEMA)
    with pytest.raises(SchemaError, match=r"column 'array', rows from 0: the table has bool.*encode its cells"):
        write(pa.table({"id": [1], "array": [True]}), tmp_path / "d", SCHEMA)
    with pytest.raises(SchemaError, match=r"row 1, field 'tiny'.*300.*uint8"):
        write(pa.table({"id": [1, 2], "tiny": [7, 300]}), tmp_path / "d", SCHEMA)
    assert list(tmp_path.iterdir()) == []


def test_columns_must_be_of_one_length(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"equal lengths; got \{'id': 2, 'name': 1\}"):
        write({"id": np.zeros(2, np.int32), "name": ["x"]}, tmp_path / "d", SCHEMA)


@pytest.mark.parametrize("schema", [SCHEMA, None])
def test_a_single_row_is_not_taken_for_columns(tmp_path: Path, schema: Unischema | None) -> None:
    with pytest.raises(SchemaError, match=r"column 'id': expected an array or list, got int; .*\[row\]"):
        write({"id": 3}, tmp_path / "d", schema)
    with pytest.raises(SchemaError, match=r"column 'name': .* got str"):
        write({"name": "ab"}, tmp_path / "d", schema)


def test_a_type_that_cannot_be_inferred_is_named(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"column 'odd'.*pass schema="):
        write({"odd": [1, "x"]}, tmp_path / "d")


def test_an_error_of_the_generator_comes_through(tmp_path: Path) -> None:
    def rows() -> Any:
        yield good(0)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        write(rows(), tmp_path / "d", SCHEMA)
    assert list(tmp_path.iterdir()) == []
