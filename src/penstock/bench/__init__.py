"""Measure a dataset of your own: `penstock bench URL --batch-size 256 --framework torch`.

Reads the dataset as a training loop would, in turn with a loop written by hand that does the least work (`limit`), and
prints both beside each other with the loader's report. Opens what `penstock.open` opens and writes nothing.
"""

from penstock.bench.limit import Limit
from penstock.bench.measure import FRAMEWORKS, Result, Workload, measure

__all__ = ["FRAMEWORKS", "Limit", "Result", "Workload", "measure"]
