"""The last steps of a dataset: what all its files have in common, its `_common_metadata`, and what `commit` needs.

`facts_of` says, as JSON in a writer's journal, what files of a layout look like; `finish` writes the metadata that
belongs beside them, ours and Petastorm's, without needing the schema's codecs. Shows nothing: `stage` does.
"""

from __future__ import annotations

import base64
import logging
import posixpath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import SchemaError
from penstock.schema.petastorm_dump import ROW_GROUPS_PER_FILE_KEY, dump_row_group_counts, dump_unischema
from penstock.schema.stored import PETASTORM_SCHEMA_KEY
from penstock.storage.publish import put, sync_file
from penstock.write.journal import DoneFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.write.layout import StorageLayout
    from penstock.write.staging import StagedDataset

logger = logging.getLogger(__name__)


def facts_of(layout: StorageLayout, *, overwrite: bool) -> dict[str, Any]:
    """Return what a dataset of this layout has beside its files, as JSON."""
    petastorm = petastorm_schema(layout)
    return {
        "files": _text(layout.in_files.serialize().to_pybytes()),
        "whole": _text(layout.whole.serialize().to_pybytes()),
        "partition_by": list(layout.partition_by),
        "petastorm": None if petastorm is None else _text(petastorm),
        "overwrite": overwrite,
    }


def same_layout(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether files of two writers belong into one dataset."""
    return all(one[key] == other[key] for key in ("files", "whole", "partition_by"))


def petastorm_schema(layout: StorageLayout) -> bytes | None:
    """Return the schema as Petastorm pickles it; None, and a line in the log, where Petastorm could not read it."""
    try:
        return dump_unischema(layout.unischema)
    except SchemaError as error:
        logger.info("written without Petastorm's own metadata, which has no place for this schema: %s", error)
        return None


def finish(stage: StagedDataset, facts: Mapping[str, Any], files: Sequence[DoneFile]) -> list[DoneFile]:
    """Write `_common_metadata`; return all files. A dataset without rows gets one file, so that it opens."""
    files = list(files) or [_empty_file(stage, facts)]
    columns = _schema(facts["files"])
    pairs = dict(columns.metadata or {})
    if facts["petastorm"] is not None:
        pairs[PETASTORM_SCHEMA_KEY] = base64.b64decode(facts["petastorm"])
        pairs[ROW_GROUPS_PER_FILE_KEY] = dump_row_group_counts({file.path: file.row_groups for file in files})
    sink = pa.BufferOutputStream()
    pq.write_metadata(columns.with_metadata(pairs), sink)
    put(stage.fs, posixpath.join(stage.data, "_common_metadata"), sink.getvalue(), sync=True)
    return files


def _empty_file(stage: StagedDataset, facts: Mapping[str, Any]) -> DoneFile:
    name = "part-000000.parquet"
    with stage.fs.open_output_stream(posixpath.join(stage.data, name)) as sink:
        with pq.ParquetWriter(sink, _schema(facts["whole"])):
            pass
        size = sink.tell()
    sync_file(stage.fs, posixpath.join(stage.data, name))
    return DoneFile(name, 0, 0, size)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
