"""The columns of a dataset on disk: the schema of its files and how Parquet stores each column.

Built once for every write from the Unischema; the input stages encode to it and `files` writes by it. Pure: contains no
data and touches no file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.codecs.arrow_kinds import leaf_of
from penstock.codecs.base import has_cells
from penstock.dataset.partitions import can_be_folder
from penstock.errors import ColumnNotFound, SchemaError, close_names
from penstock.schema.stored import SCHEMA_KEY, schema_to_json
from penstock.write.options import AUTO, Compression

if TYPE_CHECKING:
    from penstock.schema.unischema import Unischema

CHECKSUMS = {"write_page_checksum": True} if "write_page_checksum" in signature(pq.ParquetWriter).parameters else {}
"""Lets readers notice flipped bits; available from pyarrow 15 on."""
PAGE_BYTES = 1 << 20
"""Bytes of a page, before compression."""
_BATCH_ROWS = 1024
"""After how many rows pyarrow looks at the size of a page by default."""


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """A dataset's columns as stored."""

    unischema: Unischema
    columns: pa.Schema
    """Storage types of all columns, including partition columns, in the order of the schema."""
    partition_by: tuple[str, ...]
    cells: frozenset[str]
    """Columns whose cells are encoded as bytes by a codec."""
    limits: Mapping[str, np.iinfo[Any] | np.finfo[Any]]
    """Columns stored in a wider type than the field's (uint8 in int16), and the range of their values."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments: `np.finfo` does not pickle."""
        return plan_layout, (self.unischema, self.columns, self.partition_by)

    @property
    def in_files(self) -> pa.Schema:
        """The schema of every file: without the partition columns, with the stored schema in its metadata."""
        fields = [field for field in self.columns if field.name not in self.partition_by]
        partitions = pa.schema([self.columns.field(name) for name in self.partition_by])
        return pa.schema(fields, metadata={SCHEMA_KEY: schema_to_json(self.unischema, partitions).encode()})

    @property
    def whole(self) -> pa.Schema:
        """The schema of a dataset without rows, which has no folders for its partition columns."""
        return pa.schema(list(self.columns), metadata=self.in_files.metadata)

    def parquet_options(self, compression: Compression) -> dict[str, Any]:
        """Return the keywords of `pyarrow.parquet.ParquetWriter` for these columns.

        Encoded cells get no dictionary (every cell differs, and building one costs memory and time) and no statistics
        (the smallest JPEG means nothing); floats get no dictionary either, which would slow down reading. Pages get
        checksums, and an offset index by which readers find them.
        """
        flat = [field for field in self.columns if field.name not in self.cells and not pa.types.is_nested(field.type)]
        coded = [field.name for field in flat if not pa.types.is_floating(field.type)]
        return {
            "compression": self._compression(compression),
            "use_dictionary": coded or False,
            "write_statistics": [field.name for field in flat] or False,
            "write_page_index": True,
            **CHECKSUMS,
        }

    def _compression(self, given: Compression) -> dict[str, str] | str:
        """Return the Parquet codec, or one for each leaf: as given for a column or leaf, else as for "auto"."""
        if given != AUTO and (given is None or isinstance(given, str)):
            return _codec(given)
        compressed = ("CompressedImageCodec", "CompressedNdarrayCodec")
        packed = {name for name in self.cells if type(self.unischema.fields[name].codec).__name__ in compressed}
        chosen = {} if given == AUTO or not isinstance(given, Mapping) else dict(given)
        if not packed and not chosen:
            return "snappy"
        found = {}
        for field in self.in_files:
            auto = "none" if field.name in packed else "snappy"
            for path in _leaves(field):
                codec = chosen.get(path, chosen.get(field.name, AUTO))
                found[path] = auto if codec == AUTO else _codec(codec)
        known = list(dict.fromkeys([*found, *self.in_files.names]))
        for name in chosen:
            if name not in known:
                raise ColumnNotFound(f"compression: no column {name!r} in the files; {close_names(name, known)}")
        return found


