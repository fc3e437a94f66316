"""Petastorm's pickled schema and row-group index, read without running them.

`safe_pickle` turns the bytes into inert values; this file holds the allow-list of names and makes our own objects of
what comes out. Any other name is at most a codec that is not registered (kept as `UnknownCodec`, its column unreadable,
the others fine); wherever else it stands, the metadata is refused. Nothing is imported because a dataset names it.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.codecs import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DataframeColumnCodec,
    NdarrayCodec,
    ScalarCodec,
)
from penstock.codecs.registry import codec_from_state
from penstock.codecs.scalar import SparkType
from penstock.errors import CodecError, MetadataError, SchemaError
from penstock.schema.safe_pickle import Made, Name, PickleLimits, SafeReader, checked_key
from penstock.schema.unischema import Unischema, UnischemaField

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNISCHEMA, _FIELD = Name("petastorm.unischema", "Unischema"), Name("petastorm.unischema", "UnischemaField")
_RECONSTRUCTOR, _RESTORE = Name("copyreg", "_reconstructor"), Name("pyspark.serializers", "_restore")
_SCALAR, _DTYPE = Name("numpy._core.multiarray", "scalar"), Name("numpy", "dtype")
_OBJECT, _TUPLE, _SET = Name("builtins", "object"), Name("builtins", "tuple"), Name("builtins", "set")
_ORDERED, _DEFAULT = Name("collections", "OrderedDict"), Name("collections", "defaultdict")
_DECIMAL = Name("decimal", "Decimal")
_CODECS = {Name("petastorm.codecs", n) for n in ("ScalarCodec", "NdarrayCodec", "CompressedNdarrayCodec")} | {
    Name("petastorm.codecs", "CompressedImageCodec")
}
_INDEXERS = {Name("petastorm.etl.rowgroup_indexers", n) for n in ("SingleFieldIndexer", "FieldNotNullIndexer")}
_SPARK = {
    Name("pyspark.sql.types", n + "Type")
    for n in [
        "String",
        "Binary",
        "Boolean",
        "Byte",
        "Short",
        "Integer",
        "Long",
        "Float",
        "Double",
        "Date",
        "Timestamp",
        "Decimal",
        "Array",
    ]
}
_NUMPY: dict[str, Any] = {
    **{n: np.dtype(n).type for n in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    **{n: np.dtype(n).type for n in ("float16", "float32", "float64")},
    **{n: np.dtype(n).type for n in ("complex64", "complex128")},
    "datetime64": np.datetime64,
    "timedelta64": np.timedelta64,
    "object_": np.object_,
    "bool_": np.bool_,
    "bool": np.bool_,  # NumPy 2's name
    "str_": np.str_,
    "unicode_": np.str_,
    "bytes_": np.bytes_,
    "string_": np.bytes_,
}
_ALLOWED = (
    {_UNISCHEMA, _FIELD, _RECONSTRUCTOR, _RESTORE, _SCALAR, _DTYPE, _OBJECT, _TUPLE, _SET, _ORDERED, _DEFAULT, _DECIMAL}
    | _CODECS
    | _INDEXERS
    | _SPARK
)
_NEW = {_UNISCHEMA, _FIELD} | _CODECS | _INDEXERS | _SPARK
_ALIASES = {"__builtin__": "builtins", "copy_reg": "copyreg", "numpy.core.multiarray": "numpy._core.multiarray"}
_OLD_PACKAGES = ("av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit", "dataset_toolkit")
_CLOSED_PACKAGES = sys.stdlib_module_names | {"builtins", "__builtin__", "copy_reg", "numpy", "pyspark"}
_SCHEMA_LIMITS = PickleLimits(16 << 20, 1_000_000)
"""A field takes 300 bytes and 50 steps."""
_INDEX_LIMITS = PickleLimits(64 << 20, 8_000_000)
"""A value takes 30 bytes and 15 steps."""
_MAX_STATE_VALUES = 100_000
_MAX_ORDINALS = 10_000_000
_MAX_DIMS = 64
"""Of NumPy."""
_FIELD_PARTS = ("name", "numpy_dtype", "shape", "codec", "nullable")


@dataclass(frozen=True, slots=True)
class RowGroupIndex:
    """Which row groups hold which values of a column, as Petastorm's index has it."""

    name: str
    """Name of the index."""
    column: str
    """Column that is indexed."""
    row_groups: dict[Any, set[int]] | set[int]
    """Value to ordinals of row groups; for an index of non-null values the ordinals alone."""


