"""What each Arrow type becomes in NumPy: the table of docs/types.md as code.

Takes Arrow types, returns kinds: `Fixed` for stacked columns, `Objects` for columns of Python values. Used once per
column, when a dataset is opened or a loader is built; `arrow` then converts memory by these kinds. Reads no data;
raises for types without a row in the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa

from penstock.errors import SchemaError, UnsupportedType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Fixed:
    """A column whose rows are all of one dtype and shape: stacked in a batch."""

    dtype: np.dtype[Any]
    """Of the values, native byte order."""
    shape: tuple[int, ...]
    """Of one row; () for scalars."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """A binary column whose cells go to a codec."""


@dataclass(frozen=True, slots=True)
class Objects:
    """A column whose rows are Python values."""

    as_list: bool
    """False: one str, bytes, Decimal or None a row, an object array in a batch. True: rows that are arrays, lists or
    dicts of their own size, a list in a batch."""
    item: np.dtype[Any] | type | None = None
    """What the innermost values become: a dtype, str, bytes or Decimal; None: as in docs/types.md for their type."""


FORMS = {
    "NA": "null",
    "BOOL": "bool",
    **dict.fromkeys(("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"), "number"),
    **dict.fromkeys(("HALF_FLOAT", "FLOAT", "DOUBLE"), "number"),
    **dict.fromkeys(("DATE32", "DATE64", "TIME32", "TIME64", "TIMESTAMP", "DURATION"), "temporal"),
    **dict.fromkeys(("DECIMAL32", "DECIMAL64", "DECIMAL128", "DECIMAL256"), "decimal"),
    **dict.fromkeys(("STRING", "LARGE_STRING", "STRING_VIEW"), "text"),
    **dict.fromkeys(("BINARY", "LARGE_BINARY", "BINARY_VIEW", "FIXED_SIZE_BINARY"), "bytes"),
    **dict.fromkeys(("LIST", "LARGE_LIST", "LIST_VIEW", "LARGE_LIST_VIEW"), "list"),
    "FIXED_SIZE_LIST": "fixed_list",
    "MAP": "map",
    "STRUCT": "struct",
    "DICTIONARY": "dictionary",
    "RUN_END_ENCODED": "runs",
    "EXTENSION": "extension",
    **dict.fromkeys(("SPARSE_UNION", "DENSE_UNION"), "union"),
    **dict.fromkeys(("INTERVAL_MONTHS", "INTERVAL_DAY_TIME", "INTERVAL_MONTH_DAY_NANO"), "interval"),
}
"""Every Arrow type id by name, and the form its columns take. "union" and "interval" are refused."""

_EXTENSION_ID = 31  # Arrow's Type::EXTENSION, which pyarrow does not name


def type_id(name: str) -> int:
    """Return the id of an Arrow type by name, or -1 where this pyarrow does not have it."""
    return _EXTENSION_ID if name == "EXTENSION" else int(getattr(pa.lib, f"Type_{name}", -1))


FORM_OF_ID = {type_id(name): form for name, form in FORMS.items() if type_id(name) >= 0}
"""The form of each type id that this pyarrow has."""

NATIVE = {
    type_id(name): np.dtype(getattr(np, name.lower()))
    for name in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
} | {type_id("HALF_FLOAT"): np.dtype("f2"), type_id("FLOAT"): np.dtype("f4"), type_id("DOUBLE"): np.dtype("f8")}
"""The dtype of each type id whose Arrow memory *is* the NumPy array."""

_CURES = {
    "union": "store the alternatives as nullable columns or struct fields",
    "interval": "store it as a duration",
}


def _refuse(name: str, arrow_type: pa.DataType, cure: str) -> NoReturn:
    message = f"column {name!r} has the Arrow type {arrow_type}, which has no row in docs/types.md"
    raise UnsupportedType(f"{message}; leave it out with columns=..., or {cure}")


def form_of(arrow_type: pa.DataType) -> str:
    """Return the form of a type, "unknown" for one that is newer than the table."""
    return FORM_OF_ID.get(arrow_type.id, "unknown")


def leaf_of(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type of the values in a list, however deep; of others themselves."""
    while form_of(arrow_type) in ("list", "fixed_list"):
        arrow_type = arrow_type.value_type
    return arrow_type


def temporal_dtype(arrow_type: pa.DataType) -> np.dtype[Any]:
    """Return the dtype of a date, time, timestamp or duration; a timestamp's zone is dropped, its values are UTC."""
    if arrow_type.id == type_id("DATE32"):
        return np.dtype("M8[D]")
    if arrow_type.id == type_id("DATE64"):
        return np.dtype("M8[ms]")
    letter = "M8" if arrow_type.id == type_id("TIMESTAMP") else "m8"
    return np.dtype(f"{letter}[{arrow_type.unit}]")


