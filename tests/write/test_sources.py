"""Whatever holds rows can be written: Arrow in every form, DataFrames, datasets of other libraries."""

import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from penstock.errors import SchemaError
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.testing import assert_same

IDS = Unischema("Ids", [UnischemaField("id", np.int64, (), ScalarCodec(), False)])
ARRAYS = Unischema(
    "Arrays",
    [
        UnischemaField("id", np.int64, (), ScalarCodec(), False),
        UnischemaField("xy", np.float32, (2, 3), NdarrayCodec(), True),
    ],
)


def table(count: int = 10) -> pa.Table:
    return pa.table({"id": range(count), "text": [f"t{i}" for i in range(count)]})


def read(root: Path) -> pa.Table:
    tables = [pq.read_table(path, partitioning=None) for path in sorted(root.rglob("*.parquet"))]
    return pa.concat_tables(tables).replace_schema_metadata(None)


@pytest.mark.parametrize("kind", ["batches", "tables", "list", "dataset", "scanner"])
def test_arrow_in_every_form(tmp_path: Path, kind: str) -> None:
    pq.write_table(table(), tmp_path / "in.parquet")
    data: Any = {
        "batches": iter(table().to_batches(3)),
        "tables": (table().slice(start, 4) for start in (0, 4, 8)),
        "list": table().to_batches(3),
        "dataset": pads.dataset(tmp_path / "in.parquet"),
        "scanner": pads.dataset(tmp_path / "in.parquet").scanner(),
    }[kind]
    assert penstock.write(data, tmp_path / "d").rows == 10
    assert read(tmp_path / "d").equals(table())


@pytest.mark.skipif(not hasattr(pa, "string_view"), reason="pyarrow without views")
@pytest.mark.parametrize("form", ["table", "dict"])
def test_views_are_written_as_plain_text_and_bytes_also_inside_structs(tmp_path: Path, form: str) -> None:
    texts = [None if i % 7 == 0 else f"text {i}, longer than twelve bytes" for i in range(50)]
    views = pa.table(
        {
            "plain": pa.array(texts, pa.string_view()),
            "s": pa.array(
                [{"a": text, "n": 1} for text in texts], pa.struct([("a", pa.string_view()), ("n", pa.int8())])
            ),
            "ls": pa.array([[{"a": b"x"}]] * 50, pa.list_(pa.struct([("a", pa.binary_view())]))),
        }
    ).slice(3)
    data = views if form == "table" else {name: views[name] for name in views.column_names}
    penstock.write(data, tmp_path / "d", row_group_bytes=300)
    assert read(tmp_path / "d").to_pylist() == views.to_pylist()
    ds = penstock.open(tmp_path / "d")
    assert ds.take(range(len(ds)))["s.a"].tolist() == texts[3:]


def test_batches_are_asked_for_as_they_are_written(tmp_path: Path) -> None:
    made = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(200):
            made.append(number)
            yield pa.RecordBatch.from_pydict({"x": np.zeros(1 << 17)})
            if number == 50:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        penstock.write(batches(), tmp_path / "d")
    assert len(made) == 51


@pytest.mark.parametrize("data", [7, "text", b"bytes", None])
def test_what_holds_no_rows_is_refused(tmp_path: Path, data: Any) -> None:
    with pytest.raises(SchemaError, match=f"cannot write {type(data).__name__}; give an iterable of dicts"):
        penstock.write(data, tmp_path / "d", IDS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["nested", "flat", "tensor", "nulls"])
def test_lists_of_a_table_are_encoded_by_the_codec(tmp_path: Path, form: str) -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    column: Any = {
        "nested": pa.array(values.tolist(), pa.list_(pa.list_(pa.float32()))),
        "flat": pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 6),
        "nulls": pa.array([None, *values.reshape(4, 6).tolist()[1:]], pa.list_(pa.float32())),
    }.get(form)
    if form == "tensor":
        if not hasattr(pa, "FixedShapeTensorArray"):
            pytest.skip("this pyarrow has no tensors")
        column = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    penstock.write(pa.table({"id": range(4), "xy": column}), tmp_path / "d", ARRAYS)
    dataset = penstock.open(tmp_path / "d")
    for index in range(1 if form == "nulls" else 0, 4):
        assert_same(dataset[index]["xy"], values[index])
    assert (dataset[0]["xy"] is None) == (form == "nulls")


