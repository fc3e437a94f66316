"""Datasets whose writing has begun and not ended: how they are known, and the error that says what to do about them.

`write` leaves its traces by the names of this file, and opening looks for them: a dataset that is being written, or
whose writer died, does not open as if it were whole. Reads a few small files where there is a trace, and writes none.

Two forms. Where folders can be renamed, everything is in a hidden folder beside the target,
`.NAME.TOKEN.writing/{data,journal}`, and `data` becomes the target in one step. On stores, where renaming is copying,
files go to the target itself, and `_penstock_writing.json` stands there until the last one is in; the journal lies in
`_penstock_writing/`. A journal holds a folder for each writer: `begin.json`, one file for each checkpoint, `done.json`.

A block in which Spark itself writes (`materialize_dataset`) leaves a note beside the target, `.NAME.block.json`, since
Spark empties the target and refuses one that is there: which files were there, and which process will end the block.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import socket
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType

from penstock.errors import DatasetIncomplete, StoreUnavailable
from penstock.storage import is_hidden
from penstock.storage.faults import attempt
from penstock.storage.filesystem import list_folder, look
from penstock.storage.urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types

MARKER = "_penstock_writing.json"
"""Stands in a target on a store while it is written: without it the files are all there."""
JOURNAL = "_penstock_writing"
"""The journal's folder in a target on a store."""
SHARED = "parts"
"""Token of the hidden folder that several writers share."""
ALONE = "alone"
"""The journal's folder of a writer that has a dataset for itself; others are called by their part."""
BEGIN, DONE = "begin.json", "done.json"
_CANNOT = (OSError, NotImplementedError, pa.ArrowException, ValueError)


def note_path(path: str) -> str:
    """Return where the note of a block lies in which Spark writes the folder `path`."""
    parent, name = posixpath.split(path)
    return posixpath.join(parent, f".{name}.block.json")


_RUN = os.urandom(6).hex()


def this_process() -> list[Any]:
    """Return what tells this process from others: machine, number and a token (containers repeat the first two)."""
    return [socket.gethostname(), os.getpid(), _RUN]


def refuse_block(fs: FileSystem, path: str, names: Iterable[str]) -> None:
    """Raise DatasetIncomplete if Spark has changed the files of a folder in a block that has not ended.

    The block's own process may look. `names` are those of all files. Costs one look, where Spark wrote the folder.
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
    """Return the hidden folders beside `path` in which it is or was being written, or that end otherwise, by name.

    Costs one listing of the folder above; an empty list where that cannot be listed.
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
    """Return the JSON object in a file; None where there is no such file, or it is damaged."""

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
    found = _listed(fs, journal)
    return sorted(info.path for info in found if info.type == FileType.Directory)


def checkpoints(fs: FileSystem, writer: str) -> list[str]:
    """Return the files that hold a writer's checkpoints, in order."""
    found = _listed(fs, writer)
    return sorted(info.path for info in found if re.fullmatch(r"\d+\.json", info.base_name))


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
        moving = found.get("from")  # a store that was being overwritten: its journal is where the files come from
        raise incomplete(fs, path, f"{posixpath.dirname(moving)}/journal" if moving else posixpath.join(path, JOURNAL))


def refuse_spark(fs: FileSystem, path: str, names: Iterable[str]) -> None:
    """Raise DatasetIncomplete if a folder is that of a Spark job that died while it committed, or is about to.

    Its tasks write into `_temporary`, whose files are moved out at the end; `_SUCCESS` comes last, as does
    `_common_metadata` without Spark. What is there from before is that of an earlier job, and only files that are newer
    belong to one that appends: tasks that outlive a failed job by a moment make an empty `_temporary` again. `names`
    are those that `walk` gives for the folder.
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
    """Return when files of a folder were written; 0 where the store does not tell."""
    paths = [posixpath.join(path, name) for name in names]
    return [info.mtime_ns or 0 for info in attempt(lambda: fs.get_file_info(paths), url_of(fs, path))]


def _by_spark(path: str, cure: str, why: str = "it raised an error") -> DatasetIncomplete:
    return DatasetIncomplete(f"{path} is incomplete: a Spark job is still writing it, or died ({why}); {cure}")


def incomplete(fs: FileSystem, path: str, journal: str) -> DatasetIncomplete:
    """Return the error that says how far an unfinished dataset has come, and how to resume or discard it."""
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
