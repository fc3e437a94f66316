"""`Unischema` and `UnischemaField`: name, dtype, shape, codec and nullability of every column of a dataset.

Comes from the user, from stored metadata (`stored`) or from an Arrow schema (`arrow`); readers and writers follow it.
Reads no file; `encode` turns rows into cells, and `rows` makes their named tuples.
"""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.errors import ColumnNotFound, SchemaError, close_names
from penstock.schema.rows import row_type

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.codecs import DataframeColumnCodec

_UNISCHEMA_FIELD_ORDER = "preserve_input_order"  # Petastorm's switch; "alphabetical" sorts, as its old versions did


class _FieldTuple(NamedTuple):
    name: str
    numpy_dtype: Any
    shape: tuple[int | None, ...]
    codec: DataframeColumnCodec | None
    nullable: bool


class UnischemaField(_FieldTuple):
    """One column: name, dtype, shape, codec and whether it may be null.

    `numpy_dtype` is kept as a NumPy scalar class, `decimal.Decimal`, or None (values are not checked); dtypes, their
    names and Python's own types are converted. `shape` is `()` for scalars, with None for free dimensions. Two fields
    are equal if everything but their codecs is equal.
    """

    unit: str | None = None
    """Unit of times, if `numpy_dtype` was given with one ("datetime64[ns]"): readers convert to it.

    Not one of the five parts, because Petastorm's programs unpack these and compare `numpy_dtype` with classes.
    """

    def __new__(
        cls,
        name: str,
        numpy_dtype: Any,
        shape: tuple[int | None, ...],
        codec: DataframeColumnCodec | None = None,
        nullable: bool = False,
    ) -> UnischemaField:
        """Check and normalise the five parts; SchemaError names the field."""
        if not isinstance(name, str) or not name:
            raise SchemaError(f"a field's name must be a non-empty str, got {name!r}")
        kind = scalar_class(name, numpy_dtype)
        if not isinstance(shape, tuple | list):
            raise SchemaError(f"field {name!r} needs a tuple as its shape, () for a scalar; got {shape!r}")
        if any(n is not None and (not isinstance(n, int | np.integer) or n < 0) for n in shape):
            raise SchemaError(
                f"field {name!r}: sizes are whole numbers, or None for a free dimension; got {tuple(shape)}"
            )
        made = super().__new__(
            cls, name, kind, tuple(None if n is None else int(n) for n in shape), codec, bool(nullable)
        )
        if kind is np.datetime64 or kind is np.timedelta64:
            unit, count = np.datetime_data(np.dtype(numpy_dtype))
            if unit != "generic":
                made.unit = unit if count == 1 else f"{count}{unit}"
        return made

    @property
    def asked_dtype(self) -> Any:
        """`numpy_dtype`, as a dtype with its unit if one was given."""
        return self.numpy_dtype if self.unit is None else np.dtype(f"{self.numpy_dtype.__name__}[{self.unit}]")

    def _replace(self, **changes: Any) -> UnischemaField:
        return UnischemaField(**{**self._asdict(), "numpy_dtype": self.asked_dtype, **changes})

    def _facts(self) -> tuple[Any, ...]:
        return (self.name, self.numpy_dtype, self.unit, self.shape, self.nullable)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnischemaField) and self._facts() == other._facts()

    def __ne__(self, other: object) -> bool:
        return not self == other  # tuple has its own

    def __hash__(self) -> int:
        return hash(self._facts())

    def __repr__(self) -> str:
        dtype = dtype_text(self.numpy_dtype) if self.unit is None else repr(self.asked_dtype.name)
        parts = [repr(self.name), dtype, repr(self.shape)]
        parts += [] if self.codec is None else [str(self.codec)]
        return f"UnischemaField({', '.join(parts)}{', nullable=True' if self.nullable else ''})"


def schema_name(schema: Unischema) -> str:
    """Return the name of a schema; a function, because `schema.name` is the field "name"."""
    return schema._name


