"""Keep byte ranges on a disk, for all processes of a machine and for the next run.

Made by `penstock.open(cache=...)`; `dataset` reads through it. Entries are files, and their total is kept in one shared
number (both in `cache_files`). It does not know what the bytes mean, and never deletes a file it did not write.

Special cases:
- several processes store the same key: all write, the last one stays; readers see one complete entry or the other.
- a process is killed: what it was writing is never read, and deleted when room is needed; the total is too high until
  then, never too low.
- an entry is damaged: its checksum shows it, it is deleted, and the bytes come from the source.
- the disk is full, or the folder is not writable: one warning, and nothing more is stored; existing entries are used.
- the lock is held for long (a stopped process): nothing is stored meanwhile, reading continues.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
import warnings
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pyarrow.fs import LocalFileSystem

from penstock.errors import PenstockWarning
from penstock.options import one_of
from penstock.storage.cache import ChunkCache, whole_bytes
from penstock.storage.cache_files import (
    FOLDER,
    PARTS,
    USAGE,
    BadEntry,
    CacheEntry,
    LockedUsage,
    UsageCounter,
    check_folder,
    cost_of,
    entries,
    entry_path,
    mark_folder,
    new_part,
    read_entry,
    remove_entry,
    remove_folder,
    sweep_parts,
    write_entry,
)
from penstock.storage.publish import publish_file

if TYPE_CHECKING:
    from pyarrow import Buffer

Eviction = Literal["idle", "lru", "none"]

FREE_SHARE = 0.2
"""Share of the free disk space that a cache uses if no size is given."""
_LOCK_S = 1.0
_COUNT_AGAIN_S = 60.0
"""A full cache counts its files again after this time: others may have deleted some."""
_FULL_S = 1.0
"""For this long, an entry is not tried again after one of its size was refused."""
_TOUCH_NS = 1_000_000_000
"""Uses within a second of each other are one use: recording one costs a write to the entry's inode."""


