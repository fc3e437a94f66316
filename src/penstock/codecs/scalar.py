"""Scalars: native Parquet columns, with the checks and the storage types that Petastorm's ScalarCodec has.

Nothing is decoded here on the hot path: a native column is read as an array (see `codecs/arrow.py`). This codec
defines the Arrow type of the stored column, converts single values, and remembers the type that the user gave.
`SparkType` stands for a type of pyspark, which need not be installed.
"""

from __future__ import annotations

import base64
import datetime
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.codecs.base import JSON, Codec, FieldLike
from penstock.errors import CodecError, UnsupportedType

if TYPE_CHECKING:
    import pyarrow as pa

_ARROW_NAMES = {
    "StringType": "string",
    "VarcharType": "string",
    "CharType": "string",
    "BinaryType": "binary",
    "BooleanType": "bool",
    "ByteType": "int8",
    "ShortType": "int16",
    "IntegerType": "int32",
    "LongType": "int64",
    "FloatType": "float32",
    "DoubleType": "float64",
    "DateType": "date32",
    "TimestampNTZType": "timestamp[us]",
}
_CHECKED_AS = {
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "int",
    "float32": "float",
    "float64": "float",
    "bool": "bool",
    "string": "str",
}
SPARK_TYPE_NAMES = frozenset(_ARROW_NAMES) | {"DecimalType", "TimestampType", "ArrayType"}
"""Class names that are taken for Spark types."""


@dataclass(frozen=True, slots=True)
class SparkType:
    """One Spark type: its class name and what else makes it up."""

    name: str
    """Class name in `pyspark.sql.types`."""
    precision: int = 10
    """Digits of a DecimalType."""
    scale: int = 0
    """Digits after the point of a DecimalType."""
    element: SparkType | None = None
    """Element of an ArrayType."""

    def __post_init__(self) -> None:
        if self.name not in SPARK_TYPE_NAMES:
            raise CodecError(f"unknown Spark type {self.name!r}; known: {', '.join(sorted(SPARK_TYPE_NAMES))}")

    def __repr__(self) -> str:
        if self.name == "DecimalType":
            return f"DecimalType({self.precision},{self.scale})"
        return f"{self.name}({self.element if self.element is not None else ''})"

    @property
    def kind(self) -> str:
        """Return how values are checked: "int", "float", "bool", "str" or "" (passed through)."""
        return _CHECKED_AS.get(_ARROW_NAMES.get(self.name, ""), "")

    def to_arrow(self) -> pa.DataType:
        """Return the Arrow type of a column that Spark writes for this type."""
        import pyarrow as pa

        if self.name == "DecimalType":
            return pa.decimal128(self.precision, self.scale)
        if self.name == "TimestampType":
            return pa.timestamp("us", tz="UTC")  # Spark's timestamps are instants
        if self.name == "ArrayType":
            return pa.list_((self.element or SparkType("StringType")).to_arrow())
        return pa.type_for_alias(_ARROW_NAMES[self.name])

    def to_json(self) -> dict[str, Any]:
        """Return the type as plain JSON; the inverse of `from_json`."""
        if self.name == "DecimalType":
            return {"name": self.name, "precision": self.precision, "scale": self.scale}
        return {"name": self.name} | ({} if self.element is None else {"element": self.element.to_json()})

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> SparkType:
        """Rebuild a type from what `to_json` gave."""
        element = config.get("element")
        rest = {k: config[k] for k in ("precision", "scale") if k in config}
        return cls(config["name"], element=None if element is None else cls.from_json(element), **rest)

    def to_pyspark(self) -> Any:
        """Return the real Spark type; needs pyspark."""
        try:
            from pyspark.sql import types
        except ImportError:
            raise ImportError("Spark types need PySpark: pip install 'penstock[spark]'") from None
        if self.name == "DecimalType":
            return types.DecimalType(self.precision, self.scale)
        if self.name == "ArrayType":
            return types.ArrayType((self.element or SparkType("StringType")).to_pyspark())
        if self.name in ("VarcharType", "CharType"):
            return types.StringType()
        return getattr(types, self.name)()


def as_spark_type(value: Any) -> SparkType | None:
    """Return our value for a Spark type (instance or class, known by its class name), None for anything else."""
    if isinstance(value, SparkType):
        return value
    cls = value if isinstance(value, type) else type(value)
    if cls.__name__ not in SPARK_TYPE_NAMES or cls.__module__.startswith("pyarrow"):  # pyarrow has a TimestampType too
        return None
    if cls.__name__ == "DecimalType":
        return SparkType("DecimalType", int(getattr(value, "precision", 10)), int(getattr(value, "scale", 0)))
    element = as_spark_type(getattr(value, "elementType", None)) if cls.__name__ == "ArrayType" else None
    return SparkType(cls.__name__, element=element)