def test_columns_may_be_mixed(tmp_path: Path) -> None:
    columns = {"id": pa.array([1, 2, 3]), "xy": [np.ones((2, 3), np.float32), None, np.zeros((2, 3), np.float32)]}
    penstock.write(columns, tmp_path / "d", ARRAYS)
    dataset = penstock.open(tmp_path / "d")
    assert dataset[1]["xy"] is None
    assert_same(dataset[0]["xy"], np.ones((2, 3), np.float32))


def test_pictures_of_pillow_are_arrays(tmp_path: Path) -> None:
    from PIL import Image

    schema = Unischema("S", [UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec("png"), False)])
    pixels = np.random.default_rng(0).integers(0, 255, (3, 5, 4, 3), dtype=np.uint8)
    images = [Image.fromarray(picture) for picture in pixels]
    for name, data in {"rows": [{"image": image} for image in images], "columns": {"image": images}}.items():
        penstock.write(data, tmp_path / name, schema)
        assert_same(penstock.open(tmp_path / name)[2]["image"], pixels[2])


def test_writing_imports_no_pandas(tmp_path: Path) -> None:
    import subprocess

    code = f"""
import sys, numpy as np, penstock
from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from penstock import UnischemaField as F
s = penstock.Unischema("S", [F("id", np.int32, (), ScalarCodec(), False), F("n", np.str_, (), ScalarCodec(), True),
    F("a", np.float32, (2,), NdarrayCodec(), True), F("i", np.uint8, (4, 4), CompressedImageCodec("png"), False)])
row = {{"id": 1, "n": "x", "a": np.zeros(2, np.float32), "i": np.zeros((4, 4), np.uint8)}}
penstock.write([row, {{**row, "n": None}}], {str(tmp_path / "d")!r}, s)
penstock.write({{"x": np.arange(5), "y": np.zeros((5, 2))}}, {str(tmp_path / "e")!r})
print([m for m in ("pandas", "cv2", "PIL") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- DataFrames and datasets of other libraries -----------------------------------------------------------------------


def test_pandas(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"id": [1, 2, 3], "text": ["a", None, "c"], "f": [1.5, 2.5, 3.5]})
    penstock.write(frame[frame["id"] > 1], tmp_path / "d")  # an index without a name is none of the data
    assert read(tmp_path / "d").column_names == ["id", "text", "f"]
    assert read(tmp_path / "d")["text"].to_pylist() == [None, "c"]
    penstock.write(frame.set_index("id"), tmp_path / "named")
    assert set(read(tmp_path / "named").column_names) == {"id", "text", "f"}


def test_pandas_levels_of_an_index_count_where_they_have_a_name(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    index = pd.MultiIndex.from_tuples([(1, 2, 3.0), (4, 5, float("nan"))], names=["k", None, "f"])
    penstock.write(pd.DataFrame({"c": [1, 2]}, index=index), tmp_path / "d")
    found = read(tmp_path / "d")
    assert found.column_names == ["c", "k", "f"]
    assert found["k"].to_pylist() == [1, 4]
    assert found["f"].null_count == 0


def one(kind: Any, nullable: bool) -> Unischema:
    return Unischema("S", [UnischemaField("x", kind, (), ScalarCodec(), nullable)])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_pandas_nan_is_a_value_of_floats(tmp_path: Path, dtype: str) -> None:
    pd = pytest.importorskip("pandas")
    column = pd.Series([1.5, float("nan")], dtype=dtype)
    frame = pd.DataFrame({"x": column})
    forms = {"frame": frame, "frames": [frame], "column": {"x": column}, "row": [{"x": value} for value in column]}
    for name, data in forms.items():
        penstock.write(data, tmp_path / name, one(np.float64, False))
        found = read(tmp_path / name)["x"]
        assert found.null_count == 0
        assert np.isnan(found[1].as_py())
    penstock.write(frame, tmp_path / "inferred")
    assert read(tmp_path / "inferred")["x"].null_count == 0


def test_pandas_nulls_stay_nulls(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    columns = [
        pd.Series([1.5, None], dtype="Float64"),
        pd.Series([1.5, None], dtype=object),
        pd.Series(["a", float("nan")], dtype=object),
        pd.to_datetime(pd.Series(["2020-01-01", None])),
        pd.Series([1, None], dtype="Int64"),
    ]
    for number, column in enumerate(columns):
        for name, data in {"frame": pd.DataFrame({"x": column}), "column": {"x": column}}.items():
            penstock.write(data, tmp_path / f"{name}{number}")
            assert read(tmp_path / f"{name}{number}")["x"].is_null().to_pylist() == [False, True]
    gaps = pd.Series([1, None])  # floats, since NumPy's integers have no gaps
    for name, data in {"frame": pd.DataFrame({"x": gaps}), "column": {"x": gaps}}.items():
        penstock.write(data, tmp_path / f"{name} of gaps", one(np.int64, True))
        assert read(tmp_path / f"{name} of gaps")["x"].to_pylist() == [1, None]


def test_a_series_is_a_column_by_position(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    numbers = pd.Series([1, 2, 3, 4])
    texts = pd.Series(["a", "b", "c", "d"])
    penstock.write({"n": numbers[numbers > 1], "t": texts[numbers > 1]}, tmp_path / "d")
    assert read(tmp_path / "d").to_pydict() == {"n": [2, 3, 4], "t": ["b", "c", "d"]}
    arrays = pd.Series([np.full((2, 3), i, np.float32) for i in range(3)])
    penstock.write({"id": numbers[1:].reset_index(drop=True), "xy": arrays[::-1]}, tmp_path / "arrays", ARRAYS)
    assert penstock.open(tmp_path / "arrays")[0]["xy"][0, 0] == 2
    penstock.write({"x": pd.Categorical(["a", "b", None])}, tmp_path / "categories")
    assert read(tmp_path / "categories")["x"].to_pylist() == ["a", "b", None]


def test_a_series_of_polars_is_a_column(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    penstock.write({"n": pl.Series([1, None, 3]), "t": ["a", "b", "c"]}, tmp_path / "d")
    assert read(tmp_path / "d").to_pydict() == {"n": [1, None, 3], "t": ["a", "b", "c"]}


def test_pandas_with_arrays(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    arrays = [np.full((2, 3), i, np.float32) for i in range(3)]
    frame = pd.DataFrame({"id": [1, 2, 3], "xy": pd.Series([*arrays[:2], None], dtype=object)})
    penstock.write(frame, tmp_path / "d", ARRAYS)
    dataset = penstock.open(tmp_path / "d")
    assert_same(dataset[1]["xy"], arrays[1])
    assert dataset[2]["xy"] is None


def test_polars(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"id": [1, 2, 3], "text": ["a", None, "c"]})
    penstock.write(frame, tmp_path / "d")
    penstock.write(frame.lazy(), tmp_path / "lazy")
    assert read(tmp_path / "d").equals(read(tmp_path / "lazy"))
    assert read(tmp_path / "d").schema.field("text").type == pa.string()
    assert read(tmp_path / "d").to_pylist() == frame.to_dicts()
    nested = pl.DataFrame(
        {"id": [1], "xy": [[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]}, schema_overrides={"xy": pl.List(pl.List(pl.Float32))}
    )
    penstock.write(nested, tmp_path / "arrays", ARRAYS)
    assert_same(penstock.open(tmp_path / "arrays")[0]["xy"], np.arange(1, 7, dtype=np.float32).reshape(2, 3))


def test_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    files = []
    for i in range(5):
        memory = BytesIO()
        Image.fromarray(np.full((4 + i, 6, 3), 10 * i, np.uint8)).save(memory, "PNG")
        files.append(memory.getvalue())
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["a", "b"]),
            "xs": datasets.Sequence(datasets.Value("int32")),
        }
    )
    data = datasets.Dataset.from_dict(
        {
            "image": [{"bytes": f, "path": None} for f in files],
            "label": [0, 1, 0, 1, 0],
            "xs": [[1], [2, 3], [], [4], [5]],
        },
        features=features,
    )
    penstock.write(data, tmp_path / "d")
    dataset = penstock.open(tmp_path / "d")
    assert read(tmp_path / "d")["image"].to_pylist() == files
    assert_same(dataset[2]["image"], np.full((6, 6, 3), 20, np.uint8))
    assert [int(dataset[i]["label"]) for i in range(5)] == [0, 1, 0, 1, 0]
    penstock.write(data.select([4, 1]), tmp_path / "some")  # an indices mapping is followed
    assert read(tmp_path / "some")["image"].to_pylist() == [files[4], files[1]]
    penstock.write(data.to_iterable_dataset(), tmp_path / "stream")
    assert read(tmp_path / "stream").equals(read(tmp_path / "d"))
    with pytest.raises(SchemaError, match=r"pass one of \['train'\]"):
        penstock.write(datasets.DatasetDict({"train": data}), tmp_path / "x")
