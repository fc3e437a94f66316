"""Measure how well the shuffled order mixes a dataset that is sorted by label, and draw it.

1,000 row groups of 1,000 rows, 100 labels in order: the hardest case for a shuffle. For several numbers of lanes and
sizes of the shuffle buffer, and for a true permutation: how many row groups a batch of 256 draws from with world 1, how
many labels it has and how uneven they are, and the rank correlation of position and index for 20 seeds. Computes plans
only and reads no data.

What the figures mean: the size of the buffer, not the number of lanes, decides how many row groups a batch draws from,
up to the 226 of a true permutation; lanes make sure that with a small buffer too a batch draws from as many row groups
as there are lanes. The rank correlation is that of the permuted chunks, about 1/sqrt(row groups), for any buffer.

Datasets with large row groups, which are read in parts, and other libraries: `large_row_groups`.

Run: `python bench/shuffle_quality.py` prints the table; `--write docs` also writes docs/shuffle_quality.md and its
plots.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import large_row_groups
import numpy as np

from penstock.plan import Cursor, Order, Share, choose_lanes, plan_epoch

if TYPE_CHECKING:
    from numpy.typing import NDArray

GROUPS, ROWS, LABELS, BATCH, SEEDS = 1000, 1000, 100, 256, 20
TOTAL = GROUPS * ROWS
LANES = (1, 8, 24, 48, 96, 192, 250)
BUFFERS = (16_000, 48_000, 96_000, 192_000, 384_000, 500_000, 768_000)
LIMIT = 4 / GROUPS**0.5


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Figures of one order: means over batches and seeds, except `least_groups` and `correlation`."""

    lanes: int
    buffer_rows: int
    """Rows of the shuffle buffer; 0 for a true permutation."""
    block: int
    groups: float
    """Distinct row groups in a full batch."""
    least_groups: int
    """The fewest in any full batch of any seed."""
    labels: float
    """Distinct labels in a full batch."""
    unevenness: float
    """Half the sum of |share of a label in the batch - 1/100|: 0 is even, 1 is one label."""
    correlation: float
    """The largest |rank correlation| of position and index among the seeds."""