def scalar_dtype(arrow_type: pa.DataType) -> np.dtype[Any]:
    """Return the dtype of a type of the forms bool, number and temporal."""
    if form_of(arrow_type) == "bool":
        return np.dtype(np.bool_)
    return NATIVE[arrow_type.id] if arrow_type.id in NATIVE else temporal_dtype(arrow_type)


def natural_kind(arrow_type: pa.DataType, name: str) -> Fixed | Objects:
    """Return the kind of a column as docs/types.md states it, without any conversion.

    Looks inside nested types, so that a list of something unsupported is refused too.
    """
    form = form_of(arrow_type)
    if form in _SIMPLE:
        return _SIMPLE[form](arrow_type)
    if form in ("dictionary", "runs"):
        return natural_kind(arrow_type.value_type, name)
    if form in ("list", "fixed_list"):
        inner = natural_kind(arrow_type.value_type, name)
        if form == "fixed_list" and isinstance(inner, Fixed):
            return Fixed(inner.dtype, (arrow_type.list_size, *inner.shape))
        return Objects(as_list=True, item=inner.dtype if isinstance(inner, Fixed) else inner.item)
    if form == "map":
        for part in (arrow_type.key_type, arrow_type.item_type):
            natural_kind(part, name)
        return Objects(as_list=True)
    if form == "struct":
        fields = struct_fields(arrow_type)
        if not fields or len({field.name for field in fields}) != len(fields):
            _refuse(name, arrow_type, "give every field of the struct its own name, and the struct at least one field")
        for field in fields:
            natural_kind(field.type, f"{name}.{field.name}")
        return Objects(as_list=True)
    if form != "extension":
        _refuse(name, arrow_type, _CURES.get(form, "cast it to a type of the table"))
    if isinstance(arrow_type, pa.FixedShapeTensorType):
        inner = natural_kind(arrow_type.value_type, name)
        if not isinstance(inner, Fixed):
            _refuse(name, arrow_type, "store a tensor of numbers")
        return Fixed(inner.dtype, tuple(arrow_type.shape[axis] for axis in tensor_order(arrow_type)))
    if arrow_type.extension_name == "arrow.bool8":
        return Fixed(np.dtype(np.bool_), ())
    return natural_kind(arrow_type.storage_type, name)


_SIMPLE: dict[str, Callable[[pa.DataType], Fixed | Objects]] = {
    "null": lambda _: Objects(as_list=False),
    "bool": lambda t: Fixed(scalar_dtype(t), ()),
    "number": lambda t: Fixed(scalar_dtype(t), ()),
    "temporal": lambda t: Fixed(scalar_dtype(t), ()),
    "text": lambda _: Objects(as_list=False, item=str),
    "bytes": lambda _: Objects(as_list=False, item=bytes),
    "decimal": lambda _: Objects(as_list=False, item=Decimal),
}


def struct_fields(arrow_type: pa.DataType) -> list[pa.Field]:
    """Return the fields of a struct type, by position (names may be empty or repeated)."""
    return [arrow_type.field(i) for i in range(arrow_type.num_fields)]


def tensor_order(arrow_type: pa.DataType) -> tuple[int, ...]:
    """Return the axes of a tensor as stored, in the order in which the user sees them."""
    return tuple(arrow_type.permutation or range(len(arrow_type.shape)))


def column_kind(
    arrow_type: pa.DataType, *, name: str, numpy_dtype: Any = None, shape: Sequence[int | None] | None = None
) -> Fixed | Objects:
    """Return how a column without a cell codec becomes values.

    Args:
        arrow_type: As stored. A struct gives rows that are dicts; flatten it first to have its fields by path.
        name: The column, for messages.
        numpy_dtype: The dtype of the schema's field; None: as in docs/types.md for the stored type. Differing
            types are converted value by value when the column is read, and a value that does not fit is an error there.
        shape: The shape of the schema's field. Lists of any type are stacked if it has no free dimension.

    Raises:
        UnsupportedType: The type has no row in docs/types.md, or cannot become `numpy_dtype`.
        SchemaError: `shape` contradicts the stored shape.
    """
    kind = _converted(natural_kind(arrow_type, name), _target(numpy_dtype, name), name, arrow_type)
    # A field without numpy_dtype passes values as they are stored: inference gives (None,) to lists of any depth.
    checked = shape is not None and numpy_dtype is not None
    return _shaped(kind, tuple(shape or ()), name, _rank(arrow_type)) if checked else kind