def page_options(table: pa.Table) -> dict[str, int]:
    """Return the keywords of `pyarrow.parquet.ParquetWriter` that give pages of about `PAGE_BYTES`, whatever the cells.

    pyarrow looks at the size of a page every 1,024 rows, which is 20 MB of pictures: too much to read for a few rows.
    With batches of a power of two of rows and about the wanted size, all pages of the widest column have the same
    number of rows, unless sizes vary a lot. Columns of small cells are written as by default.
    """
    cell = max((column.nbytes for column in table.columns), default=0) / max(table.num_rows, 1)
    rows = 1 << max(0, round(math.log2(PAGE_BYTES / max(cell, 1))))
    return {} if rows >= _BATCH_ROWS else {"write_batch_size": rows, "data_page_size": PAGE_BYTES // 2}


def _codec(name: str | None) -> str:
    return "none" if name in (None, "uncompressed") else name


def _leaves(field: Any) -> list[str]:
    """Return the Parquet paths of a column's leaves: the keys of a compression by column."""
    kind = field.type
    if pa.types.is_map(kind):
        inner = [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
        return [f"{field.name}.key_value.{path}" for part in inner for path in _leaves(part)]
    if pa.types.is_struct(kind):
        return [f"{field.name}.{path}" for part in kind for path in _leaves(part)]
    if _is_list(kind):
        return [f"{field.name}.list.{path}" for path in _leaves(pa.field("element", kind.value_type))]
    return [str(field.name)]


def plan_layout(unischema: Unischema, columns: pa.Schema, partition_by: Sequence[str]) -> StorageLayout:
    """Check the partition columns and return the layout of a dataset.

    Raises:
        ColumnNotFound: a partition column that is not in the schema.
        SchemaError: a partition column that cannot be a folder name, no column left for the files, or a type that
            could be written but not read again.
    """
    for field in columns:
        if _has_empty_lists(field.type):
            raise SchemaError(
                f"column {field.name!r} is {field.type}: pyarrow cannot read lists of the fixed size 0 from Parquet; "
                "store lists of variable size, or leave the column out"
            )
    cells = frozenset(name for name, field in unischema.fields.items() if has_cells(field.codec))
    for name in partition_by:
        if name not in columns.names:
            raise ColumnNotFound(f"partition_by: no column {name!r}; {close_names(name, columns.names)}")
        kind = columns.field(name).type
        if name in cells or not can_be_folder(kind):
            raise SchemaError(
                f"partition_by: column {name!r} is stored as {kind}, which a folder name cannot represent; only "
                "numbers, strings, booleans, dates, timestamps and decimals can be folder names: cast it to one of them"
            )
        if not name:
            raise SchemaError("partition_by: a column without a name cannot be a folder; rename it")
        if name.startswith("."):
            raise SchemaError(
                f"partition_by: column {name!r} would make folders that readers skip as hidden; rename the column"
            )
    if columns.names and len(partition_by) == len(columns.names):
        raise SchemaError("partition_by names every column, so the files would have none; leave one out")
    return StorageLayout(unischema, columns, tuple(partition_by), cells, _limits(unischema, columns))


def _limits(unischema: Unischema, columns: pa.Schema) -> dict[str, np.iinfo[Any] | np.finfo[Any]]:
    found: dict[str, np.iinfo[Any] | np.finfo[Any]] = {}
    for stored in columns:
        field = unischema.fields.get(stored.name)
        kind = field.numpy_dtype if field is not None else None
        leaf = leaf_of(stored.type)
        if pa.types.is_integer(leaf) and isinstance(kind, type) and issubclass(kind, np.integer):
            limits, wider = np.iinfo(kind), np.iinfo(np.dtype(str(leaf)))
            if limits.min > wider.min or limits.max < wider.max:
                found[stored.name] = limits
        if kind is np.float16 and pa.types.is_floating(leaf) and not pa.types.is_float16(leaf):
            found[stored.name] = np.finfo(np.float16)
    return found


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _has_empty_lists(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_empty_lists(kind.storage_type)
    if pa.types.is_struct(kind):
        return any(_has_empty_lists(part.type) for part in kind)
    if pa.types.is_map(kind):
        return _has_empty_lists(kind.item_type)
    is_empty = pa.types.is_fixed_size_list(kind) and kind.list_size == 0
    return is_empty or (_is_list(kind) and _has_empty_lists(kind.value_type))
