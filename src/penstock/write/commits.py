"""The last steps of a dataset: its `_common_metadata`, and `penstock.commit` and `penstock.discard`.

`writer` uses the first; `commit` joins the finished parts of several writers by one metadata file and publishes them as
one dataset; `discard` removes what unfinished writers left. All work from the writers' journals, not from rows, and
need neither schema nor codecs. What a running process of this machine writes is never touched.
"""

from __future__ import annotations

import base64
import logging
import posixpath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dataset.write_markers import ALONE, SHARED, writers
from penstock.errors import DatasetExists, DatasetIncomplete, DatasetNotFound, SchemaError, StateMismatch
from penstock.schema.petastorm_dump import ROW_GROUPS_PER_FILE_KEY, dump_row_group_counts, dump_unischema
from penstock.schema.stored import PETASTORM_SCHEMA_KEY
from penstock.storage.filesystem import first_look, resolve
from penstock.storage.locks import Lock, remove_dead_scratch
from penstock.storage.publish import put
from penstock.write.files import Written
from penstock.write.staging import (
    DoneFile,
    Journal,
    StagedDataset,
    adopt_note,
    is_idle,
    remove_published,
    totals,
    unfinished,
)
from penstock.write.target import WriteTarget

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from penstock.write.layout import StorageLayout

logger = logging.getLogger(__name__)

SHUFFLE = ".penstock-shuffle-"
"""Prefix of the scratch folders beside a dataset that is being rewritten with `shuffle`."""


# --- metadata ---------------------------------------------------------------------------------------------------------


def facts_of(layout: StorageLayout, *, overwrite: bool) -> dict[str, Any]:
    """Return what the files of a writer have in common, as JSON for its journal."""
    try:
        petastorm: bytes | None = dump_unischema(layout.unischema)
    except SchemaError as error:
        logger.info("written without Petastorm's own metadata, which cannot express this schema: %s", error)
        petastorm = None
    return {
        "files": _text(layout.in_files.serialize().to_pybytes()),
        "whole": _text(layout.whole.serialize().to_pybytes()),
        "partition_by": list(layout.partition_by),
        "petastorm": None if petastorm is None else _text(petastorm),
        "overwrite": overwrite,
    }


