"""The demo: write real pictures as Parquet, read them shuffled, stop, resume exactly, and prove it.

Run by `scripts/demo`. The pictures are scikit-learn's handwritten digits, each laid over patches of two photographs;
nothing is fetched. Everything is written below `--output`: the dataset, the saved state and a contact sheet. The
proof compares row ids; the speed is set beside a loop written by hand for exactly these files.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

SIDE = 128  # pixels of a scene
GLYPH = 72  # pixels of the digit in it
SCENES = 2  # scenes of each digit
THREADS = 2  # of the loader and of the loop by hand
BATCH, OTHER_BATCH, SEED = 64, 100, 7

SCHEMA = Unischema(
    "Scenes",
    [
        UnischemaField("id", np.int32, (), ScalarCodec(), False),
        UnischemaField("digit", np.uint8, (), ScalarCodec(), False),
        UnischemaField("photograph", np.str_, (), ScalarCodec(), False),
        UnischemaField("scene", np.uint8, (SIDE, SIDE, 3), CompressedImageCodec("jpeg", quality=90), False),
        UnischemaField("mask", np.uint8, (GLYPH, GLYPH), CompressedImageCodec("png"), False),
        UnischemaField("strokes", np.float32, (8, 8), NdarrayCodec(), False),
    ],
)


def main() -> int:
    """Run the demo; the status is 0 only if no row was lost or repeated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-output"))
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)

    heading("Write: handwritten digits on real photographs, as Parquet")
    dataset = write_scenes(output / "scenes")
    print(dataset)

    heading("Read shuffled, stop in the middle of an epoch, resume")
    exact = show_resume(dataset, output / "state.json")

    heading("Speed")
    show_speed(dataset, output / "scenes")

    sheet = output / "contact_sheet.png"
    contact_sheet(dataset, sheet)
    print(f"\nOne shuffled batch as a picture: {sheet}")
    return 0 if exact else 1


def heading(text: str) -> None:
    """Print a line that starts a part of the report."""
    print(f"\n--- {text} {'-' * (94 - len(text))}")


# -- writing ---------------------------------------------------------------------------------------------------------


def write_scenes(folder: Path) -> penstock.Dataset:
    """Write the dataset and open it."""
    began = time.perf_counter()
    written = penstock.write(scenes(), folder, SCHEMA, row_group_bytes=1 << 20, rows_per_file=600, overwrite=True)
    print(f"{written.rows:,} rows, {written.bytes / 1e6:.1f} MB in {time.perf_counter() - began:.1f} s\n")
    return penstock.open(folder)


def scenes() -> Iterator[dict[str, Any]]:
    """Yield the rows, the same in every run: each digit over a few patches, at a place and in a colour of its own."""
    from sklearn.datasets import load_digits, load_sample_images

    digits, photographs = load_digits(), load_sample_images()
    names = [Path(name).stem for name in photographs.filenames]
    rng = np.random.default_rng(0)
    row = 0
    for strokes, digit in zip(digits.images.astype(np.float32), digits.target, strict=True):
        mask = enlarge(strokes)
        for _ in range(SCENES):
            which = int(rng.integers(len(names)))
            scene = lay_over(patch(photographs.images[which], rng), mask, rng)
            yield {
                "id": np.int32(row),
                "digit": np.uint8(digit),
                "photograph": names[which],
                "scene": scene,
                "mask": mask,
                "strokes": strokes,
            }
            row += 1


