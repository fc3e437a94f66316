"""A reader without a dataset: rows are made up by a function, for tests of code that takes a reader.

Has the surface of a reader of rows and never ends. Starts no thread and reads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.petastorm.generator import generate_datapoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.schema import Unischema

__all__ = ["ReaderMock", "schema_data_generator_example"]


def schema_data_generator_example(schema: Unischema) -> dict[str, Any]:
    """Return one random row that fits the schema."""
    return generate_datapoint(schema)


class ReaderMock:
    """Gives rows that `schema_data_generator(schema)` returns as dicts, for ever.

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
        self.stopped = False
        self._generator = schema_data_generator
        if ngram is not None:
            ngram.resolve_regex_field_names(schema)

    def __iter__(self) -> ReaderMock:
        return self

    def __next__(self) -> Any:
        if self.stopped:
            raise RuntimeError("the reader was stopped; make a new one")
        return self._row(self.schema) if self.ngram is None else self._window()

    def next(self) -> Any:
        """Return the next row or window."""
        return next(self)

    def _row(self, schema: Unischema) -> Any:
        values = self._generator(self.schema)
        return schema.make_namedtuple(**{name: values[name] for name in schema.fields})

    def _window(self) -> dict[int, Any]:
        first, last = min(self.ngram.fields), max(self.ngram.fields)
        return {
            step: self._row(self.ngram.get_schema_at_timestep(self.schema, step)) for step in range(first, last + 1)
        }

    def reset(self) -> None:
        """Do nothing: there is no place to go back to."""

    def stop(self) -> None:
        """End the reader: no rows come after it."""
        self.stopped = True

    def join(self) -> None:
        """Do nothing: no thread is there to be waited for."""

    def cleanup_cache(self) -> None:
        """Do nothing: there is no cache."""

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Return an empty dict."""
        return {}

    def __enter__(self) -> ReaderMock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        self.join()
