"""Read column chunks through a cache, which keeps their bytes as stored.

`read` opens a row group here if the dataset has a cache. The footer says where the column chunks are; those in the
cache are taken from it, the others are read from the store and cached. The key of an entry contains the version of the
file, which is requested once before its first bytes are used, so that a file that was written again is never confused
with its predecessor. Decodes nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.dataset.read import FileTouched, StoredRowGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.cache import ChunkCache
    from penstock.storage.store import Range


@dataclass(frozen=True, slots=True)
class CachedFiles:
    """Opens the files of one dataset through a cache; safe for threads."""

    cache: ChunkCache
    _digests: dict[int, bytes] = field(default_factory=dict)
    """Identity of each file, once its version was requested: a digest of path, size, version and footer."""

    def open(self, group: StoredRowGroup, names: Sequence[str]) -> Any:
        """Return a file object with these columns of the row group in memory, to be read by pyarrow and closed.

        Reads from the store only what is not cached.

        Raises:
            FileChanged: the file is not the one that was opened.
            FileTouched: it was touched or written again meanwhile.
            FileNotFoundError: it is gone.
        """
        wanted = self._wanted(group, names)
        ranges = [*wanted.values()]
        try:
            data = self.cache.fetch([*wanted], lambda missing: group.fetch([ranges[index] for index in missing]))
        except FileTouched:
            self._digests.pop(id(group.file), None)
            raise
        return group.over({start: buffer for (start, _), buffer in zip(ranges, data, strict=True)})

    def forget(self, group: StoredRowGroup, names: Sequence[str]) -> None:
        """Drop these columns of the row group from the cache: they could not be decoded."""
        for key in self._wanted(group, names):
            self.cache.drop(key)

    def fetch(self, group: StoredRowGroup, ranges: Sequence[Range]) -> Sequence[Any]:
        """Return the bytes of ranges of a file; see `open`. Ranges that overlap are kept more than once."""
        keys = self._keys(group, ranges)
        try:
            return self.cache.fetch(keys, lambda missing: group.fetch([ranges[index] for index in missing]))
        except FileTouched:
            self._digests.pop(id(group.file), None)
            raise

    def forget_ranges(self, group: StoredRowGroup, ranges: Sequence[Range]) -> None:
        """Drop ranges of a file from the cache."""
        for key in self._keys(group, ranges):
            self.cache.drop(key)

    def _keys(self, group: StoredRowGroup, ranges: Sequence[Range]) -> list[str]:
        digest = self._look(group)
        places = (f"{start}:{stop}".encode() for start, stop in ranges)
        return [hashlib.blake2b(digest + place, digest_size=16).hexdigest() for place in places]

    def _wanted(self, group: StoredRowGroup, names: Sequence[str]) -> dict[str, Range]:
        """Return the keys of these columns, and the ranges of their bytes."""
        digest, leaves = self._look(group), group.index.chunks.leaves
        wanted = {}
        for leaf, (start, stop) in group.ranges(names).items():
            place = f"{group.number}:{start}:{stop}:{leaves[leaf].path}".encode("utf-8", "surrogateescape")
            wanted[hashlib.blake2b(digest + place, digest_size=16).hexdigest()] = start, stop
        return wanted

    def _look(self, group: StoredRowGroup) -> bytes:
        """Return the identity of a file; one request to the store for each file."""
        digest = self._digests.get(id(group.file))  # the dataset holds its files as long as this object
        if digest is None:
            fs, path = group.file.root.fs, group.file.path
            found = group.file.root.store.stat(path)
            if found.size is not None and found.size != group.size:
                raise group.resized(found.size)
            if found.version != group.seen.identity:
                group.check()
            sums = hashlib.blake2b(digest_size=16)
            place = f"{fs.type_name}://{path}".encode("utf-8", "surrogateescape")
            for part in (place, str(group.size).encode(), found.lasting_version.encode(), group.index.raw):
                sums.update(len(part).to_bytes(8, "little"))
                sums.update(part)
            digest = self._digests[id(group.file)] = sums.digest()
        return digest
