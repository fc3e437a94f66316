"""Datasets of Hugging Face: streams without features keep their pictures, and a transform is not passed over."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, ScalarCodec
from penstock.errors import SchemaError

if TYPE_CHECKING:
    from pathlib import Path

hf = pytest.importorskip("datasets")
pillow = pytest.importorskip("PIL.Image")


def pixels(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(0, 255, shape or (8, 6, 3), dtype=np.uint8)


def file_of(array: Any, kind: str) -> bytes:
    memory = BytesIO()
    pillow.fromarray(array).save(memory, kind)
    return memory.getvalue()


JPEGS = [file_of(pixels(i), "JPEG") for i in range(3)]
FEATURES = hf.Features({"image": hf.Image(), "label": hf.Value("int8")})


def dataset(files: list[bytes] = JPEGS, feature: Any = None) -> Any:
    cells = {"image": [{"bytes": file, "path": None} for file in files], "label": list(range(len(files)))}
    features = FEATURES if feature is None else hf.Features(FEATURES | {"image": feature})
    return hf.Dataset.from_dict(cells, features=features)


def shown(file: bytes) -> Any:
    return np.asarray(pillow.open(BytesIO(file)))


def rows(url: Path) -> list[dict[str, Any]]:
    found = penstock.open(url)
    return [found[i] for i in range(len(found))]


def stored(url: Path, name: str = "image") -> list[Any]:
    return list(pq.read_table(next(url.rglob("*.parquet")))[name].to_pylist())


def generated(*items: Any, **options: Any) -> Any:
    return hf.IterableDataset.from_generator(lambda: ({"image": item} for item in items), **options)


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_typed", [False, True])
def test_pictures_of_a_streamed_map_are_pictures_and_lose_nothing(tmp_path: Path, is_typed: bool) -> None:
    """Such rows hold decoded pictures; encoded as JPEG once more they would be others."""
    options = {"features": FEATURES} if is_typed else {}
    data = dataset().to_iterable_dataset().map(lambda row: {"label": row["label"] + 1}, **options)
    penstock.write(data, tmp_path / "d")
    got = rows(tmp_path / "d")
    assert [set(row) for row in got] == [{"image", "label"}] * 3
    assert [int(row["label"]) for row in got] == [1, 2, 3]
    for row, file in zip(got, JPEGS, strict=True):
        assert (row["image"] == shown(file)).all()
    field = penstock.open(tmp_path / "d").schema.fields["image"]
    assert (field.numpy_dtype, field.shape) == (np.uint8, (None, None, 3))
    assert isinstance(field.codec, CompressedImageCodec)


@pytest.mark.parametrize("shape", [(8, 6, 3), (8, 6)])
def test_generated_pictures_are_pictures(tmp_path: Path, shape: tuple[int, ...]) -> None:
    arrays = [pixels(i, *shape) for i in range(3)]
    penstock.write(generated(*map(pillow.fromarray, arrays), None), tmp_path / "d")
    got = rows(tmp_path / "d")
    assert [list(row) for row in got] == [["image"]] * 4
    assert got[3]["image"] is None
    for row, array in zip(got, arrays, strict=False):
        assert (row["image"] == array).all()


def test_an_opened_file_is_stored_as_it_is_unless_it_was_drawn_on(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(JPEGS[0])

    def made() -> Any:
        yield {"image": pillow.open(tmp_path / "a.jpg")}
        drawn = pillow.open(tmp_path / "a.jpg")
        drawn.paste((255, 0, 0), (0, 0, 6, 8))
        yield {"image": drawn}

    penstock.write(hf.IterableDataset.from_generator(made), tmp_path / "d")
    assert stored(tmp_path / "d")[0] == JPEGS[0]
    assert (rows(tmp_path / "d")[1]["image"] == [255, 0, 0]).all()


def test_files_that_are_given_with_features_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(JPEGS[1])
    items = [{"bytes": JPEGS[0], "path": None}, str(tmp_path / "a.jpg")]
    features = hf.Features({"image": hf.Image()})
    data = generated(*items, features=features)
    penstock.write(data, tmp_path / "d")
    assert stored(tmp_path / "d") == JPEGS[:2]
    assert data.features == features  # the user's dataset is as it was


def test_a_stream_of_arrow_rows_shows_its_pictures(tmp_path: Path) -> None:
    data = dataset().to_iterable_dataset().with_format("arrow").map(lambda table: table)
    assert data.features is None
    penstock.write(data, tmp_path / "d")
    assert stored(tmp_path / "d") == JPEGS
    assert rows(tmp_path / "d")[0]["image"].shape == (8, 6, 3)
    (tmp_path / "a.jpg").write_bytes(JPEGS[1])
    named = hf.Dataset.from_dict({"image": [str(tmp_path / "a.jpg")]}).cast_column("image", hf.Image())
    penstock.write(named.to_iterable_dataset().with_format("arrow").map(lambda table: table), tmp_path / "named")
    assert stored(tmp_path / "named") == JPEGS[1:2]


def test_bytes_and_path_of_other_files_stay(tmp_path: Path) -> None:
    penstock.write(generated({"bytes": b"RIFF", "path": "a.wav"}), tmp_path / "d")
    assert rows(tmp_path / "d") == [{"image.bytes": b"RIFF", "image.path": "a.wav"}]


def test_streamed_pictures_that_do_not_fit_are_named(tmp_path: Path) -> None:
    colour, grey, alpha = (pillow.fromarray(pixels(0, *shape)) for shape in ((4, 4, 3), (4, 4), (4, 4, 4)))
    for items, wanted in (
        ([colour, grey], r"row 1, column 'image'.*grey"),
        ([alpha], r"row 0, column 'image'.*convert"),
    ):
        with pytest.raises(SchemaError, match=wanted):
            penstock.write(generated(*items), tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_a_schema_takes_streamed_pictures_also_where_they_begin_late(tmp_path: Path) -> None:
    schema = Unischema("S", [UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec("png"), True)])
    items = [None] * 600 + [pillow.fromarray(pixels(0))]
    penstock.write(generated(*items), tmp_path / "d", schema)
    assert (penstock.open(tmp_path / "d")[600]["image"] == pixels(0)).all()
    with pytest.raises(SchemaError, match=r"row 601, column 'image'.*grey"):
        penstock.write(generated(*items, pillow.fromarray(pixels(0, 4, 4))), tmp_path / "e", schema)


def test_pictures_in_lists_are_pairs_with_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(JPEGS[0])
    penstock.write(generated([pillow.open(tmp_path / "a.jpg"), pillow.fromarray(pixels(1))]), tmp_path / "d")
    [[first, second]] = stored(tmp_path / "d")
    assert first == {"bytes": JPEGS[0], "path": None}
    assert (shown(second["bytes"]) == pixels(1)).all()


def test_a_stream_keeps_types_that_it_says(tmp_path: Path) -> None:
    data = dataset().to_iterable_dataset()
    penstock.write(data, tmp_path / "d")
    assert pq.read_schema(next((tmp_path / "d").rglob("*.parquet"))).field("label").type == pa.int8()
    assert stored(tmp_path / "d") == JPEGS


# --- features and formats ---------------------------------------------------------------------------------------------


def test_the_mode_of_a_picture_is_kept(tmp_path: Path) -> None:
    """A feature may say that grey or alpha is to be seen as RGB."""
    files = [JPEGS[0], file_of(pixels(1, 8, 6), "PNG"), file_of(pixels(2, 8, 6, 4), "PNG")]
    data = dataset(files, hf.Image(mode="RGB"))
    penstock.write(data, tmp_path / "d")
    assert stored(tmp_path / "d")[0] == JPEGS[0]
    for row, wanted in zip(rows(tmp_path / "d"), data, strict=True):
        assert (row["image"] == np.asarray(wanted["image"])).all()


def doubled(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"image": [image.rotate(180) for image in batch["image"]], "twice": [2 * x for x in batch["label"]]}


def test_a_transform_needs_a_schema(tmp_path: Path) -> None:
    data = dataset().with_transform(doubled)
    with pytest.raises(SchemaError, match=r"has a transform.*schema=Unischema\(\.\.\.\).*with_format\(None\)"):
        penstock.write(data, tmp_path / "d")
    assert not (tmp_path / "d").exists()
    penstock.write(data.with_format(None), tmp_path / "d")
    assert stored(tmp_path / "d") == JPEGS


@pytest.mark.parametrize("is_set", [False, True])
def test_a_transform_gives_the_rows(tmp_path: Path, is_set: bool) -> None:
    data = dataset()
    if is_set:
        data.set_transform(doubled)
    else:
        data = data.with_transform(doubled)
    image = UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec("png"), False)
    schema = Unischema("S", [image, UnischemaField("twice", np.int64, (), ScalarCodec(), False)])
    penstock.write(data, tmp_path / "d", schema)
    got = rows(tmp_path / "d")
    assert [int(row["twice"]) for row in got] == [0, 2, 4]
    for row, file in zip(got, JPEGS, strict=True):
        assert (row["image"] == shown(file)[::-1, ::-1]).all()


@pytest.mark.parametrize("form", ["numpy", "arrow", "pandas"])
def test_other_formats_change_no_value(tmp_path: Path, form: str) -> None:
    penstock.write(dataset().with_format(form), tmp_path / "d")
    assert stored(tmp_path / "d") == JPEGS
    assert stored(tmp_path / "d", "label") == [0, 1, 2]


def test_a_column_is_no_dataset(tmp_path: Path) -> None:
    for data in (dataset(), dataset().to_iterable_dataset()):
        with pytest.raises(SchemaError, match=r"Column of datasets; .*select_columns\(\[name\]\)"):
            penstock.write(data["label"], tmp_path / "d")
