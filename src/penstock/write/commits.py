"""`penstock.commit` and `penstock.discard`: the ends of a dataset that several writers wrote, or that one left behind.

Works on what the journals say, not on rows: parts that are finished are put together by one metadata file and shown as
one dataset. Needs no schema and no codec. What a live process of this machine is writing is left alone.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from penstock.dataset.incomplete import ALONE, SHARED, writers
from penstock.errors import DatasetExists, DatasetIncomplete, DatasetNotFound, StateMismatch
from penstock.storage.filesystem import first_look, resolve
from penstock.storage.locks import Lock, remove_dead_scratch
from penstock.write.files import Written
from penstock.write.finish import finish, same_layout
from penstock.write.journal import DoneFile, Journal
from penstock.write.staging import StagedDataset, adopt_note, forget_shown, is_idle, unfinished
from penstock.write.target import WriteTarget
from penstock.write.writer import summary

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

SHUFFLE = ".penstock-shuffle-"
"""Prefix of the scratch folders beside a dataset that is being rewritten with `shuffle`."""


def commit(
    url: str | os.PathLike[str],
    *,
    parts: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> Written:
    """Make one dataset of the parts that `penstock.Writer(url, schema, part=k)` wrote; return what it holds.

    Call it once, anywhere, after all parts have ended. Rows are in the order of the parts. Costs the reading of one
    small file for each file written, and on a filesystem with folders one rename. Cut short, it can be called again.

    Args:
        url: the dataset, as the writers named it.
        parts: how many there must be, 0 to `parts - 1`; None: those that were begun, also by an earlier run that was
            never committed or discarded.
        storage_options: for the filesystem of a URL.
        filesystem: a pyarrow or fsspec filesystem to use instead.

    Raises:
        DatasetIncomplete: a part is missing, or was begun and not finished; names them.
        DatasetNotFound: no part was written.
        DatasetExists: something is at `url` and the writers were not told to overwrite it.
        StateMismatch: the parts have different schemas, or there are more than `parts`.
    """
    place = _place(url, storage_options, filesystem)
    with place.mutex():  # two at once: the second finds the parts gone
        shown = forget_shown(place).get(place.hidden(SHARED))
        if shown is not None:  # an earlier call was cut short when the dataset was there
            return Written(str(url), **shown)
        return summary(str(url), _commit(str(url), place, parts))


def _commit(url: str, place: WriteTarget, parts: int | None) -> list[DoneFile]:
    stage = _shared(place)
    journals = _journals(stage)
    for journal in journals.values():
        journal.load()
    _check_parts(url, journals, parts)
    all_facts = [journal.facts() or {} for journal in journals.values()]
    if not all(same_layout(all_facts[0], facts) for facts in all_facts):
        raise StateMismatch(f"the parts of {url} have different schemas or partition_by; write them again alike")
    stage.check()
    files = finish(stage, all_facts[0], [file for journal in journals.values() for file in journal.files])
    stage.keep_only({file.path for file in files})
    stage.show(overwrite=any(facts["overwrite"] for facts in all_facts), files=files)
    return files


def discard(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> int:
    """Remove what unfinished writers of `url` left; return how many there were. A complete dataset is not touched.

    What a killed `penstock rewrite --shuffle` left beside a local `url` is removed too.

    Raises:
        DatasetExists: a process of this machine is still writing it. (On a store nobody can tell: make sure.)
    """
    place = _place(url, storage_options, filesystem)
    with place.mutex() as held:
        if held:
            remove_dead_scratch(posixpath.dirname(place.path), SHUFFLE)
        forget_shown(place)
        adopt_note(place)
        found = unfinished(place)
        for stage in found:
            for folder in writers(place.fs, stage.journal):
                if not is_idle(place.fs, folder):
                    raise DatasetExists(f"{url} is being written by a process that is alive; end it first")
        for stage in found:
            stage.remove()
    return len(found)


def tidy(shown: StagedDataset) -> None:
    """Remove what earlier writers of a target left when they died, once another one's dataset is there.

    Only what is surely dead: on a store, where nobody can tell, it stays until `discard` is called.
    """
    with shown.place.mutex() as held:
        if held:
            remove_dead_scratch(posixpath.dirname(shown.place.path), SHUFFLE)
        for stage in unfinished(shown.place):
            locks = [Lock(stage.fs, folder) for folder in writers(stage.fs, stage.journal)]
            known = held or bool(locks)  # without the mutex, one without a writer may be just beginning
            if stage.folder != shown.folder and known and all(lock.is_held() is False for lock in locks):
                stage.remove()


def _place(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, filesystem: Any) -> WriteTarget:
    fs, path = resolve(url, storage_options=storage_options, filesystem=filesystem)
    first_look(fs, path, url)
    return WriteTarget.at(fs, path)


def _shared(place: WriteTarget) -> StagedDataset:
    for stage in unfinished(place):
        names = [posixpath.basename(folder) for folder in writers(place.fs, stage.journal)]
        if names and ALONE not in names:
            return stage
    there = "it is complete" if not place.is_free() else "nothing is there"
    raise DatasetNotFound(
        f"no parts to commit at {place.path} ({there}); penstock.Writer(url, schema, part=k) writes them"
    )


def _journals(stage: StagedDataset) -> dict[int, Journal]:
    folders = writers(stage.fs, stage.journal)
    return {int(posixpath.basename(folder)): Journal(stage.fs, folder, stage.data) for folder in folders}


def _check_parts(url: str, journals: Mapping[int, Journal], parts: int | None) -> None:
    wrong = {part: "not finished" for part, journal in journals.items() if not journal.is_done()}
    if parts is not None:
        wrong |= {part: "missing" for part in range(parts) if part not in journals}
        extra = sorted(part for part in journals if part >= parts)
        if extra:
            raise StateMismatch(
                f"{url} has a part {extra[0]} though parts={parts} says there are 0 to {parts - 1}: of an earlier run, "
                "or parts= is too small; penstock.discard(url) removes all parts, to be written anew"
            )
    if wrong:
        shown = ", ".join(f"{part} ({reason})" for part, reason in sorted(wrong.items())[:10])
        more = f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise DatasetIncomplete(
            f"{url} cannot be committed yet: part {shown}{more}; write these parts (with resume=True to keep their "
            "finished files), then commit again, or penstock.discard(url)"
        )
