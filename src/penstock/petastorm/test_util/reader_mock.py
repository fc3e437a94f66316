"""A reader without a dataset: rows are made up by a function, for tests of code that takes a reader.

Has the surface of a reader of rows and never ends, also after `stop` or a `with` block. Starts no thread and reads
nothing.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.schema import Unischema

__all__ = ["ReaderMock", "schema_data_generator_example"]

_FREE_SIZE = 10
"""Size of a dimension that the schema leaves free, as in Petastorm's mock."""


def schema_data_generator_example(schema: Unischema) -> dict[str, Any]:
    """Return a row of zeros: arrays of the fields' dtypes and shapes, 10 for a free dimension; Decimals are 0.0.

    `generator.generate_datapoint` returns random rows.
    """
    return {
        name: Decimal("0.0")
        if field.numpy_dtype is Decimal
        else np.zeros([_FREE_SIZE if size is None else size for size in field.shape], field.numpy_dtype)
        for name, field in schema.fields.items()
    }


class ReaderMock:
    """Returns rows that `schema_data_generator(schema)` makes as dicts, forever.

    With `ngram` each item is a window: a dict from timestep to the row of that step, as a reader gives it.
    """

    batched_output = False
    is_batched_reader = False
    num_epochs = None

    def __init__(
        self, schema: Unischema, schema_data_generator: Callable[[Unischema], Mapping[str, Any]], ngram: Any = None
    ) -> None:
        self.schema = schema
        self.ngram = ngram
        self.last_row_consumed = False
        self.schema_data_generator = schema_data_generator
        if ngram is not None:
            ngram.resolve_regex_field_names(schema)

    def __iter__(self) -> ReaderMock:
        return self

    def fetch(self) -> Any:
        """Return the next row or window."""
        if self.ngram is None:
            return self._row(self.schema)
        return {step: self._row(self.ngram.get_schema_at_timestep(self.schema, step)) for step in self.ngram.timesteps}

    __next__ = next = fetch

    def _row(self, schema: Unischema) -> Any:
        values = self.schema_data_generator(self.schema)
        return schema.make_namedtuple(**{name: values[name] for name in schema.fields})

    def reset(self) -> None:
        """Do nothing: the rows have no position."""

    def stop(self) -> None:
        """Do nothing: there are no threads."""

    def join(self) -> None:
        """Do nothing: there are no threads."""

    def cleanup_cache(self) -> None:
        """Do nothing: there is no cache."""

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Return an empty dict."""
        return {}

    def __enter__(self) -> ReaderMock:
        return self

    def __exit__(self, *exc: object) -> None:
        """Do nothing: one mock may serve several `with` blocks."""
