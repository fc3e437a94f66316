"""Recognise datasets that are still being written, or whose writer died, and say how to resume or discard them.

`write` marks unfinished datasets by the names in this module, and opening looks for them, so that such a dataset does
not open as if it were complete. Reads a few small files if there is a marker; writes nothing.

There are two forms. If folders can be renamed, everything is in a hidden folder beside the target,
`.NAME.TOKEN.writing/{data,journal}`, and `data` is renamed to the target in one step. On object stores, where renaming
means copying, files are written to the target itself, with `_penstock_writing.json` beside them until the last one is
complete; the journal is in `_penstock_writing/`. A journal has one folder per writer: `begin.json`, one file for each
checkpoint, `done.json`.

A block in which Spark itself writes (`materialize_dataset`) has a note beside the target, `.NAME.block.json`, because
Spark empties the target, and refuses one that exists. The note lists the files that were there, and the process that
will end the block.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import socket
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType

from penstock.errors import DatasetIncomplete, StoreUnavailable
from penstock.storage import is_hidden
from penstock.storage.faults import attempt
from penstock.storage.filesystem import list_folder, look
from penstock.storage.urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterable

MARKER = "_penstock_writing.json"
"""Marks a target on an object store while it is written; without it the dataset is complete."""
JOURNAL = "_penstock_writing"
"""The journal's folder in a target on a store."""
SHARED = "parts"
"""Token of the hidden folder that several writers share."""
ALONE = "alone"
"""The journal's folder of a single writer; those of several are named after their parts."""
BEGIN, DONE = "begin.json", "done.json"
_CANNOT = (OSError, NotImplementedError, pa.ArrowException, ValueError)


def note_path(path: str) -> str:
    """Return the path of the note about a block in which Spark writes the folder `path`."""
    parent, name = posixpath.split(path)
    return posixpath.join(parent, f".{name}.block.json")


_RUN = os.urandom(6).hex()


def this_process() -> list[Any]:
    """Return what identifies this process: machine, process id and a random token (containers repeat the first two)."""
    return [socket.gethostname(), os.getpid(), _RUN]


def refuse_block(fs: FileSystem, path: str, names: Iterable[str]) -> None:
    """Raise DatasetIncomplete if Spark has changed the files of a folder in a block that has not ended.

    The block's own process may read it. `names` are those of all files. Costs one request if Spark wrote the folder.
    """
    found = set(names)
    note = read_json(fs, note_path(path)) if "_SUCCESS" in found else None  # only Spark writes in blocks
    if note is None or note.get("process") == this_process():
        return
    if {name for name in found if not is_hidden(name)} != set(note["before"]):
        raise _by_spark(path, str(note["cure"]), "a block of materialize_dataset has not ended")


def hidden_name(name: str, token: str) -> str:
    """Return the name of the hidden folder in which a dataset of that name is written."""
    return f".{name}.{token}.writing"


def hidden_folders(fs: FileSystem, path: str, ending: str = "writing") -> list[str]:
    """Return the hidden folders beside `path` in which it is or was written, sorted; `ending` names another kind.

    Costs one listing of the parent folder; returns [] if that cannot be listed.
    """
    parent, name = posixpath.split(path)
    form = re.compile(re.escape(f".{name}.") + rf"([0-9a-f]{{12}}|{SHARED})\.{ending}")
    try:
        found = list_folder(fs, parent)
    except StoreUnavailable:
        raise
    except _CANNOT:
        return []
    return sorted(i.path for i in found if i.type == FileType.Directory and form.fullmatch(i.base_name))


