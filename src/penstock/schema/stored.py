"""The stored form of a schema: JSON under one key of a Parquet file's metadata.

Writers put it into `_common_metadata` and into every file's footer; `find_schema` reads it from there, or from the
pickle that Petastorm stored, which `petastorm_pickle` reads without executing it. Opens no files.
"""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs import codec_from_json, codec_to_json
from penstock.errors import CodecError, MetadataError, SchemaError
from penstock.schema.unischema import Unischema, UnischemaField, schema_name

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA_KEY = b"penstock.schema.v1"
PETASTORM_SCHEMA_KEY = b"dataset-toolkit.unischema.v1"
PETASTORM_INDEX_KEY = b"dataset-toolkit.rowgroups_index.v1"
_VERSION = 1
# Our own names, because NumPy renames its classes (bool_, str_) from version to version.
_DTYPE_NAMES: dict[Any, str] = {
    **{np.dtype(n).type: n for n in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    **{np.dtype(n).type: n for n in ("float16", "float32", "float64", "complex64", "complex128", "bool")},
    np.str_: "str",
    np.bytes_: "bytes",
    np.datetime64: "datetime64",
    np.timedelta64: "timedelta64",
    np.object_: "object",
    np.void: "void",
    Decimal: "decimal",
}
_DTYPES: dict[str, Any] = {name: kind for kind, name in _DTYPE_NAMES.items()}


def schema_to_json(schema: Unischema, partitions: pa.Schema | None = None) -> str:
    """Return the stored text, equal for equal schemas. CodecError if a codec is not registered.

    `partitions` has the Arrow types of columns that are stored as folder names, which no file contains.
    """
    fields = [_field_to_json(f) for f in schema.fields.values()]
    stored = {"version": _VERSION, "name": schema_name(schema), "fields": fields}
    if partitions is not None and len(partitions):
        stored["partitions"] = base64.b64encode(partitions.serialize().to_pybytes()).decode()
    return json.dumps(stored)


def partition_types(text: str | bytes, *, path: str) -> dict[str, pa.DataType]:
    """Return the Arrow types of partition columns that go with a stored schema; MetadataError names the file `path`."""
    try:
        stored = json.loads(text).get("partitions")
        if stored is None:
            return {}
        found = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored, validate=True)))
    except (ValueError, TypeError, AttributeError, RecursionError, OSError, pa.ArrowException) as exc:
        raise MetadataError(
            f"{path}: the stored schema under {SCHEMA_KEY.decode()!r} is damaged: {exc!r}; write the file again, or "
            "pass schema= to open without it"
        ) from exc
    return dict(zip(found.names, found.types, strict=True))


def schema_from_json(text: str | bytes) -> Unischema:
    """Rebuild a schema; MetadataError if the text is damaged or of a later version."""
    try:
        stored = json.loads(text)
        if stored["version"] != _VERSION:
            raise MetadataError(
                f"the stored schema has version {stored['version']}, this Penstock reads {_VERSION}; upgrade Penstock"
            )
        return Unischema(stored["name"], [_field_from_json(f) for f in stored["fields"]])
    except (MetadataError, CodecError):
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise MetadataError(f"the stored schema under {SCHEMA_KEY.decode()!r} is damaged: {exc!r}") from exc


def find_schema(key_value_metadata: Mapping[bytes, bytes] | None, *, path: str) -> Unischema | None:
    """Return the schema that a file's metadata holds: ours, else Petastorm's; None if there is none.

    Raises:
        MetadataError: The stored schema is damaged, or names something that is not allowed; the error names `path`.
        CodecError: The same for the state of a codec.
    """
    stored = key_value_metadata or {}
    try:
        if SCHEMA_KEY in stored:
            return schema_from_json(stored[SCHEMA_KEY])
        if PETASTORM_SCHEMA_KEY in stored:
            from penstock.schema.petastorm_pickle import load_unischema  # late: keeps `import penstock` light

            return load_unischema(stored[PETASTORM_SCHEMA_KEY])
    except (MetadataError, CodecError) as exc:
        raise type(exc)(f"{path}: {exc}; write the file again, or pass schema= to open without it") from exc
    return None


def _field_to_json(field: UnischemaField) -> dict[str, Any]:
    if field.numpy_dtype is not None and field.numpy_dtype not in _DTYPE_NAMES:
        raise SchemaError(f"field {field.name!r}: dtype {field.numpy_dtype!r} cannot be stored")
    return {
        "name": field.name,
        "dtype": _DTYPE_NAMES.get(field.numpy_dtype),
        "shape": list(field.shape),
        "nullable": field.nullable,
        "codec": codec_to_json(field.codec),
    }


def _field_from_json(stored: dict[str, Any]) -> UnischemaField:
    dtype = None if stored["dtype"] is None else _DTYPES[stored["dtype"]]
    codec = codec_from_json(stored["codec"])
    return UnischemaField(stored["name"], dtype, tuple(stored["shape"]), codec, stored["nullable"])
