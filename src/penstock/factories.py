"""What the loader functions of torch, TensorFlow, JAX and Petastorm's readers do alike: from arguments to a loader.

They take a dataset, a URL, a loader or a mix, and the keywords of `penstock.keywords`; what is particular to a
framework stays there. Makes loaders of NumPy batches only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.api import Dataset, load, open
from penstock.engine.base_loader import BaseLoader
from penstock.engine.loader import Loader
from penstock.errors import PlanError
from penstock.keywords import OPENING, FrameworkKeywords, check_keywords
from penstock.openers import check_path
from penstock.options import LoaderOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.plan.order import Grouping


def dataset_and_options(
    dataset_or_url: Any, batch_size: int | None, options: FrameworkKeywords, *, function: Callable[..., Any], owner: str
) -> tuple[Dataset, LoaderOptions]:
    """Return the dataset and the checked options that a framework's loader was given.

    A URL (or whatever else `penstock.open` takes) is opened; a dataset is narrowed to `columns` and `filters`.

    Raises:
        TypeError: A keyword that is not in the signature of `function`, which messages call `owner`; no `batch_size`;
            data or a stream instead of a dataset or URL.
        PlanError: `storage_options` or `filesystem` for a dataset that is open already.
    """
    given = check_keywords(options, function, owner=owner)
    if not isinstance(dataset_or_url, Dataset):
        check_path(dataset_or_url)
    if batch_size is None:
        raise TypeError(f"{owner}() needs batch_size=, the rows of a batch on each rank")
    opening = {name: value for name in OPENING if (value := given.pop(name, None)) is not None}
    checked = LoaderOptions(batch_size=batch_size, **given)
    if not isinstance(dataset_or_url, Dataset):
        return open(dataset_or_url, **opening), checked
    dataset, columns, filters = dataset_or_url, opening.pop("columns", None), opening.pop("filters", None)
    for name in opening:
        raise PlanError(f"{name}= is for opening a URL; the dataset is open already: give it to penstock.open")
    dataset = dataset if filters is None else dataset.where(filters)
    return dataset if columns is None else dataset.select(columns), checked


def loader_for(  # noqa: PLR0913 -- what the factories of frameworks were given
    source: Any,
    batch_size: int | None,
    options: FrameworkKeywords,
    *,
    function: Callable[..., Any],
    owner: str,
    change: Callable[[LoaderOptions], LoaderOptions] = lambda given: given,
) -> BaseLoader:
    """Return the loader of NumPy batches for what a framework's loader was given: a dataset, a URL, a loader or a mix.

    `change` fills in what the framework knows, such as rank and world.

    Raises:
        TypeError: As `dataset_and_options`; or a batch size or options beside a loader or mix.
    """
    if isinstance(source, BaseLoader):
        given = [*(["batch_size"] if batch_size is not None else []), *options]
        if given:
            raise TypeError(
                f"{owner}() was given a {type(source).__name__}, which has batch size, order and columns of its own; "
                f"leave out {', '.join(f'{name}=' for name in given)}, or give it the dataset"
            )
        return source
    dataset, checked = dataset_and_options(source, batch_size, options, function=function, owner=owner)
    return load(dataset, change(checked))


def make_loader(ds: Dataset, options: LoaderOptions, items: Grouping, **how: Any) -> Loader:
    """Return a loader of other items than rows; `how` are fields of `penstock.engine.inputs.Inputs`."""
    return Loader(replace(ds.inputs(items), **how), options)
