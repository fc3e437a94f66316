import contextlib
import io
import zlib

import cv2
import numpy as np
import pytest
import skimage.data
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from penstock.codecs import CellError, Cells, CompressedImageCodec, decoders
from penstock.testing.codecs import check_codec
from tests.codecs.fields import Field, opencv_file, opencv_pixels, photo
from tests.depth import depth

SAMPLING = {"4:4:4": 0x111111, "4:2:2": 0x211111, "4:2:0": 0x221111, "4:1:1": 0x411111, "4:4:0": 0x121111}
LIBRARIES = ["simplejpeg", "imagecodecs", "cv2", "PIL.Image"]


def only(monkeypatch, *names):
    """Let only these libraries be installed."""
    monkeypatch.setattr(decoders, "library", lambda name: real(name) if name in names else None)


real = decoders.library


def filled(codec, field, cells):
    out = np.zeros((len(cells), *field.shape), field.numpy_dtype)
    codec.decode_column(field, Cells.from_list(cells), out)
    return out


def field_of(pixels):
    return Field("image", pixels.dtype.type, pixels.shape)


def pillow_file(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def agree(file, kind):
    """Single cell, list and column all give OpenCV's pixels, C-contiguous."""
    want = opencv_pixels(file)
    codec, field = CompressedImageCodec(kind), field_of(want)
    listed = codec.decode_list(Field("image", want.dtype.type, (None,) * want.ndim), Cells.from_list([file]))[0]
    for got in (codec.decode(field, file), listed, filled(codec, field, [file])[0]):
        assert got.flags.c_contiguous
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert (got == want).all()


@pytest.mark.parametrize("name", ["astronaut", "chelsea", "coffee", "rocket", "camera", "coins", "page"])
def test_photographs_have_the_pixels_of_opencv(name):
    pixels = getattr(skimage.data, name)()
    agree(opencv_file(pixels, "jpeg", cv2.IMWRITE_JPEG_QUALITY, 90), "jpeg")
    agree(opencv_file(pixels, "png"), "png")


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("size", [(96, 80), (95, 77), (17, 1), (1, 17), (3, 5), (8, 8)])
def test_every_subsampling_and_odd_size_of_jpeg(sampling, size):
    pixels = photo()[: size[0], : size[1]]
    for quality in (50, 95):
        options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLING[sampling]]
        agree(opencv_file(pixels, "jpeg", *options), "jpeg")
    agree(opencv_file(pixels[..., 0], "jpeg"), "jpeg")


