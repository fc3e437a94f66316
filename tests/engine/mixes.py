"""What the tests of mixing share: three small datasets, and a mix of some of them.

Ids tell where a row comes from: 0.. of the first dataset, 1000.. of the second, 2000.. of the third. Holds no tests.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import penstock
from penstock.testing import make_parquet

SIZES = (23, 17, 40)


def three_sets(folder):
    """Three datasets of the same columns."""

    def columns_from(start):
        return lambda rows: {"id": pa.array(rows + start), "half": pa.array((rows / 2).astype(np.float32))}

    return [
        penstock.open(make_parquet(folder / str(i), [(5, size - 5)], columns=columns_from(1000 * i)))
        for i, size in enumerate(SIZES)
    ]


def make(sets, *, weights=(3, 2, 1), seed=7, stop="first", missing="error", each=({}, {}, {}), **options):
    options = {"batch_size": 4, "shuffle": True, "workers": 1} | options
    loaders = [ds.loader(**options | more) for ds, more in zip(sets, each, strict=False)]
    return penstock.mix(list(zip(loaders, weights, strict=False)), seed=seed, stop=stop, missing=missing)


def run(mix):
    """One pass: the source and the ids of each batch."""
    return [(mix.source, batch["id"].tolist()) for batch in mix]


def alone(ds, **options):
    with ds.loader(**{"batch_size": 4, "shuffle": True} | options) as loader:
        return [batch["id"].tolist() for batch in loader]