class Unischema:
    """The columns of a dataset, in order.

    Each field is also an attribute of the schema (`schema.image`), unless a method has that name (a warning says so).
    Only Petastorm's own public names are methods here, so that fields keep theirs.
    """

    def __init__(self, name: str, fields: Iterable[UnischemaField]) -> None:
        listed = [f if isinstance(f, UnischemaField) else UnischemaField(*f) for f in fields]
        if _UNISCHEMA_FIELD_ORDER == "alphabetical":
            listed.sort(key=lambda f: f.name)
        self._name = name
        self._fields: OrderedDict[str, UnischemaField] = OrderedDict((f.name, f) for f in listed)
        if len(self._fields) != len(listed):
            twice = sorted({f.name for f in listed if sum(g.name == f.name for g in listed) > 1})
            raise SchemaError(f"schema {name!r} has fields of the same name: {', '.join(twice)}")
        for field in listed:
            # Not hasattr(self): a miss builds an error.
            if field.name in self.__dict__ or hasattr(type(self), field.name):
                warnings.warn(
                    f"Can not create dynamic property {field.name!r} of schema {self._name!r}, which has an attribute "
                    f"of that name; use schema.fields[{field.name!r}]",
                    UserWarning,
                    stacklevel=2,
                )
            else:
                setattr(self, field.name, field)

    @property
    def fields(self) -> OrderedDict[str, UnischemaField]:
        """All fields by name, in order."""
        return self._fields

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also keeps copying and unpickling from recursing
            raise AttributeError(name)
        raise AttributeError(f"schema {self._name!r} has no field {name!r}; {close_names(name, self._fields)}")

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Unischema) and self._name == other._name
        return same and list(self._fields.values()) == list(other._fields.values())  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self._name, *self._fields.values()))

    def __repr__(self) -> str:
        return f"Unischema({self._name!r}, [{''.join(f'{chr(10)}    {f!r},' for f in self._fields.values())}\n])"

    def create_schema_view(self, fields: Iterable[UnischemaField | str]) -> Unischema:
        """Return a schema with some of the fields: first those given as fields, then those that patterns match.

        Fields are taken by name, as this schema has them; strings are regular expressions over whole names, and their
        matches come in schema order. The view is empty if nothing matches.
        """
        wanted = [fields] if isinstance(fields, str) else list(fields)
        if odd := [f for f in wanted if not isinstance(f, tuple | str)]:
            raise SchemaError(
                f"a view's elements must be either a string (regular expression) or a UnischemaField, got {odd[0]!r}"
            )
        names = [f[0] for f in wanted if isinstance(f, tuple)]
        if foreign := [name for name in names if name not in self._fields]:
            raise ColumnNotFound(
                f"field {foreign[0]!r} does not belong to the schema {self._name!r}; "
                f"{close_names(str(foreign[0]), self._fields)}"
            )
        names += [f.name for f in match_unischema_fields(self, [f for f in wanted if isinstance(f, str)])]
        return Unischema(f"{self._name}_view", [self._fields[n] for n in dict.fromkeys(names)])

    def make_namedtuple(self, **kargs: Any) -> Any:
        """Return one row as a named tuple of this schema's fields; TypeError if names are missing or unknown."""
        return row_type(self._name, tuple(self._fields))(**kargs)

    def make_namedtuple_tf(self, *args: Any, **kargs: Any) -> Any:
        """Return one row as a named tuple, by position or by name."""
        return row_type(self._name, tuple(self._fields))(*args, **kargs)

    def as_spark_schema(self) -> Any:
        """Return the Spark `StructType` that rows of this schema are written with (needs pyspark)."""
        from penstock.schema.encode import spark_type

        kinds = [(f.name, spark_type(f), f.nullable) for f in self._fields.values()]
        try:
            from pyspark.sql.types import StructField, StructType
        except ImportError:
            raise ImportError("a Spark schema needs PySpark: pip install 'penstock[spark]'") from None
        return StructType([StructField(*kind) for kind in kinds])

    @classmethod
    def from_arrow_schema(
        cls,
        parquet_dataset: Any,
        omit_unsupported_fields: bool = True,  # noqa: ARG003 - Petastorm's signature
    ) -> Unischema:
        """Infer a schema named `inferred_schema` from an Arrow schema, or from an object that has one as `.schema`.

        No type is left out silently: `omit_unsupported_fields` exists for Petastorm's programs and has no effect.
        """
        from penstock.schema.arrow import infer_unischema

        schema = getattr(parquet_dataset, "schema", parquet_dataset)
        return infer_unischema(schema.to_arrow_schema() if hasattr(schema, "to_arrow_schema") else schema)


def scalar_class(name: str, numpy_dtype: Any) -> Any:
    """Return a dtype as fields store it: a NumPy scalar class, Decimal or None; SchemaError names the field."""
    if numpy_dtype is None or numpy_dtype is Decimal:
        return numpy_dtype
    try:
        dtype = np.dtype(numpy_dtype)
    except TypeError:
        raise SchemaError(f"field {name!r} needs a NumPy dtype, decimal.Decimal or None, got {numpy_dtype!r}") from None
    if dtype.kind in "iufc":  # longlong and long are one type under two names
        return np.dtype(f"{dtype.kind}{dtype.itemsize}").type
    return dtype.type


def match_unischema_fields(schema: Unischema, field_regex: Iterable[str] | None) -> list[UnischemaField]:
    """Return the fields whose whole name matches any of the patterns, in schema order; none for no patterns.

    A pattern that equals the name of a field matches that field only: `s.a` does not match `s_a` if both exist. Warns
    if matching only the beginnings of names, as Petastorm before 0.8 did, would have found other fields.
    """
    patterns = [re.compile(re.escape(p) if p in schema.fields else p) for p in field_regex or []]
    full = [f for f in schema.fields.values() if any(p.fullmatch(f.name) for p in patterns)]
    begin = [f for f in schema.fields.values() if any(p.match(f.name) for p in patterns)]
    if lost := sorted({f.name for f in begin} - {f.name for f in full}):
        warnings.warn(
            "schema_fields behavior has changed: a pattern must match the whole name. Fields that it matches only at "
            f"their beginning: {', '.join(lost)}",
            UserWarning,
            stacklevel=2,
        )
    return full


def dtype_text(numpy_dtype: Any) -> str:
    """Return a field's dtype as source code would name it."""
    if numpy_dtype is None or numpy_dtype is Decimal:
        return "None" if numpy_dtype is None else "Decimal"
    return "np.bool_" if numpy_dtype is np.bool_ else f"np.{numpy_dtype.__name__}"  # NumPy 2 calls it bool
