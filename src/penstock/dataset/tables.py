"""Recognise Delta, Iceberg and Hudi tables, and refuse to open them as plain Parquet.

Such a table is Parquet files plus a log that says which files, and which of their rows, belong to the table. Read as
plain Parquet it would also give rows that were deleted or replaced. `catalog` passes the names that it has listed, and
asks to check folders above. The log itself is not read: it is enough that it exists.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from pyarrow.fs import FileSystem, FileType

from penstock.errors import UnsupportedFormat
from penstock.storage.filesystem import list_folder, look

if TYPE_CHECKING:
    from collections.abc import Iterable

_TRACES = {
    "Delta": re.compile(r"(?:(.*)/)?_delta_log/[^/]+\.(?:json|checkpoint\.(?:\d+\.\d+\.)?parquet)"),
    "Iceberg": re.compile(r"(?:(.*)/)?metadata/[^/]+\.metadata\.json(?:\.gz)?"),
    # The second file lies in every partition folder, whatever that is called.
    "Hudi": re.compile(r"(?:(.*)/)?(?:\.hoodie/hoodie\.properties|\.hoodie_partition_metadata)"),
}
_LOGS = ("_delta_log", "metadata", ".hoodie", ".hoodie_partition_metadata")
_HINTS = re.compile(r"_delta_log/|\.metadata\.json|\.hoodie")
"""Matches a part of every trace: a quick first test of each name of a long listing."""
_CURES = {
    "Delta": "open the files of its current version by name, penstock.open(sorted(deltalake.DeltaTable({root!r})"
    ".file_uris())), if it has no deletion vectors",
    "Iceberg": "load the table from its catalog with pyiceberg and open the files of its current snapshot by name, "
    "penstock.open(sorted(task.file.file_path for task in table.scan().plan_files())), if no task has delete_files",
    "Hudi": "write a copy with its own reader, penstock.spark.write(spark.read.format('hudi').load({root!r}), url, "
    "schema), and open that",
}


def refuse_listed(fs: FileSystem, path: str, names: Iterable[str]) -> None:
    """Raise UnsupportedFormat if the folder `path` is a table or holds one.

    `names` are relative paths of files; those of hidden local folders, which were not listed, end with a slash. Lists
    such a folder only if it may be a log.
    """
    for name in names:
        if _HINTS.search(name) is None:
            continue
        listed = _inside(fs, path, name) if name.endswith("/") else [name]
        for kind, form in _TRACES.items():
            found = next((match for match in map(form.fullmatch, listed) if match), None)
            if found is not None:
                root = posixpath.join(path, found[1] or "").rstrip("/")
                raise UnsupportedFormat(
                    f"{root} is {'an' if kind == 'Iceberg' else 'a'} {kind} table ({found[0]} is there): its folder "
                    f"may also hold rows that the table has deleted or replaced. Penstock does not read {kind} tables; "
                    f"{_CURES[kind].format(root=root)}; or open with "
                    'format="parquet" to read every Parquet file that is there'
                )


def refuse_above(fs: FileSystem, folder: str) -> None:
    """Raise UnsupportedFormat if a folder that was not listed is a table; costs one request for its logs.

    Files of an Iceberg table are in its folder `data`, so that its log is beside a folder of that name.
    """
    for path in (folder, posixpath.dirname(folder)) if posixpath.basename(folder) == "data" else (folder,):
        names: list[str] = []
        for name, info in zip(_LOGS, look(fs, [posixpath.join(path, name) for name in _LOGS]), strict=True):
            if info.type == FileType.Directory:
                names += _inside(fs, path, f"{name}/")
            elif info.type == FileType.File:
                names.append(name)
        refuse_listed(fs, path, names)


def _inside(fs: FileSystem, path: str, folder: str) -> list[str]:
    return [f"{folder}{info.base_name}" for info in list_folder(fs, posixpath.join(path, folder.rstrip("/")))]