def load_unischema(data: bytes) -> Unischema:
    """Rebuild the schema of Petastorm's pickle; MetadataError where it is damaged or asks for anything else."""
    made = _load(data, _SCHEMA_LIMITS)
    if not (isinstance(made, Made) and Name(made.module, made.name) == _UNISCHEMA and isinstance(made.state, dict)):
        raise MetadataError(f"Petastorm's stored schema is not a Unischema but {_kind(made)}")
    name, fields = made.state.get("_name"), made.state.get("_fields")
    if not isinstance(name, str) or not isinstance(fields, dict):
        raise MetadataError("Petastorm's stored schema is damaged: it has no name or no fields")
    left = iter(range(_MAX_STATE_VALUES))
    try:
        return Unischema(name, [_field(f, left) for f in fields.values()])
    except (SchemaError, CodecError, RecursionError) as exc:
        raise MetadataError(f"Petastorm's stored schema is damaged: {exc}") from exc


def load_index(data: bytes) -> dict[str, RowGroupIndex]:
    """Rebuild the row-group indexes of Petastorm's pickle by name; MetadataError as in `load_unischema`."""
    made = _load(data, _INDEX_LIMITS)
    if not isinstance(made, dict):
        raise MetadataError(f"Petastorm's stored index is not a dict but {_kind(made)}")
    return {str(name): _index(indexer) for name, indexer in made.items()}


def _load(data: bytes, limits: PickleLimits) -> Any:
    return SafeReader(data, limits, resolve=_resolve, call=_call, new=_new).load()


def _resolve(module: str, name: str) -> Any:
    """Look a name up in the allow-list; an unknown name stays a name, which may be that of a codec."""
    module = _ALIASES.get(module, module)
    for old in _OLD_PACKAGES:
        if module.startswith(old + "."):
            module = "petastorm" + module.removeprefix(old)
    found = Name(module, name)
    if module == "numpy" and name in _NUMPY:
        return _NUMPY[name]
    if found in _ALLOWED:
        return found
    if module.partition(".")[0] in _CLOSED_PACKAGES:
        raise MetadataError(f"the dataset's metadata names {module}.{name}, which is not allowed")
    return found


def _call(what: Name, args: tuple[Any, ...]) -> Any:
    """Make what a call of an allowed function would have given."""
    maker = _CALLS.get(what)
    if maker is None:
        raise MetadataError(f"the dataset's metadata calls {what.module}.{what.name}, which is not allowed")
    return maker(*args)


def _new(what: Name, args: tuple[Any, ...]) -> Any:
    """Make an inert object of an allowed class, or of an unknown class, which may be a codec."""
    if what == _FIELD:
        return _field_made(args)
    if args or (what in _ALLOWED and what not in _NEW):
        raise MetadataError(f"the dataset's metadata makes a {what.module}.{what.name}, which is not allowed")
    return Made(what.module, what.name)


def _reconstruct(cls: Any = None, base: Any = None, value: Any = None) -> Any:
    if not isinstance(cls, Name) or base not in (_OBJECT, _TUPLE):
        raise MetadataError(f"the dataset's metadata rebuilds a {_kind(cls)}, which is not allowed")
    if base == _TUPLE and not isinstance(value, tuple):
        raise MetadataError(f"the dataset's metadata rebuilds a tuple from {_kind(value)}")
    return _new(cls, () if base == _OBJECT else value)


def _restore(name: Any = None, parts: Any = None, values: Any = None) -> Any:
    if name != "UnischemaField" or not isinstance(parts, tuple | list) or tuple(parts) != _FIELD_PARTS:
        raise MetadataError("the dataset's metadata restores a tuple that is not a UnischemaField")
    return _field_made(tuple(values) if isinstance(values, tuple | list) else ())


