"""How well a reader shuffles: the correlation between stored order and delivered order.

Makes a dataset of numbered rows and reads any dataset that has a number column. docs/shuffle_quality.md measures the
orders of Penstock itself in more ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs import ScalarCodec
from penstock.schema import Unischema, UnischemaField
from penstock.write import write

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["compute_correlation_distribution", "generate_shuffle_analysis_dataset"]

_SCHEMA = Unischema("ShuffleAnalysis", [UnischemaField("id", np.int64, (), ScalarCodec("int64"), False)])
_ROW_BYTES = 8 + 1
"""Of an int64, as `penstock.write` counts a row."""


def generate_shuffle_analysis_dataset(
    spark: Any,  # noqa: ARG001
    output_dataset_url: str,
    num_rows: int = 1000,
    row_group_size: int = 100,
) -> None:
    """Write a dataset of one column `id`, 0 to `num_rows`, in row groups of `row_group_size` rows. Needs no Spark."""
    rows = {"id": np.arange(num_rows)}
    write(rows, output_dataset_url, _SCHEMA, row_group_bytes=_ROW_BYTES * row_group_size, overwrite=True)


def compute_correlation_distribution(
    dataset_url: str, id_column: str, shuffle_row_drop_partitions: int, num_corr_samples: int = 100
) -> tuple[float, float]:
    """Return mean and standard deviation of the absolute correlation of stored and delivered order.

    1 means that nothing is shuffled; a true permutation of n rows has about 0.8 / sqrt(n). Reads the dataset once as
    stored and `num_corr_samples` times shuffled, with the seeds 1, 2, ...: equal datasets give equal numbers.
    """
    stored = _ids(dataset_url, id_column, shuffle_row_groups=False)
    found = [
        abs(float(np.corrcoef(stored, shuffled)[0, 1]))
        for shuffled in (
            _ids(dataset_url, id_column, seed=seed, shuffle_row_drop_partitions=shuffle_row_drop_partitions)
            for seed in range(1, num_corr_samples + 1)
        )
    ]
    return float(np.mean(found)), float(np.std(found))


def _ids(dataset_url: str, id_column: str, **options: Any) -> NDArray[Any]:
    from penstock.petastorm.reader import make_reader

    with make_reader(dataset_url, schema_fields=[id_column], reader_pool_type="dummy", **options) as reader:
        return np.array([getattr(row, id_column) for row in reader])