def enlarge(strokes: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return an 8x8 digit of 0..16 as a smooth mask of 0..255."""
    from PIL import Image

    small = Image.fromarray((strokes * 255 / 16).astype(np.uint8))
    smooth = np.asarray(small.resize((GLYPH, GLYPH), Image.Resampling.BICUBIC), np.float32)
    return np.clip((smooth - 70) * 2.2, 0, 255).astype(np.uint8)  # steeper edges read as strokes of a pen


def patch(photograph: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return a random square of the photograph."""
    top, left = (int(rng.integers(n - SIDE)) for n in photograph.shape[:2])
    return photograph[top : top + SIDE, left : left + SIDE].astype(np.float32)


def lay_over(ground: NDArray[np.float32], mask: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return the patch, darkened, with the digit in a light colour somewhere on it."""
    top, left = rng.integers(SIDE - GLYPH, size=2)
    ink = rng.uniform(200, 255, 3).astype(np.float32)
    alpha = mask[..., None].astype(np.float32) / 255
    ground *= min(0.85, 90 / float(ground.mean()))  # light ink shows on the sky too
    window = ground[top : top + GLYPH, left : left + GLYPH]
    window += (ink - window) * alpha
    return np.clip(ground, 0, 255).astype(np.uint8)


# -- stopping and resuming -------------------------------------------------------------------------------------------


def ids(batches: Iterable[dict[str, Any]]) -> NDArray[np.int32]:
    """Return the row ids of the batches, in order."""
    return np.concatenate([batch["id"] for batch in batches])


def show_resume(dataset: penstock.Dataset, state_file: Path) -> bool:
    """Stop, save, resume in a new loader with another batch size; print the proof and tell whether it holds."""
    with dataset.loader(batch_size=BATCH, shuffle=True, seed=SEED) as loader:
        stop = len(loader) * 2 // 5
        before = ids(itertools.islice(loader, stop))
        state_file.write_text(json.dumps(loader.state_dict()))
    print(f"stopped after {stop} batches of {BATCH}; all there is to save:\n  {state_file.read_text()}")

    with dataset.loader(batch_size=OTHER_BATCH, shuffle=True, seed=SEED) as loader:
        loader.load_state_dict(json.loads(state_file.read_text()))
        after = ids(loader)
    print(f"resumed in a new loader with batches of {OTHER_BATCH}\n")
    return print_proof(dataset, before, after)


def print_proof(dataset: penstock.Dataset, before: NDArray[np.int32], after: NDArray[np.int32]) -> bool:
    """Print what was seen before and after the stop beside a run that never stopped."""
    with dataset.loader(batch_size=BATCH, shuffle=True, seed=SEED, epochs=2) as loader:
        unbroken, next_epoch = np.split(ids(loader), [len(dataset)])
    seen = np.concatenate([before, after])
    counts = np.bincount(seen, minlength=len(dataset))
    facts = {
        f"{len(before):,} rows before + {len(after):,} after = {len(seen):,} of {len(dataset):,}": len(seen)
        == len(dataset),
        f"rows lost: {np.sum(counts == 0)}, rows repeated: {np.sum(counts > 1)}": bool((counts == 1).all()),
        "same order as a run that never stopped": bool(np.array_equal(seen, unbroken)),
        "the next epoch has another order": not np.array_equal(unbroken, next_epoch),
    }
    for fact, holds in facts.items():
        print(f"  [{'ok' if holds else 'NO'}] {fact}")
    return all(facts.values())


# -- speed -----------------------------------------------------------------------------------------------------------


def show_speed(dataset: penstock.Dataset, folder: Path) -> None:
    """Print rows a second of the loader and of the loop by hand: medians of five epochs, taken in turn."""
    by_hand, ours = [], []
    for epoch in range(5):
        by_hand.append(seconds(read_by_hand, folder, epoch, len(dataset)))
        ours.append(seconds(read_by_penstock, folder, epoch, len(dataset)))
    limit, reached = (len(dataset) / median(times) for times in (by_hand, ours))
    print(f"  least work by hand  {limit:>8,.0f} rows/s   {THREADS} threads, everything in memory, no generality")
    print(f"  penstock            {reached:>8,.0f} rows/s   {THREADS} threads, shuffled, resumable, opening included")
    print(f"  share of the limit  {reached / limit:>8.0%}")


def seconds(read: Callable[[Path, int], int], folder: Path, epoch: int, num_rows: int) -> float:
    """Return the seconds of one epoch; one that gave other rows ends the demo."""
    began = time.perf_counter()
    if read(folder, epoch) != num_rows:
        sys.exit("rows are missing: the figures would mean nothing")
    return time.perf_counter() - began


def read_by_penstock(folder: Path, epoch: int) -> int:
    """Read one shuffled epoch; return the number of rows."""
    with penstock.open(folder).loader(batch_size=BATCH, shuffle=True, seed=epoch, workers=THREADS) as loader:
        return sum(len(batch["id"]) for batch in loader)


def read_by_hand(folder: Path, epoch: int) -> int:
    """Read, shuffle and decode these very files with as little work as we know; return the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with ThreadPoolExecutor(THREADS) as pool:
        files = sorted(folder.glob("*.parquet"))
        table = pa.concat_tables(pool.map(lambda file: pq.read_table(file, use_threads=False), files)).combine_chunks()
        memory = {
            name: [b and np.frombuffer(b, np.uint8) for b in table[name].chunk(0).buffers()] for name in SCHEMA.fields
        }
        names = table["photograph"].to_numpy()
        order = np.random.default_rng(epoch).permutation(len(table))
        batches = (order[i : i + BATCH] for i in range(0, len(order), BATCH))
        return sum(pool.map(lambda rows: decode_by_hand(memory, names, rows), batches))


def decode_by_hand(memory: dict[str, list[Any]], names: NDArray[Any], rows: NDArray[np.int64]) -> int:
    """Decode one batch of every column, straight from Arrow's memory."""
    import imagecodecs
    import simplejpeg

    scene = np.empty((len(rows), SIDE, SIDE, 3), np.uint8)
    mask = np.empty((len(rows), GLYPH, GLYPH), np.uint8)
    jpegs, pngs = (memory[name][1].view(np.int32) for name in ("scene", "mask"))
    for index, row in enumerate(rows.tolist()):
        simplejpeg.decode_jpeg(memory["scene"][2][jpegs[row] : jpegs[row + 1]], buffer=scene[index])
        imagecodecs.png_decode(memory["mask"][2][pngs[row] : pngs[row + 1]], out=mask[index])
    cells = memory["strokes"][2].reshape(len(names), -1)[rows]  # a header and 64 floats each
    strokes = np.ascontiguousarray(cells[:, -256:]).view(np.float32).reshape(-1, 8, 8)
    numbers = [memory["id"][1].view(np.int32)[rows], memory["digit"][1].view(np.int16)[rows].astype(np.uint8)]
    batch = [scene, mask, strokes, *numbers, names[rows]]
    return len(batch[-1])


# -- the picture -----------------------------------------------------------------------------------------------------

GROUND, TEXT, QUIET = (17, 20, 26), (236, 238, 242), (128, 136, 150)
PALETTE = ["#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac"]
COLUMNS, ROWS, GAP, MARGIN, CAPTION = 8, 4, 12, 28, 26


def contact_sheet(dataset: penstock.Dataset, file: Path) -> None:
    """Draw the first batch of a shuffled epoch: every scene with its digit, its photograph and its row."""
    from PIL import Image, ImageDraw, ImageFont

    with dataset.loader(batch_size=COLUMNS * ROWS, shuffle=True, seed=SEED) as loader:
        batch = next(iter(loader))
    step = (SIDE + GAP, SIDE + CAPTION + GAP)
    top = MARGIN + 58
    sheet = Image.new("RGB", (2 * MARGIN + COLUMNS * step[0] - GAP, top + ROWS * step[1] - GAP + MARGIN), GROUND)
    draw = ImageDraw.Draw(sheet)
    large, small = ImageFont.load_default(size=24), ImageFont.load_default(size=13)
    draw.text((MARGIN, MARGIN - 6), "One shuffled batch", TEXT, large)
    told = f"{len(batch['id'])} of {len(dataset):,} rows, decoded from Parquet by Penstock, seed {SEED}"
    draw.text((MARGIN, MARGIN + 26), told, QUIET, small)
    for index in range(len(batch["id"])):
        x, y = MARGIN + index % COLUMNS * step[0], top + index // COLUMNS * step[1]
        digit = int(batch["digit"][index])
        sheet.paste(Image.fromarray(batch["scene"][index]), (x, y))
        draw.rectangle((x, y + SIDE, x + SIDE - 1, y + SIDE + 3), PALETTE[digit])
        draw.text((x, y + SIDE + 8), f"{digit}", TEXT, small)
        draw.text((x + 18, y + SIDE + 8), str(batch["photograph"][index]), QUIET, small)
        draw.text((x + SIDE - 1, y + SIDE + 8), f"{batch['id'][index]}", QUIET, small, anchor="ra")
    sheet.save(file, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
