"""The DataFrames that this process has materialised: written once, reused for equal plans, deleted at the end.

`stored` returns the folder of a DataFrame, written now or earlier. A folder is held by the converters that use it: the
last one that is deleted deletes it, and the end of the process deletes what is left. Forked children delete nothing.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import uuid
import warnings
import weakref
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import penstock
from penstock.errors import PenstockWarning
from penstock.petastorm.spark import _frames, _places
from penstock.petastorm.spark._plans import FramePlan, UnknownPlanError, plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.petastorm.spark._frames import Settings
    from penstock.petastorm.spark._places import ConverterFolder

logger = logging.getLogger(__name__)

_SMALL_FILE_BYTES = 50 << 20
_entries: list[ConvertedFrame] = []
_deleted: set[str] = set()
"""URLs of folders that this process has deleted: waiting for their files is useless."""
_lock = threading.Lock()
_handler: Callable[[str], Any] | None = None


@dataclass(slots=True, eq=False)
class ConvertedFrame:
    """A folder with the rows of a DataFrame."""

    parent: str
    settings: Settings
    plan: FramePlan | None
    """None: it is unknown whether another DataFrame has the same rows."""
    storage_options: Mapping[str, Any] | None
    process: int = field(default_factory=os.getpid)
    writing: threading.Lock = field(default_factory=threading.Lock)
    """Held while the files are written, so that others with the same plan wait for them."""
    users: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """Converters that have not been deleted."""
    num_coming: int = 0
    """Calls that have chosen this entry, and whose converter is not among the users yet."""
    place: ConverterFolder | None = None
    """The folder, when it is complete."""
    file_urls: tuple[str, ...] = ()
    num_rows: int = 0
    lengths: Mapping[str, int] = field(default_factory=dict)
    """Length of the arrays of a column, if it is the same in all rows."""

    def serves(self, other: ConvertedFrame) -> bool:
        """Tell whether these files are what another entry would write."""
        if self.plan is None or other.plan is None or self.process != other.process:
            return False
        alike = self.parent == other.parent and self.settings == other.settings
        return alike and self.storage_options == other.storage_options and self.plan.same(other.plan)


def stored(
    df: Any, parent: ConverterFolder, settings: Settings, storage_options: Mapping[str, Any] | None
) -> ConvertedFrame:
    """Return the entry with a DataFrame's rows: one of this process that has them already, or one written now.

    Two threads with the same DataFrame write it once. The entry is reserved for a converter, for which the caller must
    call `hold`.
    """
    try:
        plan = plan_of(df)
    except UnknownPlanError as reason:
        logger.info("the DataFrame is written again, even if it was written before: %s", reason)
        plan = None
    wanted = ConvertedFrame(parent.url, settings, plan, storage_options)
    with _lock:
        entry = next((one for one in _entries if one.serves(wanted)), wanted)
        if entry is wanted:
            _delete_at_exit()
            _entries.append(entry)
        entry.num_coming += 1
    try:
        with entry.writing:
            if entry.place is None or not _places.is_made_here(entry.place):
                _fill(entry, df, parent)
            elif entry is not wanted:
                logger.info("the DataFrame was written before, with the same plan: %s is reused", entry.place.url)
    except BaseException:
        with _lock:
            entry.num_coming -= 1
            if entry in _entries and not entry.num_coming:  # others that wait for it try again themselves
                _entries.remove(entry)
        raise
    return entry


def _fill(entry: ConvertedFrame, df: Any, parent: ConverterFolder) -> None:
    """Write the files of an entry; after an error none of them is left."""
    try:
        application = str(df.sparkSession.sparkContext.applicationId)
    except Exception:  # noqa: BLE001 - Connect has no context, and each version reports that in its own way
        application = str(getattr(df.sparkSession, "session_id", "connect"))
    place = parent.below(f"{datetime.now():%Y%m%d%H%M%S}-appid-{application}-{uuid.uuid4()}")
    entry.place = None
    try:
        _places.begin(place)
        entry.lengths = _frames.write(_frames.converted(df, entry.settings.dtype), place.spark_url, entry.settings)
        names = _places.commit(place)
        entry.file_urls = tuple(place.url_of(name) for name in names)
        entry.num_rows = num_rows(entry.file_urls, entry.storage_options)
    except BaseException:
        _places.remove_new(place)
        raise
    entry.place = place
    _warn_of_small_files(place)


def num_rows(file_urls: tuple[str, ...], storage_options: Mapping[str, Any] | None) -> int:
    """Return the rows in Parquet files, by their footers; an error names a column that cannot be read."""
    return len(penstock.open(list(file_urls), storage_options=storage_options)) if file_urls else 0


def _warn_of_small_files(place: ConverterFolder) -> None:
    """Warn if there are many files that could be few: each costs a request, and its last row group is short."""
    sizes = sorted(size for size in _places.data_sizes(place))
    if len(sizes) > 1 and sizes[len(sizes) // 2] < _SMALL_FILE_BYTES <= sum(sizes) // 2:
        warnings.warn(
            f"the median file has {sizes[len(sizes) // 2] / (1 << 20):.1f} MB, below {_SMALL_FILE_BYTES >> 20} MB, and "
            f"there are {len(sizes)}; df.coalesce({max(1, sum(sizes) // _SMALL_FILE_BYTES)}) before "
            "make_spark_converter gives fewer",
            PenstockWarning,
            stacklevel=5,
        )


# -- the end ----------------------------------------------------------------------------------------------------------


def set_handler(handler: Callable[[str], Any] | None) -> None:
    """Let a function of the user delete folders, by their URL; None: the built-in way."""
    global _handler
    if handler is not None and not callable(handler):
        raise TypeError(f"a handler is a function of a URL, or None; got {handler!r}")
    _handler = handler


def hold(entry: ConvertedFrame, user: Any) -> None:
    """Record that a converter uses an entry."""
    with _lock:
        entry.users.add(user)
        entry.num_coming -= 1


def release(url: str, user: Any, storage_options: Mapping[str, Any] | None) -> None:
    """Delete the folder of a converter, unless another converter of this process uses it too."""
    with _lock:
        entry = next((one for one in _entries if one.place is not None and one.place.url == url), None)
        if entry is not None:
            entry.users.discard(user)
            if entry.users or entry.num_coming:
                logger.info("%s is kept: another converter uses it", url)
                return
            _entries.remove(entry)
    delete(_places.place_of(url, storage_options))


def delete(place: ConverterFolder) -> None:
    """Delete a folder that a converter has made; any other is kept, with a warning."""
    if _handler is not None and _places.is_made_here(place):
        _handler(place.url)
        _deleted.add(place.url)
        return
    kept = _places.remove(place)
    if kept is None:
        if not was_deleted(place.url):  # else only files of others are left, which the first call has named
            warn_of_users_folder(place.url, stacklevel=5)
        return
    _deleted.add(place.url)
    if kept:
        warnings.warn(
            f"{place.url} is kept: {len(kept)} files in it are not the converter's, {kept[0]!r} for one",
            PenstockWarning,
            stacklevel=4,
        )


def was_deleted(url: str) -> bool:
    """Tell whether this process has deleted a folder."""
    return url in _deleted


def warn_of_users_folder(url: str, *, stacklevel: int) -> None:
    """Warn that a folder is not deleted because no converter has written it."""
    warnings.warn(
        f"{url} was not written for this converter, and nothing of it was deleted; delete it yourself if you want it "
        "gone",
        PenstockWarning,
        stacklevel=stacklevel,
    )


def delete_all() -> None:
    """Delete every folder of this process; a folder that cannot be deleted is logged, the others are deleted."""
    with _lock:
        mine = [one for one in _entries if one.process == os.getpid() and one.place is not None]
        _entries.clear()
    for entry in mine:
        try:
            delete(entry.place)  # type: ignore[arg-type]
        except Exception as exc:  # noqa: BLE001 - the process ends: delete the others too
            logger.warning("could not delete %s: %s", entry.place and entry.place.url, exc)


@cache
def _delete_at_exit() -> None:
    """Register `delete_all`, with the first conversion: it runs before what the program registered earlier."""
    atexit.register(delete_all)
