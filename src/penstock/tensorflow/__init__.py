"""Batches as a `tf.data.Dataset`: the loader of a dataset, ready for `model.fit` and every transformation of tf.data.

Takes NumPy batches of `Dataset.loader` and hands them to TensorFlow without a copy where memory allows, one call into
Python a batch and none a row. The order, ranks and state are the engine's. Shapes, dtypes and the number of batches are
known before anything is read; docs/types.md tells what each type becomes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.api import Dataset
from penstock.api import open as open_dataset
from penstock.errors import PlanError
from penstock.nulls import check_nulls
from penstock.options import WINDOW_BYTES

try:
    import tensorflow  # noqa: F401 -- the parts below need it
except ImportError:
    raise ImportError("penstock.tensorflow needs TensorFlow: pip install 'penstock[tensorflow]'") from None

from penstock.tensorflow._dataset import Batches, Delivery, make_batches
from penstock.tensorflow._host import rank_and_world
from penstock.tensorflow._static import OWNER, Look, Wanted, forms_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Literal

    from penstock.options import Function, OnError, Pool, Remainder, Shuffle, Window
    from penstock.schema.transform import TransformSpec

    Nulls = Literal["mask", "error"] | Iterable[str]

__all__ = ["Batches", "Delivery", "loader"]


def loader(  # noqa: PLR0913 -- a public factory takes flat keywords
    dataset_or_url: Dataset | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    batch_size: int,
    shuffle: Shuffle = False,
    seed: int = 0,
    epochs: int | None = 1,
    drop_last: bool = False,
    rank: int | None = None,
    world: int | None = None,
    remainder: Remainder = "drop",
    transform: Function | Sequence[Function] | TransformSpec | None = None,
    window: Window | None = None,
    pool: Pool = "thread",
    workers: int | None = None,
    memory_bytes: int | None = None,
    window_bytes: int = WINDOW_BYTES,
    lanes: int | None = None,
    on_error: OnError = "raise",
    skip_limit: int | None = None,
    pad: Any = None,
    columns: Iterable[Any] | None = None,
    filters: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    nulls: Nulls = "mask",
    element_spec: Mapping[str, Any] | None = None,
) -> Batches:
    """Return a `tf.data.Dataset` of dicts of tensors, in the same order as `Dataset.loader` with the same options.

    Options that are not told of here are those of `Dataset.loader`. Numbers and booleans keep their dtype; text, bytes
    and decimals become strings, dates and times int64 nanoseconds, rows of variable shape `tf.RaggedTensor`s. Maps and
    lists of structs have no tensor form and are refused here. The dataset also has `state_dict`, `load_state_dict`,
    `stats`, `skipped`, `plan`, `close` and `with`; see `Batches`.

    Args:
        dataset_or_url: An open dataset, or what `penstock.open` takes.
        batch_size: Rows of a batch on each rank. Static in the spec where every batch is full (`drop_last=True`).
        shuffle: See `Dataset.loader`, as for all options up to `pad`.
        seed: Picks the order.
        epochs: Epochs of one iteration over the dataset; None for ever. `model.fit(epochs=n)` iterates n times.
        drop_last: Leave out a last batch that is not full.
        rank: This process's part; default: the worker of `TF_CONFIG` where there is one, else as `Dataset.loader`.
        world: Number of parts.
        remainder: Rows that do not divide by `world`.
        transform: Function of NumPy batches, or a `TransformSpec`. One small batch goes through it when the loader is
            made, to find the spec; give `element_spec` to spare that.
        window: Windows over time.
        pool: "thread", "process" or "serial".
        workers: Threads or processes.
        memory_bytes: Bytes for window, reads and batches in flight.
        window_bytes: Shuffle window of the whole job.
        lanes: Lanes of the shuffled order.
        on_error: "raise" or "skip".
        skip_limit: Most rows skipped.
        pad: Fill for columns of variable shape: they become dense tensors.
        columns: Columns to choose, as `penstock.open` takes them.
        filters: Rows to keep, as `Dataset.where` takes them.
        storage_options: For a URL's filesystem.
        filesystem: A filesystem to use instead of the URL's.
        nulls: "mask": a column that may hold nulls (by its field, and by the footers' counts) comes filled (0, False,
            NaN, empty), with a column `<name>_valid` beside it that is True where there is a value. Names of columns:
            these and no others. "error": none; a null is an error.
        element_spec: Name to `tf.TensorSpec` or `tf.RaggedTensorSpec` of every column of a batch, for transforms whose
            shapes vary. `<name>_valid` beside a column asks for its mask; `nulls` is left out then. Numbers are
            converted where all fit, and are an error where one does not.

    Raises:
        PlanError: Options that contradict each other.
        UnsupportedType: A column without a tensor form.
        ColumnNotFound: `nulls` or `element_spec` names a column that no batch has.
        TransformError: The transform gives no columns.
    """
    dataset = _opened(dataset_or_url, columns, filters, storage_options, filesystem)
    rank, world = rank_and_world(rank, world)
    look = Look(batch_size, drop_last, remainder, transform, window, on_error, pad)
    host = dataset.loader(
        **look.options, shuffle=shuffle, seed=seed, epochs=epochs, rank=rank, world=world, pool=pool, workers=workers,
        memory_bytes=memory_bytes, window_bytes=window_bytes, lanes=lanes, skip_limit=skip_limit,
    )  # fmt: skip
    forms = forms_of(dataset, host, Wanted(check_nulls(nulls, None, owner=OWNER), element_spec, look))
    full = drop_last and on_error == "raise" and dataset._late is None
    return make_batches(host, forms, batch_size if full else None)


def _opened(
    source: Any, columns: Iterable[Any] | None, filters: Any, storage_options: Mapping[str, Any] | None, filesystem: Any
) -> Dataset:
    if not isinstance(source, Dataset):
        return open_dataset(
            source, columns=columns, filters=filters, storage_options=storage_options, filesystem=filesystem
        )
    if storage_options is not None or filesystem is not None:
        raise PlanError("storage_options and filesystem are for opening a URL; this dataset is open already")
    chosen = source if columns is None else source.select(columns)
    return chosen if filters is None else chosen.where(filters)
