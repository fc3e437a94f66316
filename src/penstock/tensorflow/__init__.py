"""Batches as a `tf.data.Dataset`: the loader of a dataset, ready for `model.fit` and every transformation of tf.data.

Takes NumPy batches of `Dataset.loader` and hands them to TensorFlow without a copy where memory allows, one call into
Python a batch and none a row. The order, ranks and state are the engine's. Shapes, dtypes and the number of batches are
known before anything is read; docs/types.md tells what each type becomes.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

from penstock.engine.rank import FoundRank, announce
from penstock.errors import PlanError
from penstock.factories import loader_for
from penstock.keywords import FrameworkKeywords, show_keywords
from penstock.nulls import check_nulls

try:
    import tensorflow  # noqa: F401 -- the parts below need it
except ImportError:
    raise ImportError("penstock.tensorflow needs TensorFlow: pip install 'penstock[tensorflow]'") from None

from penstock.tensorflow._dataset import Batches, Loader, make_batches
from penstock.tensorflow._static import OWNER, SpecOptions, forms_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.api import Dataset
    from penstock.engine.base_loader import BaseLoader
    from penstock.options import LoaderOptions

    Nulls = Literal["mask", "error"] | Iterable[str]

__all__ = ["Batches", "Loader", "loader"]


@show_keywords(FrameworkKeywords)
def loader(
    dataset_or_url: Dataset | BaseLoader | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    batch_size: int | None = None,
    nulls: Nulls = "mask",
    element_spec: Mapping[str, Any] | None = None,
    **options: Unpack[FrameworkKeywords],
) -> Batches:
    """Return a `tf.data.Dataset` of dicts of tensors, in the same order as `Dataset.loader` with the same options.

    Numbers and booleans keep their dtype; text, bytes and decimals become strings, dates and times int64 nanoseconds,
    rows of variable shape `tf.RaggedTensor`s. Maps and lists of structs have no tensor form and are refused here. The
    dataset also has `state_dict`, `load_state_dict`, `stats`, `skipped`, `plan`, `close` and `with`; see `Batches`.

    Args:
        dataset_or_url: An open dataset, or what `penstock.open` takes; or a `penstock.Loader` or `penstock.mix(...)`,
            which has its own `batch_size` and options.
        batch_size: Rows of a batch on each rank. Static in the spec where every batch is full (`drop_last=True`).
        nulls: "mask": a column that may hold nulls (by its field, and by the footers' counts) comes filled (0, False,
            NaN, empty), with a column `<name>_valid` beside it that is True where there is a value. Names of columns:
            these and no others. "error": none; a null is an error.
        element_spec: Name to `tf.TensorSpec` or `tf.RaggedTensorSpec` of every column of a batch, for transforms whose
            shapes vary. `<name>_valid` beside a column asks for its mask; `nulls` is left out then. Numbers are
            converted where all fit, and are an error where one does not.
        epochs: Epochs of one iteration over the dataset; None repeats forever. `model.fit(epochs=n)` iterates n times.
        rank: This process's part; default: the worker of `TF_CONFIG` where there is one, else as for `Dataset.loader`.
        transform: Function of NumPy batches, or a `TransformSpec`. To find the spec, one small batch is passed through
            it when the loader is made; `element_spec` avoids that.
        pad: Fill value for columns of variable shape: they become dense tensors.
        **options: The keys of `penstock.keywords.FrameworkKeywords`.

    Raises:
        PlanError: Options that contradict each other.
        UnsupportedType: A column without a tensor form.
        ColumnNotFound: `nulls` or `element_spec` names a column that no batch has.
        TransformError: The transform gives no columns.
    """

    def placed(given: LoaderOptions) -> LoaderOptions:
        rank, world = _rank_and_world(given.rank, given.world)
        return replace(given, rank=rank, world=world)

    native = loader_for(dataset_or_url, batch_size, options, function=loader, owner=OWNER, change=placed)
    forms = forms_of(native, SpecOptions(check_nulls(nulls, None, owner=OWNER), element_spec))
    return make_batches(native, forms, native.full_batches)


def _rank_and_world(rank: int | None, world: int | None) -> tuple[int | None, int | None]:
    """Return the arguments; if both are None, the place of this worker in `TF_CONFIG`, or None, None without one."""
    text = os.environ.get("TF_CONFIG")
    if rank is not None or world is not None or not text:
        return rank, world
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster", {}), config.get("task", {})
        kind, index = str(task.get("type", "")), int(task.get("index", 0))
        sizes = {name: len(cluster.get(name, ())) for name in ("chief", "master", "worker")}
    except (ValueError, TypeError, AttributeError) as error:
        raise PlanError(f"TF_CONFIG cannot be understood ({error}); pass rank= and world=") from None
    if kind not in sizes or sum(sizes.values()) < 2:
        return None, None
    before = sizes["chief"] + sizes["master"] if kind == "worker" else 0
    found = FoundRank(before + index, sum(sizes.values()), "TF_CONFIG")
    announce(found)
    return found.rank, found.world