# Spark has no unsigned integers: Petastorm stores them one size up, and so do we (uint64, which has none, stays).
_STORED_AS = {
    "int8": "int8",
    "uint8": "int16",
    "int16": "int16",
    "uint16": "int32",
    "int32": "int32",
    "uint32": "int64",
    "int64": "int64",
    "uint64": "uint64",
    "float16": "float32",
    "float32": "float32",
    "float64": "float64",
    "bool": "bool",
}
_DECIMAL_DIGITS = (38, 18)  # what Spark infers for a Decimal of no stated type
NO_NUMBERS = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64, np.complexfloating)
"""Types that Python or NumPy would convert to a number although they are not numbers."""
_INTEGERS = (int, np.integer)
_FLOATS = (float, np.float32, np.float16)
_EXACT = 2**53
"""Up to here every integer is a float; narrower ones round, and are given numbers to round."""
_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "str"}


def default_storage_type(numpy_dtype: Any, *, name: str) -> pa.DataType:
    """Return the Arrow type that scalars of a NumPy dtype (class or instance), or Decimals, are stored as.

    Text is a string, bytes are binary, dates are timestamps in their unit (microseconds where the dtype has none).
    Anything else is refused with an error naming the field.
    """
    import pyarrow as pa

    if numpy_dtype is Decimal:
        return pa.decimal128(*_DECIMAL_DIGITS)
    dtype = None if numpy_dtype is None else np.dtype(numpy_dtype)
    if dtype is not None and dtype.name in _STORED_AS:
        return pa.type_for_alias(_STORED_AS[dtype.name])
    if dtype is not None and dtype.kind in "US":
        return pa.string() if dtype.kind == "U" else pa.binary()
    if dtype is not None and dtype.kind in "mM":
        unit = np.datetime_data(dtype)[0]
        unit = unit if unit in ("s", "ms", "us", "ns") else "us"
        return pa.timestamp(unit) if dtype.kind == "M" else pa.duration(unit)
    raise UnsupportedType(
        f"field {name!r} of {numpy_dtype!r} has no native column type; give ScalarCodec an Arrow or Spark type"
    )


class ScalarCodec(Codec):
    """Store a scalar in a native column.

    `spark_type` may be a Spark type (instance or class), an Arrow type, a NumPy dtype, or None: then the field's own
    dtype decides.

    >>> ScalarCodec("int32")
    ScalarCodec(int32)
    """

    codec_id: ClassVar[str] = "scalar"
    stores_cells: ClassVar[bool] = False

    def __init__(self, spark_type: Any = None) -> None:
        import pyarrow as pa

        self._type: SparkType | pa.DataType | np.dtype[Any] | None = as_spark_type(spark_type)
        if self._type is None and spark_type is not None and spark_type is not Decimal:
            try:
                self._type = spark_type if isinstance(spark_type, pa.DataType) else np.dtype(spark_type)
            except TypeError:
                raise CodecError(
                    f"ScalarCodec takes a Spark type, an Arrow type, a NumPy dtype or nothing; got {spark_type!r}"
                ) from None

    @property
    def spark_type(self) -> SparkType | None:
        """The Spark type that the codec was made with; None if it was another type or none."""
        return self._type if isinstance(self._type, SparkType) else None

    def config(self) -> dict[str, JSON]:
        """Return the type as JSON; an empty dict where none was given."""
        if self._type is None:
            return {}
        if isinstance(self._type, SparkType):
            return {"spark": self._type.to_json()}
        if isinstance(self._type, np.dtype):
            return {"numpy": self._type.str}
        config: dict[str, JSON] = {"arrow": str(self._type)}
        try:
            if _arrow_from_json(config) == self._type:
                return config
        except (ValueError, KeyError):
            pass  # its text does not determine the type: keep its IPC form beside it
        import pyarrow as pa

        ipc = pa.schema([pa.field("value", self._type)]).serialize().to_pybytes()
        return {**config, "ipc": base64.b64encode(ipc).decode()}

    @classmethod
    def from_config(cls, config: dict[str, JSON]) -> ScalarCodec:
        """Rebuild a codec from what `config()` gave."""
        if isinstance(spark := config.get("spark"), dict):
            return cls(SparkType.from_json(spark))
        if "numpy" in config:
            return cls(np.dtype(str(config["numpy"])))
        return cls(_arrow_from_json(config) if config else None)

    def storage_type(self, field: FieldLike) -> pa.DataType:
        """Return the Arrow type of the column: the one given, else the field's default."""
        if isinstance(self._type, SparkType):
            return self._type.to_arrow()
        if self._type is None or isinstance(self._type, np.dtype):
            return default_storage_type(field.numpy_dtype if self._type is None else self._type, name=field.name)
        return self._type

    def spark_dtype(self) -> Any:
        """Return the Spark type (needs pyspark)."""
        if isinstance(self._type, SparkType):
            return self._type.to_pyspark()
        if self._type is None:
            raise CodecError("ScalarCodec() takes its type from the field; use Unischema.as_spark_schema()")
        return spark_type_of(self._type).to_pyspark()

    def encode(self, unischema_field: FieldLike, value: Any) -> Any:
        """Return the value as a plain scalar of the column's type; dates, decimals and bytes pass as they are."""
        if isinstance(value, np.ndarray):
            value = value[()] if value.ndim == 0 else value
        if isinstance(value, list | tuple | dict | set | np.ndarray):
            raise TypeError(f"Expected a scalar for field {unischema_field.name!r}, got {type(value).__name__}")
        if unischema_field.shape:
            raise ValueError(
                f"the shape of field {unischema_field.name!r} must be an empty tuple for a ScalarCodec; it is "
                f"{unischema_field.shape}"
            )
        kind = self._kind(unischema_field)
        if kind == "int":
            if isinstance(value, _INTEGERS) and not isinstance(value, np.timedelta64):  # which NumPy calls an integer
                return int(value)
            if isinstance(value, NO_NUMBERS):
                raise _other(unischema_field, "an integer", value)
            whole = int(value)
            if not isinstance(value, str | bytes) and whole != value:
                raise ValueError(f"field {unischema_field.name!r} expects an integer, got {value!r:.50}")
            return whole
        if kind == "float":
            if isinstance(value, _FLOATS):
                return float(value)
            if isinstance(value, NO_NUMBERS):
                raise _other(unischema_field, "a float", value)
            real = float(value)
            if isinstance(value, _INTEGERS):
                if not -_EXACT <= value <= _EXACT and real != int(value) and unischema_field.numpy_dtype is np.float64:
                    raise ValueError(
                        f"field {unischema_field.name!r}: no float64 is exactly {value}; give a float, or round it"
                    )
            elif math.isinf(real) and "inf" not in str(value).lower():
                raise ValueError(f"field {unischema_field.name!r}: {value!r:.50} is larger than any float")
            return real
        if kind == "bool":
            return flag(unischema_field, value)
        if kind == "str" and not isinstance(value, str):
            raise ValueError(f"field {unischema_field.name!r} expects str, got {type(value).__name__}: {value!r:.50}")
        return str.__str__(value) if kind == "str" else value  # an Enum's own str() would be its name

    def decode(self, unischema_field: FieldLike, value: Any) -> Any:
        """Return a stored value as the field's dtype."""
        kind = unischema_field.numpy_dtype
        if kind is None or (isinstance(kind, type) and isinstance(value, kind)):
            return value
        if isinstance(value, datetime.datetime) and value.tzinfo is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        if kind is np.str_ and isinstance(value, bytes):
            value = value.decode()
        return kind(value)

    def _kind(self, field: FieldLike) -> str:
        if isinstance(self._type, SparkType):
            return self._type.kind
        if self._type is None or isinstance(self._type, np.dtype):
            numpy_dtype = field.numpy_dtype if self._type is None else self._type
            if numpy_dtype is None or numpy_dtype is Decimal:
                return ""
            return _KINDS.get(np.dtype(numpy_dtype).kind, "")
        return spark_type_of(self._type, strict=False).kind

    def __repr__(self) -> str:
        return f"ScalarCodec({'' if self._type is None else self._type})"