class DiskCache(ChunkCache):
    """Keeps encoded column chunks in a folder, up to `size_limit` bytes, for any number of processes at once.

    Args:
        path: Folder to use; a folder of our own is created in it at the first store, and nothing else in it is touched.
            None: the user's cache folder.
        size_limit: Bytes on disk, in whole blocks of 4 KiB, of all processes together. None: a fifth of the free space
            (including what the cache uses already) at the first store. Should be the same in all processes.
        eviction: What makes room when the limit is reached. "idle": entries that were not used since this object was
            created, least recently used first; so other datasets make room, and a dataset larger than the limit keeps
            the part that came first instead of thrashing. "lru": the least recently used of all. "none": nothing.

    Raises:
        PlanError: an unknown eviction, or a limit that is not a positive number.
        NotADirectoryError: `path` is a file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        size_limit: float | None = None,
        *,
        eviction: Eviction = "idle",
    ) -> None:
        one_of("eviction", eviction, ("idle", "lru", "none"))
        place = user_cache_folder() if path is None else os.path.abspath(os.path.expanduser(os.fspath(path)))
        if os.path.exists(place) and not os.path.isdir(place):
            raise NotADirectoryError(f"a cache needs a folder, but {place!r} is a file; choose another path")
        self.path = place
        self.eviction = eviction
        self._limit = None if size_limit is None else whole_bytes(size_limit)
        self._folder = os.path.join(place, FOLDER)
        self._since_ns = time.time_ns()
        self._ready = False
        self._off = False
        self._victims: deque[CacheEntry] = deque()
        self._counted_at = -_COUNT_AGAIN_S
        self._refused: tuple[int, float] = (0, 0.0)
        self._made: set[str] = set()
        super().__init__()

    def __repr__(self) -> str:
        limit = "a fifth of the free disk" if self._limit is None else self._limit
        return f"DiskCache({self.path!r}, size_limit={limit}, eviction={self.eviction!r})"

    def __reduce__(self) -> Any:
        return partial(type(self), eviction=self.eviction), (self.path, self._limit)

    def _reset_locks(self) -> None:
        super()._reset_locks()
        self._ledger = UsageCounter(os.path.join(self._folder, USAGE))
        self._warning_lock = threading.Lock()

    @property
    def size_limit(self) -> int:
        """Most bytes on disk."""
        if self._limit is None:
            folder = self.path
            while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
                folder = os.path.dirname(folder)
            free = shutil.disk_usage(folder).free
            self._limit = max(1, int(FREE_SHARE * (free + (self._ledger.peek() or 0))))
        return self._limit

    @property
    def used_bytes(self) -> int:
        """Bytes of all entries on disk now, counted file by file."""
        return sum(entry.cost for entry in entries(self._folder))

    # -- reading ------------------------------------------------------------------------------------------------------

    def load(self, key: str) -> Buffer | None:
        """Return the checked bytes of `key`, or None; takes no lock, one read. Marks the entry as used."""
        path = entry_path(self._folder, key)
        try:
            data, used_ns = read_entry(path, key)
        except BadEntry:
            self._count(damaged=1)
            self.drop(key)
            return None
        except OSError:  # not there, or not readable
            return None
        if used_ns < self._since_ns or time.time_ns() - used_ns > _TOUCH_NS:
            with contextlib.suppress(OSError):  # read-only, or just deleted
                os.utime(path)
        return data

    def drop(self, key: str) -> None:
        """Delete the entry of `key`, if it exists and can be deleted."""
        path = entry_path(self._folder, key)
        with contextlib.suppress(OSError), self._ledger.hold(_LOCK_S) as account:
            _write_off(account, remove_entry(path))

    # -- storing ------------------------------------------------------------------------------------------------------

    def store(self, key: str, data: Buffer) -> None:
        """Keep the bytes if there is room, or room can be made; costs one write and two short locks at most."""
        if self._off:
            return
        try:
            self._store(key, data)
        except FileNotFoundError:
            self._ready = False  # the folder was deleted meanwhile; the next store creates it again
        except OSError as exc:
            self._give_up(exc)

    def _store(self, key: str, data: Buffer) -> None:
        path, cost = entry_path(self._folder, key), cost_of(data.size)
        least, until = self._refused
        if (cost >= least and time.monotonic() < until) or os.path.exists(path):
            return
        if not self._ready:
            made_parent = check_folder(self._folder)
            with self._ledger.hold(_LOCK_S) as account:
                if account is not None:
                    mark_folder(self._folder, made_parent=made_parent)
                    _write_off(account, sweep_parts(self._folder)[1])
                    self._ready = True
        if cost > self.size_limit:
            return
        part = self._reserve(cost) if self._ready else None
        if part is None:
            self._count(refused=1)
            return
        try:
            write_entry(part, key, data)
            if os.path.exists(path):  # another process was faster; two would count twice
                self._release(part, cost)
                return
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(path))
            publish_file(LocalFileSystem(), part, path)
        except BaseException:
            self._release(part, cost)
            raise
        self._made.add(key)
        self._count(stored=1, stored_bytes=data.size)

    def _reserve(self, cost: int) -> str | None:
        """Add an entry to the total and return the file to write it to, or None if there is no room."""
        with self._ledger.hold(_LOCK_S) as account:
            if account is None:
                return None
            if account.used is None:
                self._recount(account)
            if self._over(account, cost):
                self._evict(account, cost)
                # Counting again finds what others deleted, and new entries to evict: always under "lru", else rarely.
                due = time.monotonic() - self._counted_at >= _COUNT_AGAIN_S
                if self._over(account, cost) and (due or self.eviction == "lru"):
                    self._recount(account)
                    self._evict(account, cost)
            if self._over(account, cost):
                self._refused = cost, time.monotonic() + _FULL_S
                return None
            account.write((account.used or 0) + cost)
            return new_part(self._folder, cost)

    def _over(self, account: LockedUsage, cost: int) -> bool:
        return (account.used or 0) + cost > self.size_limit

    def _release(self, part: str, cost: int) -> None:
        """Delete a part and subtract it from the total, unless another process did because it seemed abandoned."""
        try:
            with self._ledger.hold(_LOCK_S) as account:
                os.unlink(part)
                _write_off(account, cost)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(part)

    def _give_up(self, exc: OSError) -> None:
        with self._warning_lock:
            if self._off:
                return
            self._off = True
        warnings.warn(
            f"the cache in {self.path} cannot be written ({exc}); its entries are used, but nothing more is stored: "
            "free some space there, or choose another folder",
            PenstockWarning,
            stacklevel=2,
        )

    # -- making room: all of it under the lock ------------------------------------------------------------------------

    def _recount(self, account: LockedUsage) -> None:
        """Count all files, and list those that may be evicted, least recently used first."""
        total, _ = sweep_parts(self._folder)  # first: one that is moved meanwhile counts twice, not never
        may_go = []
        before_ns = {"none": 0, "idle": self._since_ns, "lru": sys.maxsize}[self.eviction]
        for entry in entries(self._folder):
            total += entry.cost
            if entry.used_ns < before_ns:
                may_go.append(entry)
        self._victims = deque(sorted(may_go))
        self._counted_at = time.monotonic()
        account.write(total)

    def _evict(self, account: LockedUsage, cost: int) -> None:
        used = account.used or 0
        while self._victims and used + cost > self.size_limit:
            victim = self._victims.popleft()
            with contextlib.suppress(OSError):  # gone, or (on Windows) being read
                if os.stat(victim.path, follow_symlinks=False).st_mtime_ns == victim.used_ns:
                    os.unlink(victim.path)
                    used -= victim.cost
                    self._count(evicted=1)
        if used != account.used:
            account.write(used)

    # -- deleting -----------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Delete all entries of this folder, by whatever process, and the folders that were created for them.

        What other processes write meanwhile may stay. Files and folders that no cache created are kept.
        """
        self._delete([entry.path for entry in entries(self._folder)])

    def clear_own(self) -> None:
        """Delete the entries that this object has stored, and then our empty folders."""
        made, self._made = self._made, set()
        self._delete([entry_path(self._folder, key) for key in made])

    def _delete(self, paths: list[str]) -> None:
        if not os.path.isdir(os.path.join(self._folder, PARTS)):
            return
        with self._ledger.hold(_LOCK_S) as account:
            freed = 0
            for path in paths:
                with contextlib.suppress(OSError):
                    freed += remove_entry(path)
            _write_off(account, freed + sweep_parts(self._folder)[1])
            self._victims.clear()
            self._ready = False
            if account is not None:
                remove_folder(self._folder)


def _write_off(account: LockedUsage | None, cost: int) -> None:
    if account is not None and account.used is not None and cost:
        account.write(account.used - cost)


def user_cache_folder() -> str:
    """Return the folder for Penstock's caches of this user, by the rules of the platform; creates nothing."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser("~\\AppData\\Local")
        return os.path.join(base, "penstock", "Cache")
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Caches/penstock")
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG standard says to ignore a relative path.
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "penstock")
