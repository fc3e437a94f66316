"""Make a `pyarrow.fs` filesystem of an fsspec one, whose errors are not swallowed.

pyarrow's own handler asks fsspec by `isdir`, `isfile`, `exists` and `find`, which answer "no" or leave folders out when
a request fails: a dataset would lose files silently, and a writer would take an existing dataset for a free place.
Here every question goes to `info` and `ls`, is repeated while the store is unavailable (`faults.attempt`), and fails if
the store does. Only a path that the store says does not exist counts as not there. Knows nothing of Parquet.
"""

# ruff: noqa: D102 -- pyarrow's FileSystemHandler describes the methods

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pyarrow.fs import FileInfo, FileType, FSSpecHandler

from penstock.storage.faults import T, attempt

if TYPE_CHECKING:
    from collections.abc import Callable


class RaisingHandler(FSSpecHandler):  # type: ignore[misc] # pyarrow ships no types
    """Looks up and lists through fsspec; see the module. All other operations are those of pyarrow's handler."""

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return [self._look(path) for path in paths]

    def get_file_info_selector(self, selector: Any) -> list[FileInfo]:
        base = selector.base_dir
        found = self._below(base) if selector.recursive else self._inside(base)
        if not found:  # an empty folder, a file, or nothing: listings do not tell them apart on all stores
            kind = self._look(base).type
            if kind == FileType.NotFound and not selector.allow_not_found:
                raise FileNotFoundError(base)
            if kind == FileType.File:
                raise NotADirectoryError(base)
        return [self._create_file_info(info["name"], info) for info in found]

    def delete_file(self, path: str) -> None:
        self._require_file(path)
        self.fs.rm(path)

    def open_input_file(self, path: str) -> Any:
        from pyarrow import PythonFile

        self._require_file(path)
        return PythonFile(self.fs.open(path, mode="rb"), mode="r")

    open_input_stream = open_input_file

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self._request(path, lambda: FSSpecHandler.open_output_stream(self, path, metadata))

    def _request(self, path: str, request: Callable[[], T]) -> T:
        return attempt(request, str(getattr(self.fs, "unstrip_protocol", str)(path)))

    def _look(self, path: str) -> FileInfo:
        try:
            return self._create_file_info(path, self._request(path, lambda: self.fs.info(path)))
        except FileNotFoundError:
            return FileInfo(path, FileType.NotFound)

    def _require_file(self, path: str) -> None:
        if self._look(path).type != FileType.File:
            raise FileNotFoundError(path)

    def _inside(self, folder: str) -> list[dict[str, Any]]:
        """Return what lies in a folder; nothing if there is no such folder: object stores have no empty ones."""
        try:
            found = self._request(folder, lambda: self.fs.ls(folder, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return []
        # A file is listed as itself, and stores mark folders by objects of the same name.
        return [info for info in found if info["name"].strip("/") != folder.strip("/")]

    def _below(self, folder: str) -> list[dict[str, Any]]:
        """Return everything below a folder, folders included."""
        # The clients of object stores list all of it by one request. What fsspec itself has for the others goes from
        # folder to folder and omits those that cannot be listed.
        if not inspect.unwrap(self.fs.find).__module__.startswith("fsspec."):
            found = self._request(folder, lambda: self.fs.find(folder, withdirs=True, detail=True))
            return [info | {"name": name} for name, info in found.items() if name.strip("/") != folder.strip("/")]
        entries = self._inside(folder)
        for info in entries:  # grows meanwhile
            if info["type"] == "directory":
                entries += self._inside(info["name"])
        return entries