def _field_made(values: tuple[Any, ...]) -> Made:
    if len(values) != len(_FIELD_PARTS):
        raise MetadataError(f"a stored field has {len(values)} parts, wanted {', '.join(_FIELD_PARTS)}")
    return Made(_FIELD.module, _FIELD.name, values)


def _ordered_dict(pairs: Any = ()) -> dict[Any, Any]:
    if not isinstance(pairs, tuple | list) or not all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs):
        raise MetadataError("damaged pickle: an OrderedDict of something other than pairs")
    return {checked_key(key): value for key, value in pairs}


def _default_dict(factory: Any = None) -> dict[Any, Any]:
    if factory is not None and factory != _SET:
        raise MetadataError(f"damaged pickle: a defaultdict of {_kind(factory)}")
    return {}


def _set(items: Any = ()) -> set[Any]:
    if not isinstance(items, tuple | list | set):
        raise MetadataError(f"damaged pickle: a set of {_kind(items)}")
    return {checked_key(item) for item in items}


def _scalar(dtype: Any = None, data: Any = b"") -> Any:
    raw = data.encode("latin1") if isinstance(data, str) else data
    kind = _dtype(dtype)
    if not isinstance(raw, bytes) or kind is None or (kind.itemsize != len(raw)):
        raise MetadataError(f"damaged pickle: a NumPy scalar of {_kind(dtype)}")
    return np.frombuffer(raw, kind)[0] if raw else kind.type()  # an empty text or no bytes


def _dtype(made: Any) -> np.dtype[Any] | None:
    """Return the dtype that `numpy.dtype(code)` and its state describe; None if it is not one of plain scalars."""
    if not (isinstance(made, Made) and Name(made.module, made.name) == _DTYPE and len(made.args) == 1):
        return None
    code, state = made.args[0], made.state
    if not isinstance(code, str) or not re.fullmatch(r"[biufUSMm]\d{0,9}", code):
        return None
    order = state[1] if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "=", "|") else "="
    unit = _unit(state) if code[:1] in "Mm" else ""
    try:
        return np.dtype(f"{order}{code}{unit}")
    except (TypeError, ValueError):
        return None


def _unit(state: Any) -> str:
    """Return "[ns]" from a date dtype's state, whose last part is (metadata, (unit, count, ...))."""
    try:
        unit, count = state[8][1][:2]
        unit = unit.decode() if isinstance(unit, bytes) else unit
        return f"[{int(count)}{unit}]" if unit.isalpha() and len(unit) < 10 else ""
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        return ""


def _decimal(text: Any = None) -> Decimal:
    try:
        return Decimal(text if isinstance(text, str) and len(text) < 100 else "not a number of a sensible length")
    except InvalidOperation:
        raise MetadataError("damaged pickle: a Decimal that is not a number") from None


_CALLS: dict[Name, Any] = {
    _DTYPE: lambda code=None, *_: Made(_DTYPE.module, _DTYPE.name, (code,)),
    _DECIMAL: _decimal,
    _RECONSTRUCTOR: _reconstruct,
    _RESTORE: _restore,
    _SCALAR: _scalar,
    _ORDERED: _ordered_dict,
    _DEFAULT: _default_dict,
    _SET: _set,
}


def _field(made: Any, left: Iterator[int]) -> UnischemaField:
    if not (isinstance(made, Made) and Name(made.module, made.name) == _FIELD):
        raise MetadataError(f"Petastorm's stored schema has {_kind(made)} for a field")
    name, numpy_dtype, shape, codec, nullable = made.args
    if not isinstance(name, str) or not isinstance(nullable, bool | int):
        raise MetadataError(f"Petastorm's stored schema has a field named {_kind(name)}")
    if (
        not isinstance(shape, tuple | list)
        or len(shape) > _MAX_DIMS
        or not all((n is None or (isinstance(n, int) and 0 <= n < 1 << 63)) for n in shape)
    ):
        raise MetadataError(f"Petastorm's stored schema has {_kind(shape)} for a shape")
    dtype: Any = Decimal if numpy_dtype == _DECIMAL else numpy_dtype
    if dtype is not None and not (isinstance(dtype, type) and (dtype is Decimal or issubclass(dtype, np.generic))):
        dtype = _dtype(numpy_dtype)
        if dtype is None:
            raise MetadataError(f"Petastorm's stored schema: field {name!r} has {_kind(numpy_dtype)} for a dtype")
    return UnischemaField(name, dtype, tuple(shape), _codec(codec, left), bool(nullable))


