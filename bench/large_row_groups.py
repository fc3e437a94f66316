"""Compare shuffles of a dataset with large row groups at equal memory, and draw it.

200 row groups of 7,419 rows of 18 KB, as Spark writes pictures by default (128 MB, pages of 100 rows), sorted by label.
Penstock's orders, with and without parts, come from its own plan. The others are simulated from the documentation and
source of the libraries, for one process that reads the same rows:

- `datasets` of Hugging Face, version 5.2, `IterableDataset.shuffle(buffer_size=)`: the order of the files is permuted;
  a buffer is filled from ten files in turn (`max_buffer_input_shards`) and permuted; one half of it is returned, and
  replaced by the next rows. What it holds of the ten row groups that are open is not counted.
- MosaicML Streaming, which needs a copy of the data in its own format, with shards of 64 MiB: shards are permuted, and
  rows permuted in blocks of 0.75 to 1.25 times `shuffle_block_size` (`py1br`), or each row is moved by a random
  distance so that the rows of a shard cover at most that much (`py1e`, its default). The rows of one block are what has
  to be at hand at once, on its disk.

`bench/shuffle_quality.py --write docs` puts the figures into docs/shuffle_quality.md. Run by itself it prints them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from penstock.dataset.parts import LeafFacts, PartFacts, part_borders
from penstock.plan import Cursor, Order, Share, choose_lanes, plan_epoch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

GROUPS, ROWS, PAGE_ROWS, ROW_BYTES, LABELS, BATCH, SEEDS = 200, 7419, 100, 18_000, 100, 256, 3
TOTAL = GROUPS * ROWS
MEMORY = tuple(1 << shift for shift in range(26, 32))
"""Bytes of the buffer: 64 MiB to 2 GiB."""
FILE_GROUPS = 5
"""Row groups of a file."""
OPEN_FILES = 10
"""Files that fill the buffer of Hugging Face in turn."""
SHARD_ROWS = (64 << 20) // ROW_BYTES

Index: TypeAlias = "NDArray[np.int64]"


class Mixing(NamedTuple):
    """Figures of one shuffle with one size of the buffer: means over batches and seeds."""

    groups: float
    """Row groups that a batch draws from."""
    labels: float
    """Labels in a batch."""
    correlation: float
    """The largest |rank correlation| of stored position and position in the epoch."""


def with_parts(num_bytes: int, seed: int) -> Index:
    """Return the stored index of the row at every position: Penstock's order over parts of row groups."""
    leaf = LeafFacts(ROWS * ROW_BYTES, -(-ROWS // PAGE_ROWS), 0)
    return _lanes(part_borders(PartFacts(ROWS, ROWS * ROW_BYTES, [leaf])), num_bytes, seed)


def with_whole_row_groups(num_bytes: int, seed: int) -> Index:
    """Return the same for `parts=False`."""
    return _lanes(np.array([0, ROWS], np.int64), num_bytes, seed)


def _lanes(borders: Index, num_bytes: int, seed: int) -> Index:
    starts = (np.arange(GROUPS)[:, None] * ROWS + borders[:-1]).reshape(-1)
    counts, parts = np.tile(np.diff(borders), GROUPS), len(borders) > 2
    chosen = choose_lanes(counts, row_bytes=ROW_BYTES, shuffle_bytes=num_bytes, lanes=None, parts=parts)
    order = Order("lanes", seed, chosen.lanes, chosen.block, parts)
    share = Share(0, 1, BATCH, "drop", drop_last=False)
    chunk, row = plan_epoch(counts, order=order, cursor=Cursor(0, position=0), share=share).rows(0, TOTAL)
    return starts[chunk] + row


def with_a_buffer(num_bytes: int, seed: int) -> Index:
    """Return the same for a buffer that is filled from several files, permuted, and emptied by half (Hugging Face)."""
    rng, size = np.random.default_rng(seed), num_bytes // ROW_BYTES
    files = rng.permutation(np.arange(TOTAL).reshape(-1, FILE_GROUPS * ROWS))
    inputs = files.reshape(OPEN_FILES, -1)
    each = size // OPEN_FILES
    turns = [inputs[:, first : first + each].reshape(-1) for first in range(0, inputs.shape[1], each)]
    found, buffer = [], np.empty(0, np.int64)
    for turn in np.split(np.concatenate(turns), range(size, TOTAL, size - size // 2)):
        buffer = rng.permutation(np.concatenate([buffer, turn]))
        kept = size // 2 if len(buffer) >= size else 0
        found.append(buffer[kept:])
        buffer = buffer[:kept]
    return np.concatenate([*found, buffer])


def with_blocks(num_bytes: int, seed: int) -> Index:
    """Return the same for permuted shards and rows permuted in blocks (MosaicML, py1br)."""
    rng, size = np.random.default_rng(seed), num_bytes // ROW_BYTES
    stream = _permuted_shards(rng)
    lengths = rng.integers(int(0.75 * size), int(1.25 * size), TOTAL * 2 // size + 2)
    return np.concatenate([rng.permutation(block) for block in np.split(stream, np.cumsum(lengths)) if len(block)])


def with_spread_shards(num_bytes: int, seed: int) -> Index:
    """Return the same for permuted shards and rows moved by random distances (MosaicML, py1e)."""
    rng, size = np.random.default_rng(seed), num_bytes // ROW_BYTES
    stream = _permuted_shards(rng)
    shard = np.arange(TOTAL) // SHARD_ROWS
    most = np.maximum(0, (rng.integers(int(0.75 * size), int(1.25 * size), shard[-1] + 1) - SHARD_ROWS) / 2)[shard]
    return stream[np.argsort(np.arange(TOTAL) + rng.uniform(-most, most))]


def _permuted_shards(rng: np.random.Generator) -> Index:
    shards = np.split(np.arange(TOTAL), np.arange(SHARD_ROWS, TOTAL, SHARD_ROWS))
    return np.concatenate([rng.permutation(shards[number]) for number in rng.permutation(len(shards))])


def with_a_true_permutation(num_bytes: int, seed: int) -> Index:  # noqa: ARG001 -- takes all memory there is
    """Return the same for a permutation of all rows."""
    return np.random.default_rng(seed).permutation(TOTAL)


SHUFFLES: dict[str, Callable[[int, int], Index]] = {
    "Penstock, whole row groups": with_whole_row_groups,
    "Penstock, parts": with_parts,
    "Hugging Face, buffer": with_a_buffer,
    "Mosaic, blocks (`py1br`)": with_blocks,
    "Mosaic, default (`py1e`)": with_spread_shards,
}


def mixing_of(index: Index) -> Mixing:
    """Return the figures of one epoch."""
    position = np.arange(TOTAL) - (TOTAL - 1) / 2
    correlation = abs(float((position * (index - (TOTAL - 1) / 2)).sum() / (position * position).sum()))
    return Mixing(_distinct(index // ROWS), _distinct(index * LABELS // TOTAL), correlation)


def _distinct(values: Index) -> float:
    batches = np.sort(values[: TOTAL // BATCH * BATCH].reshape(-1, BATCH), axis=1)
    return float(1 + (batches[:, 1:] != batches[:, :-1]).sum(axis=1).mean())


def measure(shuffle: Callable[[int, int], Index], num_bytes: int) -> Mixing:
    """Return the means over all seeds, and the largest rank correlation."""
    groups, labels, correlations = zip(*(mixing_of(shuffle(num_bytes, seed)) for seed in range(SEEDS)), strict=True)
    return Mixing(float(np.mean(groups)), float(np.mean(labels)), max(correlations))


Cases: TypeAlias = "dict[str, list[Mixing]]"


def all_cases() -> tuple[Cases, Mixing]:
    """Return the figures of every shuffle, by size of the buffer, and those of a true permutation."""
    cases = {name: [measure(shuffle, size) for size in MEMORY] for name, shuffle in SHUFFLES.items()}
    return cases, measure(with_a_true_permutation, 0)


def table(cases: Cases, true: Mixing) -> str:
    """Return row groups and labels in a batch as a Markdown table."""
    sizes = [f"{size >> 20} MiB" if size < 1 << 30 else f"{size >> 30} GiB" for size in MEMORY]
    lines = [f"| row groups / labels in a batch | {' | '.join(sizes)} |", "|---|" + "---:|" * len(MEMORY)]
    for name, row in cases.items():
        lines.append(f"| {name} | " + " | ".join(f"{one.groups:.1f} / {one.labels:.1f}" for one in row) + " |")
    lines.append("| true permutation | " + " | ".join(f"{true.groups:.1f} / {true.labels:.1f}" for _ in MEMORY) + " |")
    return "\n".join(lines)


def draw(cases: Cases, true: Mixing, path: Path) -> None:
    """Draw row groups and labels in a batch against the size of the buffer, one line for each shuffle."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    styles = (("tab:blue", "--"), ("tab:blue", "-"), ("tab:orange", "-"), ("tab:green", "--"), ("tab:green", "-"))
    sizes = [size >> 20 for size in MEMORY]
    for (name, row), (colour, line) in zip(cases.items(), styles, strict=True):
        style = {"color": colour, "linestyle": line, "label": name.replace("`", ""), "marker": "o", "markersize": 4}
        axes[0].plot(sizes, [one.groups for one in row], **style)
        axes[1].plot(sizes, [one.labels for one in row], **style)
    for axis, value in zip(axes, true[:2], strict=True):
        finish(axis, value, "memory, MiB, of a dataset of 26 GB", {size: str(size) for size in sizes})
    axes[0].set_title("row groups in a batch of 256 (more is better)")
    axes[1].set_title("labels of 100 in a batch of 256 (more is better)")
    axes[0].legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def finish(axis: Any, true: float, label: str, ticks: dict[int, str], rotation: int = 0) -> None:
    """Draw the figure of a true permutation, and everything around the lines."""
    axis.axhline(true, color="black", linestyle="--", linewidth=1, label="true permutation")
    axis.set_xscale("log")
    axis.set_xticks([*ticks], [*ticks.values()], rotation=rotation)
    axis.minorticks_off()
    axis.set_xlabel(label)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)


if __name__ == "__main__":
    print(table(*all_cases()))
