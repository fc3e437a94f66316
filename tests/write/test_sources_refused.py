"""What cannot be written is refused by name, and nothing is written: Arrow data, columns, DataFrames, Hugging Face."""

from __future__ import annotations

import datetime
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock
from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from penstock.errors import SchemaError
from penstock.schema.unischema import Unischema, UnischemaField
from tests.write.test_sources import read

if TYPE_CHECKING:
    from pathlib import Path


def one(name: str, kind: Any, shape: tuple[int | None, ...], codec: Any) -> Unischema:
    return Unischema("S", [UnischemaField(name, kind, shape, codec, True)])


def refused(data: Any, folder: Path, match: str, schema: Unischema | None = None) -> None:
    with pytest.raises(SchemaError, match=match):
        penstock.write(data, folder / "refused", schema)
    assert not (folder / "refused").exists()


# --- Arrow data and columns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
@pytest.mark.parametrize("codec", [CompressedImageCodec("png"), NdarrayCodec()])
def test_text_is_no_cell(tmp_path: Path, kind: str, codec: Any) -> None:
    names = pa.array(["a.png", "b.png"])
    table = pa.table({"i": names.dictionary_encode() if kind == "dictionary" else names.cast(kind)})
    refused(
        table, tmp_path, r"column 'i'.*has .*string.*encoded cells.*binary", one("i", np.uint8, (None, None), codec)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_a_null_in_a_list_is_named(tmp_path: Path, dtype: Any) -> None:
    values = pa.from_numpy_dtype(dtype)
    flat = pa.array([[1, 2], None, [3, None]], pa.list_(values))
    nested = pa.array([[[1, 2]], [[3, 4], None]], pa.list_(pa.list_(values)))
    deep = pa.array([[[1, 2]], None, [[3, None]]], pa.list_(pa.list_(values, 2)))
    name = np.dtype(dtype).name
    refused(
        pa.table({"x": flat}), tmp_path, rf"row 2, field 'x': .*null.*{name}", one("x", dtype, (None,), NdarrayCodec())
    )
    for row, column in ((1, nested), (2, deep)):
        schema = one("x", dtype, (None, None), NdarrayCodec())
        refused(pa.table({"x": column}), tmp_path, rf"row {row}, field 'x': .*null.*{name}", schema)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({}, "no columns"),
        (pa.table({}), "no columns"),
        ({1: [1]}, "column names must be text; got 1"),
        ({"a": np.array(5)}, "column 'a': .*0 dimensions"),
        ({"a": np.ones(3, np.longdouble)}, "column 'a': cannot infer a type"),
        ({"a": [2**63]}, r"column 'a': a whole number is outside of int64.*np\.uint64"),
        ({"a": [2**70]}, r"column 'a': a whole number is outside of int64"),
        ({"a": [1, "a"]}, "column 'a': cannot infer a type"),
        ({"a": {1, 2}}, "column 'a': expected an array or list, got set"),
        ({"a": {0: 1}}, "column 'a': expected an array or list, got dict"),
    ],
)
def test_what_is_no_column(tmp_path: Path, data: Any, match: str) -> None:
    refused(data, tmp_path, match)


def test_no_columns_may_follow_a_schema(tmp_path: Path) -> None:
    assert penstock.write({}, tmp_path / "d", one("x", np.float32, (2,), NdarrayCodec())).rows == 0


def test_runs_are_written_out(tmp_path: Path) -> None:
    plain = pa.table({"r": [1, 1, 2], "t": ["a", "a", None]})
    runs = pa.table({name: pc.run_end_encode(plain[name].combine_chunks()) for name in plain.column_names})
    schema = one("r", np.int64, (), None)
    forms: dict[str, Any] = {"table": runs, "batches": runs.to_batches(), "columns": {n: runs[n] for n in ("r", "t")}}
    for name, data in forms.items():
        penstock.write(data, tmp_path / name)
        assert read(tmp_path / name).to_pylist() == plain.to_pylist()
    penstock.write(runs.select(["r"]), tmp_path / "schema", schema)
    assert read(tmp_path / "schema").to_pylist() == plain.select(["r"]).to_pylist()


# --- conversions of Arrow data ----------------------------------------------------------------------------------------


def field(kind: Any, shape: tuple[int | None, ...] = (), codec: Any = None) -> Unischema:
    return one("x", kind, shape, codec)


INF = float("inf")


