"""Measure a dataset of your own: `penstock bench URL --batch-size 256 --framework torch`.

Reads the dataset like a training loop, alternating with a minimal hand-written loop (`Limit`), and prints both rates
with the report of the loader. Opens what `penstock.open` opens and writes nothing.
"""

from penstock.bench.measure import FRAMEWORKS, Limit, Result, Workload, measure

__all__ = ["FRAMEWORKS", "Limit", "Result", "Workload", "measure"]