def _target(numpy_dtype: Any, name: str) -> np.dtype[Any] | type | None:
    """Return what a field's numpy_dtype means: a dtype, str, bytes, Decimal, or None for no conversion."""
    if numpy_dtype is None:
        return None
    if numpy_dtype is Decimal:
        return Decimal
    try:
        dtype = np.dtype(numpy_dtype)
    except TypeError as error:
        raise SchemaError(f"column {name!r}: numpy_dtype {numpy_dtype!r} is not a NumPy type or Decimal") from error
    python: dict[str, type | None] = {"U": str, "S": bytes, "O": None}
    return python[dtype.kind] if dtype.kind in python else dtype.newbyteorder("=")


def _converted(
    kind: Fixed | Objects, target: np.dtype[Any] | type | None, name: str, arrow_type: pa.DataType
) -> Fixed | Objects:
    natural = kind.dtype if isinstance(kind, Fixed) else kind.item
    target = _with_unit(target, natural)
    if target is None or target == natural:
        return kind
    if not _convertible(kind, natural, target):
        wanted = target.__name__ if isinstance(target, type) else target
        message = f"column {name!r} has the Arrow type {arrow_type}, which cannot become {wanted}"
        raise UnsupportedType(f"{message}; give its field the numpy_dtype that docs/types.md names, or None")
    if isinstance(kind, Objects) and kind.as_list:
        return Objects(as_list=True, item=target)
    if isinstance(target, np.dtype):
        return Fixed(target, kind.shape if isinstance(kind, Fixed) else ())
    return Objects(as_list=False, item=target)


def _with_unit(
    target: np.dtype[Any] | type | None, natural: np.dtype[Any] | type | None
) -> np.dtype[Any] | type | None:
    """Give np.datetime64 and np.timedelta64, which name no unit, the unit that is stored."""
    if not isinstance(target, np.dtype) or target.kind not in "mM" or np.datetime_data(target)[0] != "generic":
        return target
    if isinstance(natural, np.dtype) and natural.kind == target.kind:
        return natural
    return np.dtype(f"{target.kind}8[us]")


def _letter(value: np.dtype[Any] | type) -> str:
    """Name a family of values: number, bool, M (instant), m (span), text, bytes, Decimal."""
    if not isinstance(value, np.dtype):
        return value.__name__
    return {"b": "bool", "i": "number", "u": "number", "f": "number"}.get(value.kind, value.kind)


_BECOMES = {
    "number": {"number", "bool", "str", "Decimal"},
    "bool": {"number", "bool", "str"},
    "M": {"M"},
    "m": {"m"},
    "str": {"number", "str", "bytes", "Decimal", "M"},
    "bytes": {"bytes", "str"},
    "Decimal": {"number", "str", "Decimal"},
}


def _convertible(kind: Fixed | Objects, natural: np.dtype[Any] | type | None, target: np.dtype[Any] | type) -> bool:
    if natural is None:  # a column of nulls becomes anything; a map or a list of structs nothing else
        return isinstance(kind, Objects) and not kind.as_list
    if isinstance(kind, Fixed) and kind.shape and not isinstance(target, np.dtype):
        return False
    return _letter(target) in _BECOMES[_letter(natural)]


def _shaped(kind: Fixed | Objects, shape: tuple[int | None, ...], name: str, rank: int | None) -> Fixed | Objects:
    """Stack lists whose length the schema fixes, and give stored numbers the schema's shape."""
    sizes = tuple(size for size in shape if size is not None)
    free = len(sizes) < len(shape)
    if isinstance(kind, Fixed) and not free:
        if math.prod(sizes) != math.prod(kind.shape):
            _contradicts(name, shape, f"shape {kind.shape}")
        return Fixed(kind.dtype, sizes)
    if rank is not None and len(shape) != rank:
        _contradicts(name, shape, f"values of {rank} dimensions")
    if isinstance(kind, Objects) and kind.as_list and isinstance(kind.item, np.dtype) and not free:
        return Fixed(kind.item, sizes)
    return kind


def _contradicts(name: str, shape: tuple[int | None, ...], stored: str) -> NoReturn:
    message = f"column {name!r}: the schema declares the shape {shape}, the file stores {stored}"
    raise SchemaError(f"{message}; give the field the stored shape, with None for a free dimension")


def _rank(arrow_type: pa.DataType) -> int | None:
    """Return how many axes a row has, counting each level of lists; None where that has no meaning (maps, structs)."""
    form = form_of(arrow_type)
    if form in ("map", "struct", "null"):
        return None
    if form == "extension":
        tensor = isinstance(arrow_type, pa.FixedShapeTensorType)
        return len(arrow_type.shape) if tensor else _rank(arrow_type.storage_type)
    if form in ("dictionary", "runs"):
        return _rank(arrow_type.value_type)
    if form not in ("list", "fixed_list"):
        return 0
    inner = _rank(arrow_type.value_type)
    return None if inner is None else inner + 1
