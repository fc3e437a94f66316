"""A DataFrame on its way to Parquet: vectors to arrays, floating-point columns to one precision, and the write itself.

Takes a DataFrame of Spark, classic or Connect, and gives columns that every reader knows. Knows nothing of caches, and
imports pyspark when its functions are called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.petastorm._reader_options import whole_number
from penstock.spark.session import check_columns, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CODECS = ("uncompressed", "snappy", "gzip", "lz4", "zstd")
"""Codecs of Parquet that Spark writes and readers read."""
DTYPES = (None, "float32", "float64")


@dataclass(frozen=True, slots=True)
class Settings:
    """How a DataFrame is written; checked here once."""

    row_group_bytes: int
    codec: str
    dtype: str | None

    @classmethod
    def checked(cls, row_group_bytes: Any, codec: Any, dtype: Any) -> Settings:
        """Return the settings; RuntimeError for a wrong codec, ValueError for a wrong dtype, as Petastorm has it."""
        row_group_bytes = whole_number("parquet_row_group_size_bytes", row_group_bytes, least=1)
        if codec is not None and str(codec).lower() not in CODECS:
            names = ", ".join(map(repr, CODECS))
            raise RuntimeError(
                f"compression_codec must be None or one of {names}, the codecs of Parquet; got {codec!r}"
            )
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype} is not supported; give 'float32', 'float64' or None (precision is left)")
        return cls(row_group_bytes, "uncompressed" if codec is None else str(codec).lower(), dtype)


def converted(df: Any, dtype: str | None) -> Any:
    """Return the DataFrame with vectors as arrays and doubles as floats (`float32`), or floats as doubles (`float64`).

    Arrays of numbers are converted as the numbers are, whole numbers and decimals not at all. With None only vectors
    change, to arrays of doubles. A DataFrame in which nothing changes comes back as it is.
    """
    fields = df.schema.fields
    check_columns(df)
    columns = {field.name: column for field in fields if (column := _converted(field, dtype)) is not None}
    if not columns:
        return df
    from pyspark.sql import functions

    return df.select([columns.get(field.name, functions.col(quoted(field.name))) for field in fields])


def _converted(field: Any, dtype: str | None) -> Any:
    """Return the column in another form, or None where it stays as it is."""
    from pyspark.sql import functions

    column = functions.col(quoted(field.name))
    if type(field.dataType).__name__ == "VectorUDT":  # of pyspark.ml or pyspark.mllib
        try:
            from pyspark.ml.functions import vector_to_array
        except ImportError as exc:  # pyspark does not install what its ml package imports
            raise ImportError(
                f"columns of vectors need what pyspark.ml imports: pip install numpy pandas ({exc})"
            ) from exc
        array = vector_to_array(column, dtype or "float64")  # fails on nulls, which stay nulls
        return functions.when(column.isNotNull(), array).alias(field.name)
    wanted = _precise(field.dataType, dtype)
    return None if wanted == field.dataType else column.cast(wanted).alias(field.name)


def _precise(kind: Any, dtype: str | None) -> Any:
    from pyspark.sql.types import ArrayType, DoubleType, FloatType

    if isinstance(kind, ArrayType):
        return ArrayType(_precise(kind.elementType, dtype), kind.containsNull)
    if dtype == "float32" and isinstance(kind, DoubleType):
        return FloatType()
    if dtype == "float64" and isinstance(kind, FloatType):
        return DoubleType()
    return kind


def write(df: Any, url: str, settings: Settings) -> Mapping[str, int]:
    """Write a DataFrame as Parquet below a folder that is there, and return the length of its arrays.

    Returns:
        Length by name of the columns of arrays that have as many elements in every row, found while writing.
    """
    observed, lengths = _observing(df)
    writer = observed.write.mode("append").option("compression", settings.codec)
    writer = writer.option("parquet.block.size", settings.row_group_bytes)
    # Parquet looks at the size of a row group after 100 rows at first, which may be gigabytes of images.
    writer.option("parquet.page.size.row.check.min", 3).parquet(url)
    return lengths()


def _observing(df: Any) -> tuple[Any, Callable[[], dict[str, int]]]:
    """Return the DataFrame with the lengths of its arrays observed, and the function that returns them afterwards."""
    from pyspark.sql import Observation, functions
    from pyspark.sql.types import ArrayType

    kinds = {field.name: field.dataType for field in df.schema.fields}
    arrays = [
        name
        for name, kind in kinds.items()
        if isinstance(kind, ArrayType) and not isinstance(kind.elementType, ArrayType)
    ]
    if not arrays:
        return df, dict
    observation = Observation()
    looks = []
    for index, name in enumerate(arrays):
        length = functions.coalesce(functions.size(quoted(name)), functions.lit(-1))  # -1: a null
        looks += [functions.min(length).alias(f"least_{index}"), functions.max(length).alias(f"most_{index}")]

    def lengths() -> dict[str, int]:
        found = observation.get
        ends = {name: (found[f"least_{index}"], found[f"most_{index}"]) for index, name in enumerate(arrays)}
        return {name: int(least) for name, (least, most) in ends.items() if least == most and (least or 0) > 0}

    return df.observe(observation, *looks), lengths
