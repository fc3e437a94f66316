"""`penstock.write_folder`: class folders, captions and images as they are become a dataset."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock
from penstock.codecs import decoders
from penstock.errors import ColumnNotFound, DatasetNotFound, PenstockWarning, PlanError, SchemaError
from penstock.write.images import facts_of_head, facts_of_image


def picture(seed: int, shape: tuple[int, ...], kind: str = "jpeg") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, shape, dtype=np.uint8)
    return decoders.encode_image(pixels, kind, 90)


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    for number, (name, count) in enumerate({"rose": 4, "daisy": 3, "tulip": 5}.items()):
        (tmp_path / "flowers" / name / "more").mkdir(parents=True)
        for i in range(count):
            folder = tmp_path / "flowers" / name / ("more" if i == 2 else "")
            (folder / f"{i}.jpg").write_bytes(picture(10 * number + i, (8, 6, 3)))
    (tmp_path / "flowers" / "LICENSE").write_text("free")
    (tmp_path / "flowers" / ".cache").mkdir()
    (tmp_path / "flowers" / ".cache" / "x.jpg").write_bytes(b"no")
    return tmp_path / "flowers"


def rows(url: Path) -> list[dict[str, Any]]:
    dataset = penstock.open(url)
    return [dataset[i] for i in range(len(dataset))]


def stored(url: Path) -> dict[str, bytes]:
    tables = [pq.read_table(path, partitioning=None) for path in sorted(url.rglob("*.parquet"))]
    return {row["path"]: row["image"] for table in tables for row in table.to_pylist()}


def test_folders_are_classes_and_bytes_are_the_files(flowers: Path, tmp_path: Path) -> None:
    written = penstock.write_folder(flowers, tmp_path / "d")
    assert written.rows == 12
    got = rows(tmp_path / "d")
    assert {(r["label"], str(r["label_name"])) for r in got} == {(0, "daisy"), (1, "rose"), (2, "tulip")}
    assert {str(r["path"]) for r in got} == {
        p.relative_to(flowers).as_posix() for p in flowers.rglob("*.jpg") if ".cache" not in p.parts
    }
    for path, data in stored(tmp_path / "d").items():
        assert data == (flowers / path).read_bytes()
    field = penstock.open(tmp_path / "d").schema.fields["image"]
    assert (field.shape, field.codec.image_codec) == ((8, 6, 3), "jpeg")
    with penstock.open(tmp_path / "d").loader(batch_size=12) as loader:
        [batch] = list(loader)
    assert batch["image"].shape == (12, 8, 6, 3)


def test_names_that_begin_with_an_underscore_are_images_too(flowers: Path, tmp_path: Path) -> None:
    (flowers / "rose" / "_MG_0001.jpg").write_bytes(picture(98, (8, 6, 3)))
    (flowers / "_background").mkdir()
    (flowers / "_background" / "0.jpg").write_bytes(picture(99, (8, 6, 3)))
    assert penstock.write_folder(flowers, tmp_path / "d").rows == 14
    found = {str(row["path"]): str(row["label_name"]) for row in rows(tmp_path / "d")}
    assert (found["rose/_MG_0001.jpg"], found["_background/0.jpg"]) == ("rose", "_background")


def test_the_order_is_shuffled_by_the_seed_or_by_path(flowers: Path, tmp_path: Path) -> None:
    orders = []
    for name, options in {"a": {}, "b": {}, "c": {"seed": 1}, "d": {"shuffle": False}}.items():
        penstock.write_folder(flowers, tmp_path / name, **options)
        orders.append([str(r["path"]) for r in rows(tmp_path / name)])
    assert orders[0] == orders[1] != orders[2]
    assert orders[3] == sorted(orders[0]) != orders[0]


def test_options_of_write_pass(flowers: Path, tmp_path: Path) -> None:
    written = penstock.write_folder(flowers, tmp_path / "d", partition_by="label_name", row_group_bytes=300)
    assert written.files == 3
    assert written.row_groups > 6


def test_texts_beside_images_are_captions(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(picture(i, (5, 4 + i), "png"))
        if i:
            (tmp_path / f"{i}.txt").write_text(f"number {i} \u00e9\n", encoding="utf-8")
    penstock.write_folder(tmp_path, tmp_path / "out" / "d", shuffle=False)
    got = rows(tmp_path / "out" / "d")
    assert [r["caption"] for r in got] == [None, "number 1 \u00e9", "number 2 \u00e9", "number 3 \u00e9"]
    assert "label" not in got[0]
    assert penstock.open(tmp_path / "out" / "d").schema.fields["image"].shape == (5, None)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_table_of_captions(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    for name in ("a.jpg", "deep/b.jpg", "c.jpg"):
        (folder / name).write_bytes(picture(1, (4, 4, 3)))
    lines = [("a.jpg", "one, two", 1), ("./deep/b.jpg", "three", 2), ("a.jpg", "four", 3)]
    if kind == "csv":
        text = "file_name,caption,stars\n" + "".join(f'{f},"{c}",{s}\n' for f, c, s in lines)
    else:
        text = "".join(f'{{"file_name": "{f}", "caption": "{c}", "stars": {s}}}\n' for f, c, s in lines)
    (folder / f"captions.{kind}").write_text(text)
    penstock.write_folder(folder, tmp_path / "d", shuffle=False, labels=False)
    got = [(r["path"], r["caption"], r["stars"]) for r in rows(tmp_path / "d")]
    assert got == [("a.jpg", "one, two", 1), ("a.jpg", "four", 3), ("c.jpg", None, None), ("deep/b.jpg", "three", 2)]
    penstock.write_folder(folder, tmp_path / "plain", captions=False, labels=False)
    assert list(rows(tmp_path / "plain")[0]) == ["image", "path"]


def test_mistakes_in_tables_are_named(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(picture(1, (4, 4, 3)))
    with pytest.raises(DatasetNotFound, match="no captions"):
        penstock.write_folder(tmp_path, tmp_path / "d", captions=True)
    (tmp_path / "captions.csv").write_text("file_name,caption\nct.jpg,x\n")
    with pytest.raises(SchemaError, match=r"line 1 of the data: there is no image 'ct.jpg'.*did you mean 'cat.jpg'"):
        penstock.write_folder(tmp_path, tmp_path / "d")
    (tmp_path / "captions.csv").write_text("nmae,caption\ncat.jpg,x\n")
    with pytest.raises(ColumnNotFound, match="no column that names the image"):
        penstock.write_folder(tmp_path, tmp_path / "d")
    (tmp_path / "captions.csv").write_text("file_name,path\ncat.jpg,x\n")
    with pytest.raises(SchemaError, match="column 'path', which the images have too"):
        penstock.write_folder(tmp_path, tmp_path / "d")
    assert not (tmp_path / "d").exists()


# --- tables change nothing --------------------------------------------------------------------------------------------


def with_table(tmp_path: Path, name: str, text: str, count: int = 3) -> Path:
    """Return a folder of images 0.jpg, 1.jpg ... and a table."""
    folder = tmp_path / "in"
    folder.mkdir(exist_ok=True)
    for i in range(count):
        (folder / f"{i}.jpg").write_bytes(picture(i, (4, 4, 3)))
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def columns_of(folder: Path, tmp_path: Path, **options: Any) -> dict[str, list[Any]]:
    penstock.write_folder(folder, tmp_path / "d", shuffle=False, overwrite=True, **options)
    table = pq.read_table(next((tmp_path / "d").rglob("*.parquet")))
    return {str(k): v for k, v in table.to_pydict().items() if k not in ("image", "path", "label", "label_name")}


@pytest.mark.parametrize("name", ["caption", "text", "Caption"])
@pytest.mark.parametrize(
    "values", [["007", "42", "1"], ["1", "2", "3"], ["true", "false", "true"], ["2020-01-01"] * 3, ["0.5", "", "NaN"]]
)
def test_captions_of_a_csv_are_text(tmp_path: Path, name: str, values: list[str]) -> None:
    lines = "".join(f"{i}.jpg,{value}\n" for i, value in enumerate(values))
    folder = with_table(tmp_path, "captions.csv", f"file_name,{name}\n{lines}")
    assert columns_of(folder, tmp_path) == {name: values}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (["7", "-3", "0"], [7, -3, 0]),
        (["7", "", "9"], [7, None, 9]),
        (["9223372036854775807", "1", "2"], [2**63 - 1, 1, 2]),
        (["0.5", "-1.25", "1e-05"], [0.5, -1.25, 1e-05]),
        (["0.5", "1", ""], [0.5, 1.0, None]),
        (["0.50", "12.25", "-3.00"], [0.5, 12.25, -3.0]),
        (["0011", "0021", "1"], None),
        (["3.9", "3.10", "3.11"], None),
        (["true", "false", "true"], None),
        (["2020-01-01", "2020-01-02", "2020-01-03"], None),
        (["2020-01-01 00:00:00"] * 3, None),
        (["9223372036854775808", "1", "2"], None),
        (["0.1234567890123456789", "0.5", "0.5"], None),
        (["1.5", "1e5", "2.5"], None),
        (["+1", "2", "3"], None),
        ([" 1", "2", "3"], None),
        (["-0", "1", "NA"], None),
        (["1_000", "2", "3"], None),
        (["", "", ""], None),
    ],
)
def test_columns_of_a_csv_are_numbers_only_if_they_print_back(
    tmp_path: Path, values: list[str], wanted: list[Any] | None
) -> None:
    lines = "".join(f"{i}.jpg,{value}\n" for i, value in enumerate(values))
    folder = with_table(tmp_path, "metadata.csv", f"file_name,x\n{lines}")
    got = columns_of(folder, tmp_path)["x"]
    expected = values if wanted is None else wanted
    assert [(type(value), value) for value in got] == [(type(value), value) for value in expected]


def test_a_jsonl_holds_what_json_says(tmp_path: Path) -> None:
    said = [
        {"caption": "007", "day": "2020-01-01", "n": 1, "f": 1.5, "ok": True, "zip": "0011"},
        {"caption": "2020-01-01", "day": "2020-01-02", "n": 2, "f": 2, "ok": False, "zip": "12"},
        {"caption": "true", "day": "2020-01-03", "n": None, "f": 0.1, "ok": None, "zip": "1"},
    ]
    lines = "".join(json.dumps({"file_name": f"{i}.jpg"} | row) + "\n" for i, row in enumerate(said))
    got = columns_of(with_table(tmp_path, "metadata.jsonl", lines), tmp_path)
    assert got == {name: [row[name] for row in said] for name in said[0]}
    assert [type(value) for value in got["ok"]] == [bool, bool, type(None)]


def test_nested_values_of_a_jsonl_are_stored(tmp_path: Path) -> None:
    said = [
        {"objects": {"bbox": [[1.5, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]], "categories": [0, 3]}, "tags": ["x"]},
        {"objects": {"bbox": [], "categories": []}, "tags": []},
    ]
    lines = "".join(json.dumps({"file_name": f"{i}.jpg"} | row) + "\n" for i, row in enumerate(said))
    folder = with_table(tmp_path, "metadata.jsonl", lines)
    got = columns_of(folder, tmp_path)
    assert got == {name: [*(row[name] for row in said), None] for name in said[0]}
    [first, second, third] = rows(tmp_path / "d")
    assert [list(box) for box in first["objects.bbox"]] == [[1.5, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
    assert first["objects.categories"].tolist() == [0, 3]
    assert (len(second["objects.bbox"]), third["objects.bbox"]) == (0, None)
    assert first["image"].shape == (4, 4, 3)


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        (
            "metadata.jsonl",
            '{"file_name": "0.jpg", "x": 1}\n\n{"file_name": "1.jpg", "x": "a"}\n',
            "line 3: column 'x' is",
        ),
        ("metadata.jsonl", '{"file_name": "0.jpg", "x": 1}\n{"file_name": "1.jpg"\n', "line 2 is not JSON"),
        ("metadata.jsonl", '[{"file_name": "0.jpg"}]', 'line 1 is a list; give one object a line, as in {"file_name"'),
        (
            "metadata.jsonl",
            '{"file_name": "0.jpg", "caption": 7}',
            "line 1: column 'caption' is text, got 7; put it in",
        ),
        ("metadata.jsonl", '{"file_name": "0.jpg", "x": {}}', "column 'x' is struct<>, which cannot be stored"),
        (
            "metadata.jsonl",
            '{"file_name": "0.jpg", "x": 9223372036854775808}',
            "line 1: column 'x' is 9223372036854775808",
        ),
        ("metadata.jsonl", '{"caption": "a"}\n{"file_name": "0.jpg"}', "line 1 of the data: 'file_name' must name an"),
        ("metadata.jsonl", "", "it has no lines"),
        ("metadata.csv", "file_name,a,a\n0.jpg,1,2\n", "two columns called 'a'"),
        ("metadata.csv", "file_name,a\n0.jpg,1,2\n", "metadata.csv cannot be read as a table: .*captions=False"),
    ],
)
def test_tables_that_cannot_be_stored_say_where(tmp_path: Path, name: str, text: str, wanted: str) -> None:
    folder = with_table(tmp_path, name, text)
    with pytest.raises(SchemaError, match=f"{name}.*{wanted}" if not wanted.startswith(name) else wanted):
        penstock.write_folder(folder, tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("name", ["captions.csv", "captions.jsonl", "0.txt"])
def test_text_in_another_encoding_is_named(tmp_path: Path, name: str) -> None:
    folder = with_table(tmp_path, "0.txt", "x")
    (folder / name).write_bytes(b"file_name,caption\n0.jpg,caf\xe9\n")
    if name != "0.txt":
        (folder / "0.txt").unlink()
    with pytest.raises(SchemaError, match=rf"{name}: 0xe9 at byte 27 is not UTF-8; save the file as UTF-8"):
        penstock.write_folder(folder, tmp_path / "d")


def test_long_cells_of_a_csv(tmp_path: Path) -> None:
    """A row longer than a block of the parser."""
    folder = with_table(tmp_path, "captions.csv", f'file_name,caption\n0.jpg,"{"x" * (3 << 20)}"\n', count=1)
    assert columns_of(folder, tmp_path) == {"caption": ["x" * (3 << 20)]}


# --- nothing is dropped -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("labels", [None, True])
def test_images_beside_class_folders_are_refused(
    flowers: Path, tmp_path: Path, count: int, labels: bool | None
) -> None:
    for i in range(count):
        (flowers / f"stray{i}.jpg").write_bytes(picture(1, (8, 6, 3)))
    with pytest.raises(SchemaError, match=r"'stray0\.jpg'.* lies in .*flowers' itself.*12 images.*labels=False"):
        penstock.write_folder(flowers, tmp_path / "d", labels=labels)
    assert not (tmp_path / "d").exists()
    assert penstock.write_folder(flowers, tmp_path / "d", labels=False).rows == 12 + count
    assert "label" not in rows(tmp_path / "d")[0]


@pytest.mark.parametrize("name", ["captions.csv", "metadata.csv"])
def test_class_folders_keep_their_labels_beside_a_table(flowers: Path, tmp_path: Path, name: str) -> None:
    (flowers / name).write_text("file_name,caption\nrose/0.jpg,red\n")
    penstock.write_folder(flowers, tmp_path / "d")
    got = rows(tmp_path / "d")
    assert {(r["label"], str(r["label_name"])) for r in got} == {(0, "daisy"), (1, "rose"), (2, "tulip")}
    assert {str(r["path"]): r["caption"] for r in got if r["caption"] is not None} == {"rose/0.jpg": "red"}
    (flowers / name).write_text("file_name,label\nrose/0.jpg,5\n")
    with pytest.raises(SchemaError, match=r"column 'label', which the images have too.*labels=False"):
        penstock.write_folder(flowers, tmp_path / "e")


def test_two_tables_are_refused(tmp_path: Path) -> None:
    folder = with_table(tmp_path, "captions.csv", "file_name,caption\n0.jpg,one\n", count=1)
    (folder / "metadata.csv").write_text("file_name,caption\n0.jpg,two\n")
    with pytest.raises(
        SchemaError, match=r"2 tables of captions: captions\.csv, metadata\.csv; .*captions='captions.csv'"
    ):
        penstock.write_folder(folder, tmp_path / "d")
    assert columns_of(folder, tmp_path, captions="metadata.csv") == {"caption": ["two"]}
    assert columns_of(folder, tmp_path, captions=False) == {}


def test_a_table_in_a_class_folder_is_refused(flowers: Path, tmp_path: Path) -> None:
    (flowers / "rose" / "metadata.csv").write_text("file_name,caption\n0.jpg,red\n")
    with pytest.raises(SchemaError, match=r"'rose/metadata\.csv' does not lie in .*flowers' itself.*'rose/0\.jpg'"):
        penstock.write_folder(flowers, tmp_path / "d")
    assert penstock.write_folder(flowers, tmp_path / "d", captions=False).rows == 12


def test_a_table_beside_texts_is_refused(tmp_path: Path) -> None:
    folder = with_table(tmp_path, "captions.csv", "file_name,caption\n0.jpg,one\n", count=1)
    (folder / "0.txt").write_text("two")
    with pytest.raises(SchemaError, match=r"both in the table captions\.csv and in texts.*'0\.txt' beside '0\.jpg'"):
        penstock.write_folder(folder, tmp_path / "d")
    assert columns_of(folder, tmp_path, captions="captions.csv") == {"caption": ["one"]}


def test_options_that_it_does_not_take(flowers: Path, tmp_path: Path) -> None:
    (flowers / "rose" / "bad.jpg").write_bytes(b"never looked at")
    schema = penstock.Unischema("S", [])
    with pytest.raises(PlanError, match=r"takes no schema=.*penstock\.write\(rows, url, schema\)"):
        penstock.write_folder(flowers, tmp_path / "d", schema=schema)
    with pytest.raises(TypeError, match=r"write_folder\(\) got an unexpected keyword argument 'workerz'.*'workers'"):
        penstock.write_folder(flowers, tmp_path / "d", workerz=2)


# --- images -----------------------------------------------------------------------------------------------------------


def test_images_that_do_not_fit(flowers: Path, tmp_path: Path) -> None:
    (flowers / "rose" / "grey.jpg").write_bytes(picture(7, (8, 6)))
    alpha = BytesIO()
    Image.fromarray(np.full((9, 6, 4), 200, np.uint8)).save(alpha, "PNG")
    (flowers / "rose" / "alpha.png").write_bytes(alpha.getvalue())
    with pytest.raises(SchemaError) as caught:
        penstock.write_folder(flowers, tmp_path / "d")
    for words in ("RGB of uint8", "'rose/grey.jpg' (grey of uint8)", "'rose/alpha.png'", "misfits='convert'"):
        assert words in str(caught.value)
    with pytest.warns(PenstockWarning, match="2 images"):
        assert penstock.write_folder(flowers, tmp_path / "skip", misfits="skip").rows == 12
    assert penstock.write_folder(flowers, tmp_path / "all", misfits="convert").rows == 14
    by_path = {str(r["path"]): r["image"] for r in rows(tmp_path / "all")}
    grey = decoders.decode_image((flowers / "rose" / "grey.jpg").read_bytes())
    assert (by_path["rose/grey.jpg"] == grey[..., None]).all()
    assert by_path["rose/alpha.png"].shape == (9, 6, 3)
    cells = stored(tmp_path / "all")
    assert cells["rose/0.jpg"] == (flowers / "rose" / "0.jpg").read_bytes()


def test_damaged_images_are_named(flowers: Path, tmp_path: Path) -> None:
    (flowers / "rose" / "bad.jpg").write_bytes(b"not an image")
    with pytest.raises(SchemaError, match=r"'rose/bad.jpg' \(not an image that can be read"):
        penstock.write_folder(flowers, tmp_path / "d")
    with pytest.raises(SchemaError, match=r"rose/bad.jpg cannot be converted.*remove it"):
        penstock.write_folder(flowers, tmp_path / "d", misfits="convert")
    with pytest.warns(PenstockWarning, match=r"bad\.jpg"):
        assert penstock.write_folder(flowers, tmp_path / "d", misfits="skip").rows == 12
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "flowers"]


@pytest.mark.parametrize(("kind", "shape"), [("jpeg", (8, 6, 3)), ("png", (8, 6, 3)), ("jpeg", (400, 400, 3))])
@pytest.mark.parametrize("lost", [2, 0.5])
def test_images_that_end_too_soon_are_named(
    flowers: Path, tmp_path: Path, kind: str, shape: tuple[int, ...], lost: float
) -> None:
    data = picture(3, shape, kind)
    (flowers / "rose" / f"cut.{kind}").write_bytes(data[: -int(lost if lost > 1 else lost * len(data))])
    with pytest.raises(SchemaError, match=rf"'rose/cut.{kind}' \(damaged {kind.upper()}: truncated"):
        penstock.write_folder(flowers, tmp_path / "d")
    with pytest.raises(SchemaError, match=rf"rose/cut.{kind} cannot be converted: damaged {kind.upper()}.*remove it"):
        penstock.write_folder(flowers, tmp_path / "d", misfits="convert")
    with pytest.warns(PenstockWarning, match=rf"cut\.{kind}"):
        assert penstock.write_folder(flowers, tmp_path / "d", misfits="skip").rows == 12
    assert len(rows(tmp_path / "d")) == 12


@pytest.mark.parametrize("kind", ["jpeg", "png"])
@pytest.mark.parametrize("size", [16, 300])
@pytest.mark.parametrize("padding", [b"\0" * 10, b"\r\n", b"\0" * 9000])
def test_padding_after_an_image_does_no_harm(tmp_path: Path, kind: str, size: int, padding: bytes) -> None:
    (tmp_path / f"a.{kind}").write_bytes(picture(3, (size, size, 3), kind) + padding)
    penstock.write_folder(tmp_path, tmp_path / "out" / "d")
    assert rows(tmp_path / "out" / "d")[0]["image"].shape == (size, size, 3)


def test_the_end_of_a_preview_is_not_that_of_the_image(tmp_path: Path) -> None:
    """A JPEG with another one in its head, cut before its own scan."""
    preview, data = picture(1, (8, 8, 3)), picture(2, (64, 64, 3))
    inside = b"Exif\0\0" + preview
    whole = data[:2] + b"\xff\xe1" + (len(inside) + 2).to_bytes(2, "big") + inside + data[2:]
    assert facts_of_image(whole).height == 64
    for end in (whole.rfind(b"\xff\xda"), whole.rfind(b"\xff\xda") + 40, len(whole) - 2):
        with pytest.raises(ValueError, match=r"truncated|can be read"):
            facts_of_image(whole[:end])


def test_a_cut_image_of_a_rare_kind_is_not_converted(flowers: Path, tmp_path: Path) -> None:
    alpha = BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 4), np.uint8)).save(alpha, "PNG")
    (flowers / "rose" / "cut.png").write_bytes(alpha.getvalue()[:-12])
    with pytest.raises(SchemaError, match=r"rose/cut.png cannot be converted: damaged PNG"):
        penstock.write_folder(flowers, tmp_path / "d", misfits="convert")


def test_no_message_shows_an_address(flowers: Path, tmp_path: Path) -> None:
    (flowers / "rose" / "bad.gif").write_bytes(b"not an image")
    for misfits in ("error", "convert"):
        with pytest.raises(SchemaError, match=r"bad\.gif") as caught:
            penstock.write_folder(flowers, tmp_path / "d", misfits=misfits)  # type: ignore[arg-type]
        assert "0x" not in str(caught.value)


def test_a_file_is_no_folder(flowers: Path, tmp_path: Path) -> None:
    (flowers / "metadata.csv").write_text("file_name,caption\n")
    for name in ("metadata.csv", "rose/0.jpg"):
        with pytest.raises(DatasetNotFound, match=rf"{name}' is a file; pass the folder that contains the images"):
            penstock.write_folder(flowers / name, tmp_path / "d")


def test_splits_of_plain_images_are_no_classes(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "data" / split).mkdir(parents=True)
        (tmp_path / "data" / split / "0.jpg").write_bytes(picture(0, (4, 4, 3)))
    with pytest.raises(SchemaError, match="splits test, train, not classes"):
        penstock.write_folder(tmp_path / "data", tmp_path / "d")
    assert penstock.write_folder(tmp_path / "data", tmp_path / "d", labels=True).rows == 2


def test_folders_that_mean_something_else_are_refused(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / "data" / split / "cat").mkdir(parents=True)
        (tmp_path / "data" / split / "cat" / "0.jpg").write_bytes(picture(0, (4, 4, 3)))
    with pytest.raises(SchemaError, match="splits train, val, not classes"):
        penstock.write_folder(tmp_path / "data", tmp_path / "d")
    assert penstock.write_folder(tmp_path / "data" / "train", tmp_path / "d").rows == 1
    (tmp_path / "data" / "train" / "0.jpg").write_bytes(picture(0, (4, 4, 3)))
    with pytest.raises(SchemaError, match=r"'0\.jpg' lies in"):
        penstock.write_folder(tmp_path / "data" / "train", tmp_path / "e", labels=True)
    with pytest.raises(DatasetNotFound, match="no images"):
        penstock.write_folder(tmp_path / "d", tmp_path / "e")
    with pytest.raises(DatasetNotFound, match="nothing at"):
        penstock.write_folder(tmp_path / "none", tmp_path / "e")


@pytest.mark.parametrize("kind", ["jpeg", "png"])
@pytest.mark.parametrize("shape", [(7, 9), (7, 9, 3), (300, 2, 3)])
def test_heads_tell_what_pixels_do(kind: str, shape: tuple[int, ...]) -> None:
    data = picture(3, shape, kind)
    facts = facts_of_head(data[: 1 << 16])
    assert facts == facts_of_image(data)
    assert facts is not None
    assert (facts.format, facts.height, facts.width) == (kind, *shape[:2])
    assert facts.channels == (3 if len(shape) == 3 else 1)
    assert facts_of_head(data[:12]) is None


def test_deep_png_is_seen(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 60_000, (5, 5), dtype=np.uint16)
    (tmp_path / "a.png").write_bytes(decoders.encode_image(pixels, "png", 0))
    penstock.write_folder(tmp_path, tmp_path / "out" / "d")
    assert (rows(tmp_path / "out" / "d")[0]["image"] == pixels).all()