def spark_type_of(kind: Any, *, strict: bool = True) -> SparkType:
    """Return the Spark type of an Arrow type or NumPy dtype; if it has none, binary or (strict) an error."""
    import pyarrow as pa

    arrow = default_storage_type(kind, name="") if isinstance(kind, np.dtype) else kind
    if pa.types.is_decimal(arrow):
        return SparkType("DecimalType", arrow.precision, arrow.scale)
    names = {
        "int8": "Byte",
        "int16": "Short",
        "int32": "Integer",
        "int64": "Long",
        "float": "Float",
        "double": "Double",
        "bool": "Boolean",
        "string": "String",
        "large_string": "String",
        "binary": "Binary",
        "large_binary": "Binary",
        "date32[day]": "Date",
    }
    if pa.types.is_timestamp(arrow):
        return SparkType("TimestampNTZType" if arrow.tz is None else "TimestampType")
    if str(arrow) not in names and strict:
        raise CodecError(f"Spark has no type for {kind}; give ScalarCodec a Spark type")
    return SparkType(names.get(str(arrow), "Binary") + "Type")


def flag(field: FieldLike, value: Any) -> bool:
    """Return True or False; ValueError for anything but booleans and the integers 0 and 1."""
    is_time = isinstance(value, NO_NUMBERS)  # of nanoseconds NumPy makes plain integers
    if not is_time and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # also of torch and JAX
        value = value.item()
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise _other(field, "True or False (or 1 or 0)", value)


def _other(field: FieldLike, wanted: str, value: Any) -> ValueError:
    return ValueError(f"field {field.name!r} expects {wanted}, got {type(value).__name__}: {value!r:.50}")


def _arrow_from_json(config: dict[str, JSON]) -> pa.DataType:
    import pyarrow as pa

    text = str(config["arrow"])
    if "ipc" in config:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(str(config["ipc"])))).field(0).type
    if found := re.fullmatch(r"decimal128\((\d+), (-?\d+)\)", text):
        return pa.decimal128(int(found[1]), int(found[2]))
    if found := re.fullmatch(r"timestamp\[(\w+), tz=(.+)\]", text):
        return pa.timestamp(found[1], tz=found[2])
    return pa.type_for_alias(text)