def _codec(made: Any, left: Iterator[int]) -> DataframeColumnCodec | None:
    if made is None:
        return None
    if not isinstance(made, Made) or (Name(made.module, made.name) in _ALLOWED - _CODECS):
        raise MetadataError(f"Petastorm's stored schema has {_kind(made)} for a codec")
    state = made.state if isinstance(made.state, dict) else {}
    if Name(made.module, made.name) in _CODECS:
        if made.name == "ScalarCodec":
            return ScalarCodec(_spark_type(state.get("_spark_type")))
        if made.name == "CompressedImageCodec":
            kind, quality = state.get("_image_codec", ".png"), state.get("_quality", 80)
            if not isinstance(kind, str) or not isinstance(quality, int):
                raise MetadataError("Petastorm's stored schema has a damaged CompressedImageCodec")
            return CompressedImageCodec(kind, quality)
        return NdarrayCodec() if made.name == "NdarrayCodec" else CompressedNdarrayCodec()
    # Our own values stand for the inert ones; what is neither stays out of reach.
    return codec_from_state(made.module, made.name, {str(key): _plain(value, left) for key, value in state.items()})


def _spark_type(made: Any) -> SparkType | None:
    if isinstance(made, Name):  # ScalarCodec(IntegerType), the class: Petastorm took it
        made = Made(made.module, made.name)
    if made is None:
        return None
    if not isinstance(made, Made) or Name(made.module, made.name) not in _SPARK or not isinstance(made.state, dict):
        raise MetadataError(f"Petastorm's stored schema has {_kind(made)} for a Spark type")
    if made.name == "DecimalType":
        precision, scale = made.state.get("precision", 10), made.state.get("scale", 0)
        if not (
            isinstance(precision, int) and isinstance(scale, int) and 1 <= precision <= 38 and 0 <= scale <= precision
        ):
            raise MetadataError("Petastorm's stored schema has a DecimalType that Spark does not have")
        return SparkType("DecimalType", precision, scale)
    return SparkType(made.name, element=_spark_type(made.state.get("elementType")))


def _plain(value: Any, left: Iterator[int]) -> Any:
    if next(left, None) is None:  # a few shared lists unfold to any number of values
        raise MetadataError("Petastorm's stored schema has a codec of too large a state")
    if isinstance(value, list | tuple):
        return type(value)([_plain(v, left) for v in value])
    if isinstance(value, dict):
        return {k: _plain(v, left) for k, v in value.items()}
    if isinstance(value, Made):
        found = Name(value.module, value.name)
        return _dtype(value) if found == _DTYPE else _spark_type(value) if found in _SPARK else None
    return value if isinstance(value, str | bytes | int | float | type(None) | np.generic | type) else None


def _index(made: Any) -> RowGroupIndex:
    if not isinstance(made, Made) or Name(made.module, made.name) not in _INDEXERS or not isinstance(made.state, dict):
        raise MetadataError(f"Petastorm's stored index has {_kind(made)} for an indexer")
    name, column, held = (cast("Any", made.state.get(k)) for k in ("_index_name", "_column_name", "_index_data"))
    groups = list(held.values()) if isinstance(held, dict) else [held]
    if sum(len(g) for g in groups if isinstance(g, set)) > _MAX_ORDINALS:  # one set may stand for many values
        raise MetadataError(f"Petastorm's stored index has more than {_MAX_ORDINALS} row groups for its values")
    groups = list({id(g): g for g in groups}.values())
    ordinals = all(isinstance(g, set) and all(isinstance(one, int | np.integer) for one in g) for g in groups)
    if not isinstance(name, str) or not isinstance(column, str) or not ordinals:
        raise MetadataError("Petastorm's stored index is damaged: an indexer without name, column or row groups")
    return RowGroupIndex(name, column, held)


def _kind(value: Any) -> str:
    """Name a value in an error without printing it: it may be as large as the pickle wants."""
    if isinstance(value, Made | Name):
        return f"{value.module}.{value.name}"[:200]
    return type(value).__name__