def read_json(fs: FileSystem, path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is no such file, or it is damaged."""

    def read() -> bytes:
        with fs.open_input_stream(path) as stream:
            return bytes(stream.read())

    try:
        found = json.loads(attempt(read, url_of(fs, path)))
    except StoreUnavailable:
        raise
    except _CANNOT:
        return None
    return found if isinstance(found, dict) else None


def writers(fs: FileSystem, journal: str) -> list[str]:
    """Return the folders of a journal, one for each writer, in order."""
    return sorted(info.path for info in _listed(fs, journal) if info.type == FileType.Directory)


def checkpoints(fs: FileSystem, writer: str) -> list[str]:
    """Return the files that hold a writer's checkpoints, in order."""
    return sorted(info.path for info in _listed(fs, writer) if re.fullmatch(r"\d+\.json", info.base_name))


def _listed(fs: FileSystem, folder: str) -> list[Any]:
    return attempt(lambda: list(fs.get_file_info(FileSelector(folder, allow_not_found=True))), url_of(fs, folder))


def safe_rows(fs: FileSystem, writer: str) -> int:
    """Return how many rows of a writer are in finished files."""
    found = checkpoints(fs, writer)
    last = read_json(fs, found[-1]) if found else None
    return int(last["rows"]) if last else 0


def refuse_hidden(fs: FileSystem, path: str) -> None:
    """Raise DatasetIncomplete if a dataset is or was being written beside `path`, where none is."""
    for folder in hidden_folders(fs, path):
        raise incomplete(fs, path, posixpath.join(folder, "journal"))


def refuse_marked(fs: FileSystem, path: str) -> None:
    """Raise DatasetIncomplete if the folder `path` has the marker of an unfinished write."""
    marker = posixpath.join(path, MARKER)
    if look(fs, [marker])[0].type == FileType.File:
        found = read_json(fs, marker) or {}
        if "cure" in found:
            raise _by_spark(path, str(found["cure"]))
        moving = found.get("from")  # the target was being overwritten: the journal is beside the new files
        raise incomplete(fs, path, f"{posixpath.dirname(moving)}/journal" if moving else posixpath.join(path, JOURNAL))


def refuse_spark(fs: FileSystem, path: str, names: Iterable[str]) -> None:
    """Raise DatasetIncomplete if a Spark job has not finished its commit to a folder, or died during it.

    Tasks write into `_temporary`, whose files are moved out at the end; `_SUCCESS` is written last (`_common_metadata`
    without Spark). If these exist they are an earlier job's, and only newer files belong to a job that appends: tasks
    that outlive a failed job by a moment create an empty `_temporary` again. `names` are those that `walk` returns.
    """
    found = list(names)
    if not any(name.startswith("_temporary/") for name in found):
        return
    cure = "delete _temporary and what lies beside it"
    ends = {name: _times(fs, path, [name])[0] for name in ("_SUCCESS", "_common_metadata") if name in found}
    if ends:
        last = max(ends, key=lambda name: ends[name])
        parts = [name for name in found if posixpath.basename(name).startswith("part-")]
        newer = [name for name, time in zip(parts, _times(fs, path, parts), strict=True) if time > ends[last] > 0]
        if not newer:
            return
        cure = f"delete _temporary and its files that are newer than {last} ({newer[0]}, {len(newer)} in all)"
    raise _by_spark(path, f"{cure}, and run the job again", "_temporary is there")


def _times(fs: FileSystem, path: str, names: list[str]) -> list[int]:
    """Return when files of a folder were written; 0 if the store does not say."""
    paths = [posixpath.join(path, name) for name in names]
    return [info.mtime_ns or 0 for info in attempt(lambda: fs.get_file_info(paths), url_of(fs, path))]


def _by_spark(path: str, cure: str, why: str = "it raised an error") -> DatasetIncomplete:
    return DatasetIncomplete(f"{path} is incomplete: a Spark job is still writing it, or died ({why}); {cure}")


def incomplete(fs: FileSystem, path: str, journal: str) -> DatasetIncomplete:
    """Return the error that says how much of a dataset is written, and how to resume or discard it."""
    found = writers(fs, journal)
    parts = [folder for folder in found if posixpath.basename(folder) != ALONE]
    if parts:
        done = sum(look(fs, [posixpath.join(folder, DONE)])[0].type == FileType.File for folder in parts)
        state = f"{done} of the {len(parts)} parts begun are finished"
        others = "write the others (part=k, with resume=True to keep their finished files), then "
        cure = f"{others if done < len(parts) else ''}penstock.commit(url)"
    else:
        rows = sum(safe_rows(fs, folder) for folder in found)
        state = f"{rows:,} rows are in finished files"
        cure = "give the same rows again with resume=True, in penstock.write or penstock.Writer"
        begun = [read_json(fs, posixpath.join(folder, BEGIN)) or {} for folder in found]
        cure = next((str(facts["cure"]) for facts in begun if "cure" in facts), cure)
    return DatasetIncomplete(
        f"{path} is incomplete: it is still being written, or its writer died ({state}). To go on, {cure}; to be rid "
        "of it, penstock.discard(url), or write it anew with overwrite=True"
    )
