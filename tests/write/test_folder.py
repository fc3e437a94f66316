"""`penstock.write_folder`: class folders, captions and images as they are become a dataset."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock
from penstock.codecs import decoders
from penstock.errors import ColumnNotFound, DatasetNotFound, PenstockWarning, SchemaError
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
    penstock.write_folder(folder, tmp_path / "d", shuffle=False)
    got = [(r["path"], r["caption"], r["stars"]) for r in rows(tmp_path / "d")]
    assert got == [("a.jpg", "one, two", 1), ("a.jpg", "four", 3), ("c.jpg", None, None), ("deep/b.jpg", "three", 2)]
    penstock.write_folder(folder, tmp_path / "plain", captions=False)
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
    with pytest.raises(SchemaError, match=rf"'rose/cut.{kind}' \(damaged {kind.upper()}: cut short"):
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
        with pytest.raises(ValueError, match=r"cut short|can be read"):
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
        with pytest.raises(DatasetNotFound, match=rf"{name}' is a file; give the folder that holds the images"):
            penstock.write_folder(flowers / name, tmp_path / "d")


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