@pytest.mark.parametrize(
    ("column", "schema", "row"),
    [
        (pa.array([1.0, None, INF, 1e300]), field(np.float32), 3),
        (pa.array([1.0, -1e300]), field(np.float16), 1),
        (pa.array([[1.0], None, [], [2.0, 1e300]]), field(np.float32, (None,)), 3),
        (pa.array([[1.0, 2.0], [2.0, 1e300]], pa.list_(pa.float64(), 2)), field(np.float32, (2,)), 1),
        (pa.array([[[1.0]], [[], [1e300]]]), field(np.float32, (None, None)), 1),
        (pa.array([1.0, 1e300]).dictionary_encode(), field(np.float32), 1),
        (pa.array([Decimal(1), Decimal(10) ** 50], pa.decimal256(70, 0)), field(np.float32), 1),
        (pa.array([0, 1, None, 2]), field(np.bool_), 3),
        (pa.array([[0], [1, 2]]), field(np.bool_, (None,)), 1),
        (pa.array([0, 5], pa.timestamp("us")), field(np.datetime64, (), ScalarCodec(pa.date32())), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("given", ["table", "columns", "reader"])
def test_a_value_that_the_cast_would_change_is_refused(
    tmp_path: Path, column: Any, schema: Unischema, row: int, given: str
) -> None:
    table = pa.table({"x": pa.concat_arrays([column, column.slice(0, 1)])})
    data: Any = {"table": table, "columns": {"x": table["x"]}, "reader": table.to_reader()}[given]
    refused(data, tmp_path, rf"row {row}, column 'x': .* cannot be stored as", schema)
    penstock.write(table.slice(0, row), tmp_path / "good", schema)
    assert read(tmp_path / "good").num_rows == row


def test_what_was_infinite_stays_so(tmp_path: Path) -> None:
    values = [INF, -INF, None, 1.5]
    penstock.write(pa.table({"x": [*values, float("nan")]}), tmp_path / "d", field(np.float32))
    found = read(tmp_path / "d")["x"].to_pylist()
    assert found[:4] == values
    assert found[4] != found[4]


@pytest.mark.parametrize(
    ("column", "schema"),
    [
        (pa.array([1]), field(np.str_)),
        (pa.array([1.5]), field(np.str_)),
        (pa.array([True]), field(np.str_)),
        (pa.array([5], pa.timestamp("us")), field(np.str_)),
        (pa.array([[1]]), field(np.str_, (None,))),
        (pa.array(["1"]), field(np.int64)),
        (pa.array(["1"]).dictionary_encode(), field(np.int64)),
        (pa.array([b"1"]), field(np.float32)),
        (pa.array(["true"]), field(np.bool_)),
        (pa.array([1.0]), field(np.bool_)),
        (pa.array(["2020-01-01"]), field(np.datetime64)),
        (pa.array([5]), field(np.datetime64)),
        (pa.array([5], pa.timestamp("us")), field(np.int64)),
        (pa.array([5], pa.duration("us")), field(np.int64)),
        (pa.array([0.1]), field(Decimal)),
    ],
    ids=str,
)
def test_text_numbers_and_times_are_not_turned_into_one_another(tmp_path: Path, column: Any, schema: Unischema) -> None:
    refused(
        pa.table({"x": column}),
        tmp_path,
        r"column 'x', rows from 0: the table has .*, the schema stores .* is not converted to .*cast the column",
        schema,
    )


@pytest.mark.parametrize(
    ("column", "schema", "expected"),
    [
        (pa.array([0, 1, None]), field(np.bool_), [False, True, None]),
        (pa.array([True]), field(np.int64), [1]),
        (pa.array([b"a"]), field(np.str_), ["a"]),
        (pa.array(["a"]), field(np.bytes_), [b"a"]),
        (pa.array([5]), field(Decimal), [Decimal(5)]),
        (pa.array([Decimal("0.5")]), field(np.float32), [0.5]),
        (pa.array([datetime.date(2020, 1, 1)]), field(np.datetime64), [datetime.datetime(2020, 1, 1)]),
        (pa.nulls(1), field(np.str_), [None]),
    ],
    ids=str,
)
def test_what_stays_the_same_is_cast(tmp_path: Path, column: Any, schema: Unischema, expected: Any) -> None:
    penstock.write(pa.table({"x": column}), tmp_path / "d", schema)
    assert read(tmp_path / "d")["x"].to_pylist() == expected


@pytest.mark.parametrize("form", ["struct", "map"])
def test_floats_deep_inside_are_looked_at(tmp_path: Path, form: str) -> None:
    def column(kind: Any, value: float) -> Any:
        if form == "map":
            return pa.array([None, [("a", value)]], pa.map_(pa.string(), kind))
        return pa.array([None, {"a": [value]}], pa.struct([("a", pa.list_(kind))]))

    narrow, wide = (pa.table({"x": column(kind, 1.0)}) for kind in (pa.float32(), pa.float64()))
    assert penstock.write([narrow, wide], tmp_path / "d").rows == 4
    refused([narrow, pa.table({"x": column(pa.float64(), 1e300)})], tmp_path, r"row 3, column 'x': 1e\+300")


# --- pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["P", "HSV", "YCbCr", "CMYK", "LAB", "PA"])
@pytest.mark.parametrize("codec", [CompressedImageCodec("png"), NdarrayCodec()], ids=str)
def test_pictures_of_other_colours_are_refused(tmp_path: Path, mode: str, codec: Any) -> None:
    from PIL import Image

    picture: Any = Image.new("RGB", (4, 4), (255, 0, 0))
    picture = Image.new("PA", (4, 4)) if mode == "PA" else picture.convert(mode)
    shape = {2: (None, None), 3: (None, None, np.asarray(picture).shape[-1])}[np.asarray(picture).ndim]
    schema = one("x", np.uint8, shape, codec)
    for data in ([{"x": picture}], {"x": [picture]}, iter([{"x": picture}])):
        refused(data, tmp_path, rf"row 0, field 'x': .*mode '{mode}'.*image\.convert\('RGB'\)", schema)


def test_pictures_of_deep_grey_are_taken(tmp_path: Path) -> None:
    from PIL import Image

    deep = Image.fromarray(np.full((4, 4), 1000, np.uint16))
    penstock.write([{"x": deep}], tmp_path / "d", one("x", np.uint16, (None, None), CompressedImageCodec("png")))
    assert (penstock.open(tmp_path / "d")[0]["x"] == 1000).all()


# --- DataFrames -------------------------------------------------------------------------------------------------------


def test_pandas_missing_pictures_are_null(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    array = np.arange(4, dtype=np.uint8).reshape(2, 2)
    column = pd.Series([float("nan"), array, None, pd.NA, pd.NaT], dtype=object)
    penstock.write(pd.DataFrame({"i": column}), tmp_path / "d", one("i", np.uint8, (2, 2), NdarrayCodec()))
    dataset = penstock.open(tmp_path / "d")
    assert [dataset[i]["i"] is None for i in range(5)] == [True, False, True, True, True]
    assert (dataset[1]["i"] == array).all()


def test_pandas_columns_that_cannot_be_told(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    refused(pd.DataFrame([[1, 2]], columns=["a", "a"]), tmp_path, "two columns called 'a'; rename")
    refused(pd.DataFrame([[1, 2]], columns=[1, "1"]), tmp_path, "two columns called '1'; rename")
    refused(pd.DataFrame({"ok": [1, 2], "m": [1, "a"]}), tmp_path, "column 'm' of the DataFrame.*objects")
    refused(pd.Series([1]), tmp_path, "pandas Series; give a DataFrame")
    clash = pd.DataFrame({"a": [1]}, index=pd.Index([5], name="a"))
    refused(clash, tmp_path, r"two columns called 'a' \(one is of its index\); rename")
    refused({"a": pd.DataFrame({"b": [1]})}, tmp_path, "column 'a': expected an array or list, got a DataFrame")


def test_pandas_indexes_come_in_their_order(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    names = [f"level{i}" for i in range(9)]
    frame = pd.DataFrame({name: [i] for i, name in enumerate(names)})
    frame["i"] = pd.Series([np.zeros((2, 2))], dtype=object)
    fields = [UnischemaField(name, np.int64, (), None, False) for name in names]
    schema = Unischema("S", [UnischemaField("i", np.float64, (2, 2), NdarrayCodec(), False), *fields])
    from penstock.write.sources import normal_form

    assert list(normal_form(frame.set_index(names), schema)) == ["i", *names]
    assert penstock.write(frame.set_index(names), tmp_path / "d", schema).rows == 1


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("form", [list, iter])
def test_frames_in_turn(tmp_path: Path, library: str, form: Any) -> None:
    frames = pytest.importorskip(library)
    made = [frames.DataFrame({"a": [i, i + 1], "t": [str(i), None]}) for i in (0, 2, 4)]
    assert penstock.write(form(made), tmp_path / "d").rows == 6
    assert read(tmp_path / "d")["a"].to_pylist() == [0, 1, 2, 3, 4, 5]
    refused(form([made[0], {"a": 1}]), tmp_path, "item 1 is a dict.*DataFrame")


def test_frames_in_turn_with_arrays(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"i": pd.Series([np.zeros((2, 2), np.uint8)], dtype=object)})
    schema = one("i", np.uint8, (2, 2), NdarrayCodec())
    refused([frame, frame], tmp_path, r"column 'i'.*Writer\.extend", schema)


def test_polars_types_without_a_column(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    things = pl.DataFrame({"ok": [1, 2], "o": pl.Series([object(), object()], dtype=pl.Object)})
    refused(things, tmp_path, "column 'o' has the Polars type Object")
    wide = pl.DataFrame({"w": pl.Series([1, 2], dtype=pl.Int128)})
    refused(wide, tmp_path, "column 'w' has the Polars type Int128.*cast")
    refused(wide.select(pl.col("w").implode()), tmp_path, "column 'w' has the Polars type Int128")
    refused(wide.select(pl.struct("w").alias("s")), tmp_path, "column 's' has the Polars type Int128")
    refused(pl.Series("a", [1, 2]), tmp_path, "polars Series; give a DataFrame or LazyFrame")


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def png(shape: tuple[int, ...]) -> bytes:
    from PIL import Image

    memory = BytesIO()
    Image.fromarray(np.zeros(shape, np.uint8)).save(memory, "PNG")
    return memory.getvalue()


def pictures(cells: list[Any], feature: Any) -> Any:
    import datasets

    return datasets.Dataset.from_dict({"image": cells}, features=datasets.Features({"image": feature}))


@pytest.mark.parametrize("is_told", [False, True])
def test_hugging_face_pictures_that_do_not_fit(tmp_path: Path, is_told: bool) -> None:
    datasets = pytest.importorskip("datasets")
    schema = one("image", np.uint8, (None, None, 3), CompressedImageCodec("png")) if is_told else None
    colour, grey, alpha = ({"bytes": png(shape), "path": None} for shape in ((4, 4, 3), (4, 4), (4, 4, 4)))
    cut = {"bytes": colour["bytes"][:-20], "path": None}
    for cells, what in (([colour] * 600 + [grey], "grey"), ([colour] * 600 + [alpha], "4 channels")):
        wanted = rf"row 600, column 'image'.*{what}.*\(None, None, 3\).*convert\('RGB'\)"
        refused(pictures(cells, datasets.Image()), tmp_path, wanted, schema)
    refused(pictures([colour, cut], datasets.Image()), tmp_path, "row 1, column 'image'.*damaged PNG", schema)
    assert penstock.write(pictures([colour, None], datasets.Image()), tmp_path / "d", schema).rows == 2


def test_hugging_face_pictures_of_one_size(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    cells = [{"bytes": png(shape), "path": None} for shape in ((4, 4, 3), (5, 4, 3))]
    schema = one("image", np.uint8, (4, 4, 3), CompressedImageCodec("png"))
    refused(pictures(cells, datasets.Image()), tmp_path, r"row 1.*5 x 4.*\(4, 4, 3\)", schema)


def test_hugging_face_files_that_are_only_named_are_stored(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    (tmp_path / "a.png").write_bytes(png((4, 4, 3)))
    named = {"bytes": None, "path": str(tmp_path / "a.png")}
    penstock.write(pictures([named], datasets.Image()), tmp_path / "one")
    assert penstock.open(tmp_path / "one")[0]["image"].shape == (4, 4, 3)
    penstock.write(pictures([[named, named], []], datasets.Sequence(datasets.Image())), tmp_path / "many")
    [first, second] = read(tmp_path / "many")["image"].to_pylist()
    assert [cell["bytes"] for cell in first] == [png((4, 4, 3))] * 2
    assert second == []
    gone = {"bytes": None, "path": str(tmp_path / "gone.png")}
    refused(pictures([gone], datasets.Image()), tmp_path, "column 'image', rows from 0: .*gone.png")
    refused(
        pictures([[gone]], datasets.Sequence(datasets.Image())), tmp_path, "column 'image', rows from 0: .*gone.png"
    )


def test_hugging_face_streams_without_features(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    plain = datasets.Dataset.from_dict({"a": list(range(1200))}).to_iterable_dataset()
    refused(plain.map(text_after(600)), tmp_path, r"b: null.*first, then.*b: string.*features=")
    refused(plain.map(lambda row: {"b": row["a"] or "x"}), tmp_path, r"string vs int64.*features=")
    told = plain.map(
        text_after(600), features=datasets.Features({"a": datasets.Value("int64"), "b": datasets.Value("string")})
    )
    for name, data in {"told": told, "soon": plain.map(text_after(5))}.items():
        penstock.write(data, tmp_path / name)
        assert read(tmp_path / name)["b"].to_pylist()[598:602] == (
            ["x"] * 4 if name == "soon" else [None, None, "x", "x"]
        )
    fields = [UnischemaField("a", np.int64, (), None, False), UnischemaField("b", np.str_, (), None, True)]
    assert penstock.write(plain.map(text_after(600)), tmp_path / "schema", Unischema("S", fields)).rows == 1200


def text_after(row: int) -> Any:
    return lambda found: {"b": None if found["a"] < row else "x"}
