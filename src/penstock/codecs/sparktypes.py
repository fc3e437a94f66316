"""Spark's column types as small values of our own, so that pyspark is never needed to read a dataset.

`as_spark_type` recognises what users hand over (a pyspark type, instance or class, or a stand-in made from stored
metadata) by class name; `SparkType` translates to Arrow. Only `to_pyspark` imports pyspark, when Spark itself is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import CodecError

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
        kinds = {"ByteType": "int", "ShortType": "int", "IntegerType": "int", "LongType": "int"}
        kinds |= {"FloatType": "float", "DoubleType": "float", "BooleanType": "bool"}
        return kinds.get(self.name, "str" if _ARROW_NAMES.get(self.name) == "string" else "")

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
