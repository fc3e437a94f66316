"""The benchmark's workloads, as values: which dataset, how it is read, and what share of the limit is wanted.

Shared by `limit.py` (the least work by hand), `ours.py` (Penstock) and `run.py` (both in pairs). Holds no code that is
measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Case:
    """One workload."""

    name: str
    """What `--workload` takes."""
    title: str
    """What the table says."""
    dataset: str
    """Folder below the data, as `data.py` makes it."""
    batch_size: int = 64
    shuffle: bool = True
    epochs: int = 1
    """Epochs of one measured run, opening included; several, where one is too short to measure."""
    aim: float
    """Share of the limit that is wanted."""
    face: Literal["native", "rows", "frames", "torch", "workers", "tensorflow", "jax"] = "native"
    """Who reads: `Dataset.loader`, `make_reader` row by row, `make_batch_reader` with a pandas identity, the loader of
    a framework, or torch's own `DataLoader` with two worker processes."""

    @property
    def framework(self) -> str | None:
        """The framework that it needs."""
        return {"torch": "torch", "workers": "torch", "tensorflow": "tensorflow", "jax": "jax"}.get(self.face)


CASES = (
    Case(name="jpeg", title="6,000 JPEGs of 256x256, shuffled", dataset="p_jpeg", epochs=2, aim=0.85),
    Case(
        name="npy",
        title="60,000 28x28 `.npy` cells, shuffled",
        dataset="p_mnist",
        batch_size=1000,
        epochs=10,
        aim=0.5,
    ),
    Case(
        name="png",
        title="60,000 28x28 PNG cells, shuffled",
        dataset="p_mnistpng",
        batch_size=1000,
        epochs=2,
        aim=0.85,
    ),
    Case(name="cloud", title="8,000 (4096, 3) float32 `.npy` cells, shuffled", dataset="p_lidar", epochs=3, aim=0.6),
    Case(
        name="hello", title="2,000 rows of a noise PNG and a 4-d array, shuffled", dataset="p_hello", epochs=3, aim=0.6
    ),
    Case(
        name="table",
        title="2,000,000 rows x 40 scalar columns, as stored",
        dataset="table",
        batch_size=4096,
        shuffle=False,
        epochs=3,
        aim=0.85,
    ),
    Case(
        name="table-shuffled",
        title="2,000,000 rows x 40 scalar columns, shuffled",
        dataset="table",
        batch_size=4096,
        epochs=3,
        aim=0.4,
    ),
    Case(
        name="wide",
        title="200,000 rows x 1,000 scalar columns, as stored",
        dataset="wide",
        batch_size=4096,
        shuffle=False,
        epochs=3,
        aim=0.5,
    ),
    Case(
        name="npy-rows",
        title="28x28 `.npy` cells, `make_reader`, a named tuple a row",
        dataset="p_mnist",
        epochs=5,
        aim=0.2,
        face="rows",
    ),
    Case(
        name="jpeg-rows",
        title="JPEGs of 256x256, `make_reader`, a named tuple a row",
        dataset="p_jpeg",
        epochs=2,
        aim=0.8,
        face="rows",
    ),
    Case(
        name="table-frames",
        title="40 scalar columns, `make_batch_reader`, a pandas identity",
        dataset="table",
        shuffle=False,
        epochs=3,
        aim=0.5,
        face="frames",
    ),
    *(
        Case(
            name=f"jpeg-{face}",
            title=f"JPEGs of 256x256, shuffled, {words}",
            dataset="p_jpeg",
            epochs=4,  # worker processes and TensorFlow take half a second to start
            aim=aim,
            face=face,
        )
        for face, words, aim in (
            ("torch", "PyTorch tensors", 0.85),
            ("workers", "torch's `DataLoader(num_workers=2)`", 0.7),
            ("tensorflow", "`tf.data`", 0.75),
            ("jax", "JAX arrays", 0.8),
        )
    ),
    Case(
        name="table-torch",
        title="2,000,000 rows x 40 scalar columns, shuffled, PyTorch tensors",
        dataset="table",
        batch_size=4096,
        epochs=3,
        aim=0.4,
        face="torch",
    ),
    Case(name="open", title="3,678 small files, opened", dataset="small_files", epochs=0, shuffle=False, aim=0.5),
)
"""All workloads; `epochs=0` opens the dataset and reads nothing."""


def find(name: str) -> Case:
    """Return the case called `name`."""
    known = {case.name: case for case in CASES}
    if name not in known:
        raise SystemExit(f"no workload {name!r}; there are: {', '.join(known)}")
    return known[name]