def same_layout(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether the files of two writers can form one dataset."""
    return all(one[key] == other[key] for key in ("files", "whole", "partition_by"))


def write_metadata(stage: StagedDataset, facts: Mapping[str, Any], files: Sequence[DoneFile]) -> list[DoneFile]:
    """Write `_common_metadata`; return all files. A dataset without rows gets one file, so that it opens."""
    files = list(files)
    if not files:
        name, sink = "part-000000.parquet", pa.BufferOutputStream()
        pq.ParquetWriter(sink, _schema(facts["whole"])).close()
        put(stage.fs, posixpath.join(stage.data, name), sink.getvalue(), sync=True)
        files = [DoneFile(name, 0, 0, sink.getvalue().size)]
    columns = _schema(facts["files"])
    pairs = dict(columns.metadata or {})
    if facts["petastorm"] is not None:
        pairs[PETASTORM_SCHEMA_KEY] = base64.b64decode(facts["petastorm"])
        pairs[ROW_GROUPS_PER_FILE_KEY] = dump_row_group_counts({file.path: file.row_groups for file in files})
    sink = pa.BufferOutputStream()
    pq.write_metadata(columns.with_metadata(pairs), sink)
    put(stage.fs, posixpath.join(stage.data, "_common_metadata"), sink.getvalue(), sync=True)
    return files


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


# --- several writers --------------------------------------------------------------------------------------------------


def commit(
    url: str | os.PathLike[str],
    *,
    parts: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> Written:
    """Make one dataset of the parts that `penstock.Writer(url, schema, part=k)` wrote; return what it contains.

    Call it once, anywhere, after all parts are written. Rows are in the order of the parts. Reads one small file for
    each file written, and on a filesystem with folders does one rename. If it is interrupted, call it again.

    Args:
        url: the dataset, as given to the writers.
        parts: how many parts there must be, 0 to `parts - 1`; None: those that were started, also by an earlier run
            that was never committed or discarded.
        storage_options: for the filesystem of a URL.
        filesystem: a pyarrow or fsspec filesystem to use instead.

    Raises:
        DatasetIncomplete: a part is missing or not finished; names them.
        DatasetNotFound: no part was written.
        DatasetExists: something is at `url` and the writers did not have `overwrite=True`.
        StateMismatch: the parts have different schemas, or there are more than `parts`.
    """
    target = _target(url, storage_options, filesystem)
    with target.mutex():  # of two calls at once, the second finds no parts
        published = remove_published(target).get(target.hidden(SHARED))
        if published is not None:  # an earlier call was killed after the dataset had appeared
            return Written(str(url), **published)
        stage = _parts(target)
        folders = writers(stage.fs, stage.journal)
        journals = {int(posixpath.basename(folder)): Journal(stage.fs, folder, stage.data) for folder in folders}
        for journal in journals.values():
            journal.load()
        wrong = {part: "not finished" for part, journal in journals.items() if not journal.is_done()}
        if parts is not None:
            wrong |= {part: "missing" for part in range(parts) if part not in journals}
            extra = sorted(part for part in journals if part >= parts)
            if extra:
                raise StateMismatch(
                    f"{url} has a part {extra[0]}, but parts={parts} means 0 to {parts - 1}: it is of an earlier run, "
                    "or parts= is too small; penstock.discard(url) removes all parts, to be written again"
                )
        if wrong:
            shown = ", ".join(f"{part} ({reason})" for part, reason in sorted(wrong.items())[:10])
            more = f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""
            raise DatasetIncomplete(
                f"{url} cannot be committed yet: part {shown}{more}; write these parts (resume=True keeps their "
                "finished files), then commit again, or penstock.discard(url)"
            )
        all_facts = [journal.facts() or {} for journal in journals.values()]
        if not all(same_layout(all_facts[0], facts) for facts in all_facts):
            raise StateMismatch(f"the parts of {url} differ in schema or partition_by; write them again with the same")
        stage.check()
        done = [file for journal in journals.values() for file in journal.files]
        files = write_metadata(stage, all_facts[0], done)
        stage.remove_files(keep={file.path for file in files})
        stage.publish(overwrite=any(facts["overwrite"] for facts in all_facts), files=files)
        return Written(str(url), **totals(files))


def discard(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> int:
    """Remove what unfinished writers of `url` left; return how many there were. A complete dataset is not touched.

    What a killed `penstock rewrite --shuffle` left beside a local `url` is removed as well.

    Raises:
        DatasetExists: a process of this machine is still writing it. (On a store this cannot be known: make sure.)
    """
    target = _target(url, storage_options, filesystem)
    with target.mutex() as held:
        if held:
            remove_dead_scratch(posixpath.dirname(target.path), SHUFFLE)
        remove_published(target)
        adopt_note(target)
        found = unfinished(target)
        for stage in found:
            for folder in writers(target.fs, stage.journal):
                if not is_idle(target.fs, folder):
                    raise DatasetExists(f"{url} is being written by a running process; end it first")
        for stage in found:
            stage.remove()
    return len(found)


def remove_dead(published: StagedDataset) -> None:
    """Remove what dead writers of a target left, after another writer has published its dataset.

    On a store it is unknown whether a writer is dead, so everything stays until `discard` is called.
    """
    with published.target.mutex() as held:
        if held:
            remove_dead_scratch(posixpath.dirname(published.target.path), SHUFFLE)
        for stage in unfinished(published.target):
            locks = [Lock(stage.fs, folder) for folder in writers(stage.fs, stage.journal)]
            known = held or bool(locks)  # without the mutex, a folder without a writer may be just starting
            if stage.folder != published.folder and known and all(lock.is_held() is False for lock in locks):
                stage.remove()


def _target(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, filesystem: Any) -> WriteTarget:
    fs, path = resolve(url, storage_options=storage_options, filesystem=filesystem)
    first_look(fs, path, url)
    return WriteTarget.at(fs, path)


def _parts(target: WriteTarget) -> StagedDataset:
    """Return the unfinished dataset of several parts."""
    for stage in unfinished(target):
        names = [posixpath.basename(folder) for folder in writers(target.fs, stage.journal)]
        if names and ALONE not in names:
            return stage
    there = "nothing is there" if target.is_free() else "it is complete"
    raise DatasetNotFound(
        f"no parts to commit at {target.path} ({there}); penstock.Writer(url, schema, part=k) writes them"
    )