@pytest.mark.parametrize("size", [(96, 80), (95, 77), (17, 1), (1, 17), (1, 1)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_png_of_8_and_16_bits_grey_and_colour(size, dtype):
    pixels = photo()[: size[0], : size[1]].astype(dtype)
    if dtype == np.uint16:
        pixels = pixels * 257 + np.arange(size[1], dtype=np.uint16)[:, None]
    agree(opencv_file(pixels, "png"), "png")
    agree(opencv_file(pixels[..., 1], "png"), "png")


@pytest.mark.parametrize("mode", ["progressive", "rgb", "exif", "cmyk", "trailing bytes"])
def test_unusual_jpegs(mode):
    image = Image.fromarray(photo())
    exif = image.getexif()
    exif[0x0112] = 6  # "turn me": pixels come as stored
    options = {"progressive": {"progressive": True}, "rgb": {"keep_rgb": True}, "exif": {"exif": exif}}.get(mode, {})
    file = pillow_file(image.convert("CMYK") if mode == "cmyk" else image, "JPEG", **options)
    agree(file + b"more" if mode == "trailing bytes" else file, "jpeg")


@pytest.mark.parametrize("mode", ["palette of 16", "palette of 256", "one bit", "grey with a transparent grey"])
def test_unusual_pngs(mode):
    image = Image.fromarray(photo())
    if mode == "one bit":
        file = pillow_file(image.convert("1"))
    elif mode.startswith("grey"):
        file = pillow_file(image.convert("L"), transparency=5)
    else:
        file = pillow_file(image.quantize(int(mode.split()[-1])))
    agree(file, "png")


def test_the_file_decides_and_not_the_name_of_the_codec():
    agree(opencv_file(photo(), "jpeg"), "png")
    agree(opencv_file(photo(), "png"), "jpeg")
    agree(opencv_file(photo(), "bmp"), "png")
    agree(opencv_file(photo(), "tiff"), "tiff")


@pytest.mark.parametrize("kind", ["png", "jpeg", "bmp"])
def test_alpha_is_refused_by_name(kind):
    file = pillow_file(Image.fromarray(photo()).convert("RGBA"))
    field = Field("image", np.uint8, (96, 80, 4))
    with pytest.raises(CellError, match=r"4 channels in an image of \(96, 80, 4\)"):
        filled(CompressedImageCodec(kind), field, [file])
    with pytest.raises(ValueError, match=r"4 channels in an image of \(96, 80, 4\)"):
        CompressedImageCodec(kind).decode(field, file)


@pytest.mark.parametrize(
    ("kind", "pixels", "shape"),
    [
        ("jpeg", photo()[..., 0], (96, 80, 3)),
        ("jpeg", photo(), (96, 80)),
        ("jpeg", photo()[:50], (96, 80, 3)),
        ("jpeg", photo(), (50, 80, 3)),
        ("jpeg", photo(80, 96), (96, 80, 3)),
        ("png", photo()[..., 0], (96, 80, 3)),
        ("png", photo(), (96, 80)),
        ("png", photo()[:1, :, 0], (96, 80)),
        ("png", photo()[..., 0], (96, 80, 1)),
        ("png", photo(1, 28)[..., 0], (28, 28)),
        ("png", photo(28, 28), (28, 28)),
        ("bmp", photo(), (96, 81, 3)),
    ],
)
def test_a_shape_that_contradicts_the_field_is_said_with_both(kind, pixels, shape):
    field = Field("image", np.uint8, shape)
    good = None if shape[-1] == 1 else opencv_file(np.zeros(shape, np.uint8), kind)
    cells = Cells.from_list([good, opencv_file(pixels, kind)])
    for decode in (
        lambda: CompressedImageCodec(kind).decode_column(field, cells, np.zeros((2, *shape), np.uint8)),
        lambda: CompressedImageCodec(kind).decode_list(field, cells),
    ):
        with pytest.raises(CellError) as error:
            decode()
        assert error.value.index == 1
        assert f"expects shape {shape}, the cell holds {pixels.shape}" in str(error.value)


@pytest.mark.parametrize(("stored", "wanted"), [(np.uint8, np.uint16), (np.uint16, np.uint8), (np.uint8, np.int8)])
@pytest.mark.parametrize("size", [96, 28])
def test_a_depth_that_contradicts_the_field_is_said_with_both(stored, wanted, size):
    pixels = photo(size, size).astype(stored)
    with pytest.raises(CellError, match=f"expects dtype {np.dtype(wanted)}, the cell holds {np.dtype(stored)}"):
        filled(CompressedImageCodec("png"), Field("image", wanted, pixels.shape), [opencv_file(pixels, "png")])


@pytest.mark.parametrize("libraries", [LIBRARIES, ["cv2"], ["PIL.Image"]], ids=str)
@pytest.mark.parametrize("kind", ["jpeg", "png"])
@pytest.mark.parametrize("part", [0.0, 0.02, 0.3, 0.9])
def test_images_cut_short_are_errors_and_not_grey_pixels(kind, part, libraries, monkeypatch, capfd):
    only(monkeypatch, *libraries)
    good = opencv_file(photo(), kind)
    cells = [good, good[: int(len(good) * part)]]
    for decode in (filled, lambda codec, field, cells: codec.decode_list(field, Cells.from_list(cells))):
        with pytest.raises(CellError, match="cannot decode a cell of field 'image'") as error:
            decode(CompressedImageCodec(kind), field_of(photo()), cells)
        assert error.value.index == 1
    with pytest.raises(ValueError, match=r"not an image|damaged"):
        CompressedImageCodec(kind).decode(field_of(photo()), cells[1])


def test_a_jpeg_that_lacks_only_its_end_is_an_error(monkeypatch):
    file = opencv_file(photo(), "jpeg")[:-2]
    for libraries in (LIBRARIES, ["cv2"], ["PIL.Image"]):
        only(monkeypatch, *libraries)
        with pytest.raises(ValueError, match="damaged JPEG"):
            CompressedImageCodec("jpeg").decode(field_of(photo()), file)


@pytest.mark.parametrize("cell", [b"", b"not an image", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", bytes(1000)])
@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_what_is_no_image_is_an_error(cell, kind, capfd):
    with pytest.raises(CellError, match="cannot decode a cell of field 'image'") as error:
        filled(CompressedImageCodec(kind), field_of(photo()), [opencv_file(photo(), kind), cell])
    assert error.value.index == 1


@settings(max_examples=depth(40, 2000), deadline=None)
@given(st.data())
def test_damaged_bytes_give_pixels_or_cell_errors_and_nothing_else(data):
    kind = data.draw(st.sampled_from(["jpeg", "png"]))
    file = bytearray(opencv_file(photo(24, 24), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, len(file) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(CellError):
        filled(CompressedImageCodec(kind), field_of(photo(24, 24)), [bytes(file)])


@pytest.mark.parametrize("library", ["cv2", "PIL.Image"])
@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_each_fallback_reads_the_same_pixels(library, kind, monkeypatch):
    only(monkeypatch, library)
    assert list(decoders.pick(kind)) == [library]
    for pixels in (photo(), photo()[..., 0], photo(28, 28)):
        agree(opencv_file(pixels, kind), kind)
    if kind == "png":
        agree(opencv_file(photo()[..., 0].astype(np.uint16) * 257, "png"), "png")
        agree(pillow_file(Image.fromarray(photo()).quantize(16)), "png")
        agree(pillow_file(Image.fromarray(photo()).convert("1")), "png")


@pytest.mark.parametrize("library", ["cv2", "PIL.Image", None])
@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_each_fallback_writes_what_opencv_reads(library, kind, monkeypatch):
    only(monkeypatch, *([library] if library else LIBRARIES))
    for pixels in (photo(), photo()[..., 0]):
        file = CompressedImageCodec(kind, 95).encode(field_of(pixels), pixels)
        close = np.abs(opencv_pixels(file).astype(int) - pixels)
        assert close.mean() < 3 if kind == "jpeg" else close.max() == 0


def test_pillow_does_not_halve_16_bit_colour(monkeypatch):
    only(monkeypatch, "PIL.Image")
    file = opencv_file(photo().astype(np.uint16) * 257, "png")
    with pytest.raises(ValueError, match="Pillow drops half of 16-bit colour"):
        CompressedImageCodec("png").decode(field_of(photo()), file)
    with pytest.raises(ValueError, match="Pillow cannot write uint16 colour"):
        CompressedImageCodec("png").encode(Field("x", np.uint16, (96, 80, 3)), photo().astype(np.uint16))


@pytest.mark.parametrize("name", ["imagecodecs", "cv2", "PIL.Image"])
def test_a_png_that_promises_more_bytes_than_it_has_is_damaged(monkeypatch, name):
    only(monkeypatch, name)
    file = opencv_file(photo(), "png")
    at = file.index(b"IDAT") - 4
    for broken in (file[:at] + b"\x40" + file[at + 1 :], file[: at + 50]):
        with pytest.raises(ValueError, match="damaged PNG"):
            CompressedImageCodec("png").decode(field_of(photo()), broken)
    assert (CompressedImageCodec("png").decode(field_of(photo()), file + b"more") == photo()).all()


def test_without_any_library_the_error_names_the_install_line(monkeypatch):
    only(monkeypatch)
    with pytest.raises(ValueError, match=r"pip install 'penstock\[opencv\]'"):
        CompressedImageCodec("png").decode(field_of(photo()), opencv_file(photo(), "png"))
    with pytest.raises(ImportError, match=r"pip install 'penstock\[opencv\]'"):
        CompressedImageCodec("png").encode(field_of(photo()), photo())


def test_a_header_that_claims_a_huge_image_is_refused_before_it_is_decoded():
    file = bytearray(opencv_file(photo(), "jpeg"))
    at = file.index(b"\xff\xc0") + 5
    file[at : at + 4] = b"\xfd\xe8\xfd\xe8"
    with pytest.raises(CellError, match=r"the cell holds \(65000, 65000, 3\)"):
        filled(CompressedImageCodec("jpeg"), field_of(photo()), [bytes(file)])
    with pytest.raises(ValueError, match="65000 x 65000 pixels"):
        CompressedImageCodec("jpeg").decode(field_of(photo()), bytes(file))
    png = bytearray(opencv_file(photo(), "png"))
    png[16:24] = b"\x00\x0f\x00\x00" * 2
    png[29:33] = zlib.crc32(png[12:29]).to_bytes(4, "big")
    with pytest.raises(CellError, match=r"the cell holds \(983040, 983040, 3\)"):
        filled(CompressedImageCodec("png"), field_of(photo()), [bytes(png)])
    with pytest.raises(ValueError, match="983040 x 983040 pixels"):
        CompressedImageCodec("png").decode(field_of(photo()), bytes(png))


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "RGBA", "LA", "CMYK", "I;16"])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "progressive JPEG", "WEBP", "BMP"])
def test_the_size_of_an_image_is_that_of_its_header(kind, mode):
    image = Image.fromarray(photo()[:31, :17]).convert(mode)
    options = {"progressive": True} if kind == "progressive JPEG" else {}
    try:
        file = pillow_file(image, kind.removeprefix("progressive "), **options)
    except (OSError, ValueError):
        pytest.skip(f"{kind} has no {mode}")
    for cell in (file, memoryview(file)):
        size = decoders.image_size(cell)
        assert size.shape[:2] == (31, 17)
        try:
            pixels = decoders.decode_image(file)
        except ValueError:  # with alpha, which is not read
            assert size.num_bytes >= 31 * 17
        else:
            assert size.num_bytes >= pixels.nbytes
    assert decoders.image_size(file[:20]) is None


def test_the_size_of_a_jpeg_is_found_behind_long_segments_and_stray_bytes():
    file = opencv_file(photo(), "jpeg")
    segment, short = b"\xff\xe1\xff\xff" + bytes(65533), b"\xff\xe1\x00\x04ab"
    for before in (segment * 3, short + b"\x00stray\xff\x00bytes", b"\xff\xff\xff", b"\xff\xd0"):
        cell = file[:2] + before + file[2:]
        assert decoders.image_size(cell).shape == (96, 80, 3)
    assert decoders.image_size(file[:2] + b"\xff\xda" + file[2:]) is None
    assert decoders.image_size(file[:2] + b"\xff\x00" * 500_000) is None


def test_a_library_is_looked_for_once():
    assert decoders.library("no_such_library") is None
    assert decoders.library("cv2") is cv2


def test_the_conformance_check_passes():
    images = [photo(24, 16), photo()[40:64, 30:46]]
    check_codec(CompressedImageCodec("png"), Field("x", np.uint8, (24, 16, 3)), images)
    check_codec(CompressedImageCodec("png"), Field("x", np.uint8, (None, None, 3)), [*images, photo(3, 4)])
    check_codec(
        CompressedImageCodec(), Field("x", np.uint16, (24, None)), [i[..., 0].astype(np.uint16) for i in images]
    )

    def near(decoded, value):
        return decoded.shape == value.shape and np.abs(decoded.astype(int) - value).mean() < 12

    check_codec(CompressedImageCodec("jpeg", 95), Field("x", np.uint8, (24, 16, 3)), images, same=near)


@pytest.mark.parametrize(
    ("pixels", "said"),
    [
        (np.zeros((4, 4, 4), np.uint8), r"\(H, W\) or \(H, W, 3\), got \(4, 4, 4\)"),
        (np.zeros((4, 4, 1), np.uint8), r"got \(4, 4, 1\)"),
        (np.zeros(4, np.uint8), r"got \(4,\)"),
    ],
)
def test_only_grey_and_rgb_are_written(pixels, said):
    with pytest.raises(ValueError, match=said):
        CompressedImageCodec().encode(field_of(pixels), pixels)


def test_encoding_checks_dtype_shape_and_depth():
    with pytest.raises(ValueError, match="expects dtype uint8, got uint16"):
        CompressedImageCodec().encode(Field("x", np.uint8, (96, 80, 3)), photo().astype(np.uint16))
    with pytest.raises(ValueError, match=r"expects shape \(9, None\), got \(96, 80, 3\)"):
        CompressedImageCodec().encode(Field("x", np.uint8, (9, None)), photo())
    with pytest.raises(ValueError, match="JPEG holds 8 bits a channel, got uint16"):
        CompressedImageCodec("jpeg").encode(Field("x", np.uint16, (96, 80, 3)), photo().astype(np.uint16))


def test_names_and_defaults_are_those_of_petastorm():
    codec = CompressedImageCodec()
    assert (codec.image_codec, codec._image_codec, codec._quality) == ("png", ".png", 80)
    assert str(CompressedImageCodec("jpeg", quality=95)) == "CompressedImageCodec('jpeg', 95)"
    small, large = (len(CompressedImageCodec("jpeg", q).encode(field_of(photo()), photo())) for q in (10, 95))
    assert small < large


def test_non_contiguous_pixels_are_written_right():
    pixels = photo()[::2, ::-1]
    assert (opencv_pixels(CompressedImageCodec().encode(field_of(pixels), pixels)) == pixels).all()
