"""What the functions of `etl` take for a dataset, and its files.

Petastorm passed `pyarrow.parquet.ParquetDataset` around; here a URL or a list of them, a `penstock.Dataset`, its
source, and any pyarrow dataset with `files` and a `filesystem` will do. Gives the files in the order that row groups
are numbered by. Writes nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from penstock.api import Dataset
from penstock.dataset.catalog import DataFile, FileCatalog
from penstock.dataset.common_metadata import COMMON_METADATA, SUMMARY_METADATA
from penstock.dataset.footers import read_footer
from penstock.dataset.parquet import as_parquet, open_parquet
from penstock.petastorm.fs_utils import checked_url, normalize_dataset_url_or_urls
from penstock.schema.stored import find_schema
from penstock.storage.store import has_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.schema import Unischema
    from penstock.source import Source


def files_at(
    dataset_url_or_urls: Any, *, storage_options: Mapping[str, Any] | None = None, filesystem: Any = None
) -> list[DataFile]:
    """Return the data files at a URL or at several; ValueError for anything that is not a URL."""
    urls = _urls(dataset_url_or_urls, filesystem)
    return FileCatalog(urls, storage_options, filesystem).entries()


def files_of(dataset: Any) -> list[DataFile]:
    """Return the data files of a dataset in any of these forms; TypeError lists the forms."""
    if isinstance(dataset, Dataset):
        return list(as_parquet(dataset.source).entries)
    if isinstance(dataset, str | os.PathLike | list | tuple):
        return files_at(dataset)
    if hasattr(dataset, "files") and hasattr(dataset, "filesystem"):
        return FileCatalog(list(dataset.files), filesystem=dataset.filesystem).entries()
    raise TypeError(
        f"a dataset is a URL or a list of them, a penstock.Dataset or a pyarrow dataset; got {type(dataset).__name__}"
    )


def source_of(dataset: Any) -> Source:
    """Return the source of a dataset in any of these forms; opens it if necessary."""
    if isinstance(dataset, Dataset):
        return dataset.source
    if isinstance(dataset, str | os.PathLike | list | tuple):
        return open_parquet(_urls(dataset, None))
    files = files_of(dataset)
    return open_parquet([file.path for file in files], filesystem=files[0].root.fs)


def source_at(
    dataset_url_or_urls: Any, *, schema: Unischema, storage_options: Mapping[str, Any] | None, filesystem: Any
) -> Source:
    """Return the source at a URL, read by a schema of choice; SchemaError where that does not fit the files."""
    urls = _urls(dataset_url_or_urls, filesystem)
    return open_parquet(urls, storage_options=storage_options, filesystem=filesystem, schema=schema, as_root=True)


def stored_schema(files: list[DataFile]) -> Unischema | None:
    """Return the schema that is stored with a dataset, ours or Petastorm's; None if there is none.

    Looks into `_common_metadata`, `_metadata` and the first file, in this order: three small reads at most.

    Raises:
        MetadataError: It is damaged, or names something that is not allowed.
        BadFile: One of the three cannot be read.
    """
    root = files[0].root
    beside = [DataFile(root, name, None) for name in (COMMON_METADATA, SUMMARY_METADATA)]
    for file in [*(file for file in beside if has_file(root.store, file.path)), files[0]]:
        found = find_schema(read_footer(file).arrow.metadata, path=file.path)
        if found is not None:
            return found
    return None


def _urls(dataset_url_or_urls: Any, filesystem: Any) -> Any:
    """Return what `FileCatalog` takes; a path without a scheme is accepted only together with a filesystem."""
    if isinstance(dataset_url_or_urls, os.PathLike):
        return dataset_url_or_urls
    urls = normalize_dataset_url_or_urls(dataset_url_or_urls)
    if filesystem is not None:
        return urls
    return checked_url(urls) if isinstance(urls, str) else [checked_url(url) for url in urls]