def epoch(order: Order) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return chunk and row at every position of epoch 0."""
    share = Share(0, 1, BATCH, "drop", False)
    return plan_epoch([ROWS] * GROUPS, order=order, cursor=Cursor(0, position=0), share=share).rows(0, TOTAL)


def batches(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the full batches, one a row, each sorted."""
    return np.sort(values[: TOTAL // BATCH * BATCH].reshape(-1, BATCH), axis=1)


def distinct(sorted_batches: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many different values each batch has."""
    return 1 + (sorted_batches[:, 1:] != sorted_batches[:, :-1]).sum(axis=1)


def unevenness(labels: NDArray[np.int64]) -> float:
    """Return the mean distance of the batches' label counts from even ones."""
    at = np.arange(len(labels))[:, None] * LABELS + labels
    shares = np.bincount(at.reshape(-1), minlength=len(labels) * LABELS).reshape(-1, LABELS) / BATCH
    return float(np.abs(shares - 1 / LABELS).sum(axis=1).mean() / 2)


def correlation(index: NDArray[np.int64]) -> float:
    """Return Spearman's rank correlation of position and index; each is its own rank."""
    position = np.arange(TOTAL) - (TOTAL - 1) / 2
    return float((position * (index - (TOTAL - 1) / 2)).sum() / (position * position).sum())


def measure(lanes: int, buffer_rows: int) -> Quality:
    """Return the figures over all seeds for one number of lanes and one size of the buffer; 0: a true permutation."""
    block = (
        choose_lanes([ROWS] * GROUPS, row_bytes=1, shuffle_bytes=buffer_rows, lanes=lanes).block
        if buffer_rows
        else TOTAL
    )
    seen = []
    for seed in range(SEEDS):
        chunk, row = epoch(Order("lanes", seed, lanes, block))
        labels = batches(chunk * LABELS // GROUPS)
        groups = distinct(batches(chunk))
        seen.append(
            (groups.mean(), groups.min(), distinct(labels).mean(), unevenness(labels), correlation(chunk * ROWS + row))
        )
    groups_mean, least, labels_mean, uneven, correlations = map(np.array, zip(*seen, strict=True))
    return Quality(
        lanes=lanes,
        buffer_rows=buffer_rows,
        block=block,
        groups=float(groups_mean.mean()),
        least_groups=int(least.min()),
        labels=float(labels_mean.mean()),
        unevenness=float(uneven.mean()),
        correlation=float(np.abs(correlations).max()),
    )


def all_cases() -> list[Quality]:
    """Return the figures of every buffer that holds two row groups per lane, and of a true permutation."""
    pairs = [(lanes, rows) for lanes in LANES for rows in BUFFERS if 2 * lanes * ROWS <= rows]
    return [*(measure(lanes, rows) for lanes, rows in pairs), measure(1, 0)]


def table(cases: list[Quality]) -> str:
    """Return the figures as a Markdown table."""
    head = ["lanes", "buffer, rows", "block, rows", "row groups in a batch", "fewest", "labels in a batch"]
    head += ["label unevenness", f"largest rank correlation, {SEEDS} seeds"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---:|" * len(head)]
    for c in cases:
        name = f"{c.buffer_rows:,}" if c.buffer_rows else "all: a true permutation"
        lines.append(
            f"| {c.lanes} | {name} | {c.block:,} | {c.groups:.1f} | {c.least_groups} | {c.labels:.1f} "
            f"| {c.unevenness:.3f} | {c.correlation:.3f} |"
        )
    return "\n".join(lines)


def draw(cases: list[Quality], path: Path) -> None:
    """Draw row groups in a batch and label unevenness against the buffer, one line for each number of lanes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    true = cases[-1]
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.88, len(LANES)))
    for lanes, colour in zip(LANES, colours, strict=True):
        own = [c for c in cases[:-1] if c.lanes == lanes]
        style = {"color": colour, "label": f"{lanes} lane{'s' * (lanes > 1)}", "marker": "o", "markersize": 4}
        axes[0].plot([c.buffer_rows for c in own], [c.groups for c in own], **style)
        axes[1].plot([c.buffer_rows for c in own], [c.unevenness for c in own], **style)
    for axis, value in zip(axes, (true.groups, true.unevenness), strict=True):
        ticks = {rows: f"{rows // 1000}k" for rows in BUFFERS}
        large_row_groups.finish(axis, value, "shuffle buffer, rows of 1,000,000", ticks, rotation=45)
    axes[0].set_title("row groups in a batch of 256 (more is better)")
    axes[1].set_title("label unevenness of a batch (less is better)")
    axes[0].legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)


TEXT = """# Shuffle quality

How well does `shuffle=True` mix rows if the shuffle buffer holds only a part of the dataset? This page measures the
hardest case, data that is *sorted by label*, read in batches of 256 with world 1. `python bench/shuffle_quality.py
--write docs` computes every figure, in a few minutes, from plans alone: no data is read.

## Large row groups

Spark writes row groups of 128 MB by default: 7,419 pictures of 18 KB. A buffer of 1 GiB holds eight of them, so if row
groups are read whole, a batch has rows of eight row groups. That is why Penstock reads
[parts](how_it_works.md#parts-of-row-groups) of such row groups, here of 100 rows. 200 row groups, 26 GB, 100 labels:

![Row groups and labels in a batch against memory, by library](img/large_row_groups.png)

{large}

*Penstock, whole row groups* is `parts=False`. The largest rank correlation of a row's stored position and its position
in the epoch is {parts_correlation:.3f} with parts, {whole_correlation:.3f} without.

The orders of the other libraries are simulated in `bench/large_row_groups.py`, from their documentation and source.
Where we ran the libraries themselves (`datasets` 5.2 and `mosaicml-streaming` 0.13, with 256 MiB and 1 GiB), the
figures were the same within 7%.

- *Hugging Face* `datasets` shuffles the order of the files (40 of five row groups) and permutes a buffer of as many
  rows as fit the memory (`IterableDataset.shuffle(buffer_size=)`), which ten files at a time fill. The ten row groups
  that it has open besides are not counted.
- *MosaicML Streaming* needs a copy of the dataset in its own format, here with shards of 64 MiB. The rows of one
  `shuffle_block_size` take the given memory; it keeps them on its local disk instead, where its default of 262,144 rows
  would take 4.7 GB.

A plan has the figure for your dataset: `print(ds.plan(batch_size=256, shuffle=True))`. Files without an offset index,
which pyarrow writes by default, need `penstock index --beside URL` once, or `parts=True`; see
[which row groups have parts](how_it_works.md#parts-of-row-groups).

## Small row groups

1,000 row groups of 1,000 rows, too small to be divided, 100 labels of ten row groups each:

![Row groups in a batch and label unevenness against the size of the shuffle buffer](img/shuffle_quality.png)

{table}

*buffer* is the size of the shuffle buffer (`shuffle_bytes`) in rows. The table has all combinations in which the
buffer holds at least two row groups per lane.

How to read the columns:

- **Row groups in a batch**: how many of the 1,000 row groups the rows of a batch come from. A true permutation
  reaches {true.groups:.0f} of them with batches of 256. The size of the buffer decides, not the number of lanes: with
  {mid_rows:,} rows, a tenth of the dataset, a batch already draws from {mid_low:.0f} to {mid_high:.0f} row groups.
  What lanes add is locality (each rank reads only its own lanes), an even load, and a lower bound: a batch draws from
  at least as many row groups as there are lanes.
- **Labels in a batch, label unevenness**: unevenness is half the sum of |share of a label - 1/100|. A batch with a
  single label would have 0.99; a true permutation has {true.unevenness:.3f}, by chance alone.
- **Rank correlation** of a row's stored position and its position in the epoch, the largest of {seeds} seeds. Row
  groups are permuted first, so the correlation is that of 1,000 shuffled things, about 1/sqrt(1,000) = 0.03, for any
  buffer. Tests require less than 4/sqrt(1,000) = {limit:.3f} for every seed. A true permutation of all rows has about
  0.001.

The order does not depend on ranks, workers or the memory of the run, so the figures hold for every world. With *W*
ranks and *L* lanes, a batch of one rank draws from the rank's L/W lanes; the *W* batches of a step together draw from
as many row groups as one batch of *W* times 256 rows. `print(ds.plan(...))` shows the figure for your dataset and
world, and warns if it is below 8 row groups and clearly below that of a true permutation, which it shows beside it.
Where row groups are read in parts, it still counts row groups, not parts.

If `lanes` is at most a quarter of the number of row groups, every full batch draws from at least min(lanes, 256) row
groups (`tests/plan/test_quality.py`), because lanes are different parts of the permuted rows. There is one exception,
which needs an explicit `lanes=` of about 230 to 249 *and* a buffer about as large as the dataset. One block then
covers most of its lane, and two neighbouring lanes may draw from the row group that both contain a part of: between
one batch in thirty and one in several thousand draws from one to six row groups fewer than there are lanes. Such a
batch is still mixed about as well as one of a true permutation, which draws from {true.groups:.0f}.
"""


def write(cases: list[Quality], docs: Path) -> None:
    """Write docs/shuffle_quality.md and its plots."""
    (docs / "img").mkdir(parents=True, exist_ok=True)
    draw(cases, docs / "img" / "shuffle_quality.png")
    large, large_true = large_row_groups.all_cases()
    large_row_groups.draw(large, large_true, docs / "img" / "large_row_groups.png")
    whole, parts = (max(one.correlation for one in large[name]) for name in list(large)[:2])
    mid = [c.groups for c in cases if c.buffer_rows == 96_000]
    text = TEXT.format(
        table=table(cases),
        large=large_row_groups.table(large, large_true),
        whole_correlation=whole,
        parts_correlation=parts,
        true=cases[-1],
        mid_rows=96_000,
        mid_low=min(mid),
        mid_high=max(mid),
        seeds=SEEDS,
        limit=LIMIT,
    )
    (docs / "shuffle_quality.md").write_text(text, encoding="utf-8")


def main() -> None:
    """Print the table; with --write also the page and the plots."""
    parser = argparse.ArgumentParser(description="Measure how well the shuffled order mixes.")
    parser.add_argument(
        "--write", type=Path, metavar="DOCS", help="folder to write shuffle_quality.md and its plots to"
    )
    arguments = parser.parse_args()
    cases = all_cases()
    print(table(cases))
    if arguments.write:
        write(cases, arguments.write)


if __name__ == "__main__":
    main()
