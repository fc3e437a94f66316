"""`NGram`: which rows form a window over time, and which fields of each row are wanted.

A value that a user hands to `make_reader` as `schema_fields`. The windows themselves are found on columns, by
`penstock.plan.windows`; `form_ngram` here is the same rule written out for rows that are dicts. Reads nothing.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnNotFound, NotSorted, SchemaError, close_names
from penstock.plan.windows import WindowRule
from penstock.schema import Unischema, UnischemaField

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["NGram", "NoFieldsMatch"]

Wanted = UnischemaField | str


class NoFieldsMatch(ColumnNotFound, RuntimeError):
    """Patterns that match no field of the dataset; Petastorm's readers raise a RuntimeError for them."""


class NGram:
    """Windows over time: consecutive rows whose timestamps are at most `delta_threshold` apart.

    `fields` maps timesteps to lists of fields, or of patterns over whole names. A window has one row for each timestep
    from the least to the largest; those not listed come without fields. `fields={-1: [ts, image], 0: [ts], 2: ["v.*"]}`
    makes windows of four rows, delivered as `{-1: (ts, image), 0: (ts), 1: (), 2: (v1, v2)}`.

    The field of the timestamps is read in any case, and delivered where it is listed. `timestamp_overlap=False`: a
    window starts strictly after the last timestamp of the one before. Beyond Petastorm: `span_row_groups=True` lets
    windows continue in the next row group or file, as long as time does not decrease there, and
    `stride` is the least number of rows between starts. A threshold may be a timedelta where timestamps are dates.
    """

    def __init__(  # noqa: PLR0913 - Petastorm's signature, and two keywords more
        self,
        fields: Mapping[int, list[Wanted]],
        delta_threshold: Any,
        timestamp_field: Wanted,
        timestamp_overlap: bool = True,
        *,
        span_row_groups: bool = False,
        stride: int = 1,
    ) -> None:
        _check_fields(fields)
        if not isinstance(timestamp_field, Wanted):
            raise SchemaError(f"timestamp_field must be a UnischemaField or a str, got {timestamp_field!r}")
        for name, flag in (("timestamp_overlap", timestamp_overlap), ("span_row_groups", span_row_groups)):
            if not isinstance(flag, bool):
                raise SchemaError(f"{name} must be True or False, got {flag!r}")
        self._asked: tuple[dict[int, list[Any]], Any] = (
            {int(step): list(fields[step]) for step in sorted(fields)},
            timestamp_field,
        )
        self._fields, self._timestamp_field = self._asked
        self._delta_threshold = delta_threshold
        self.timestamp_overlap = timestamp_overlap
        self.span_row_groups = span_row_groups
        self.stride = stride
        self._types: tuple[Unischema, dict[int, Any]] | None = None
        _ = self.rule  # checks threshold and stride

    @property
    def fields(self) -> dict[int, list[Any]]:
        """Fields, or patterns not yet resolved, by timestep in ascending order."""
        return self._fields

    @property
    def timestamp_field(self) -> Any:
        """The field, or a pattern not yet resolved, that holds the timestamps."""
        return self._timestamp_field

    @property
    def delta_threshold(self) -> Any:
        """The most that a timestamp may be after the one before it."""
        return self._delta_threshold

    @property
    def length(self) -> int:
        """Rows of a window, one for each timestep from the least to the largest."""
        return max(self._fields) - min(self._fields) + 1

    @property
    def timesteps(self) -> range:
        """The timesteps of a window's rows, those without fields included."""
        return range(min(self._fields), max(self._fields) + 1)

    @property
    def rule(self) -> WindowRule:
        """What `penstock.plan.windows` finds windows by."""
        return WindowRule(self.length, self._delta_threshold, self.timestamp_overlap, self.stride)

    def __eq__(self, other: object) -> bool:
        """Compare the fields of every timestep in any order, and nothing else, as Petastorm does."""
        if not isinstance(other, NGram):
            return NotImplemented
        mine, theirs = ({step: set(one) for step, one in ngram._fields.items()} for ngram in (self, other))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]  # fields change when patterns are resolved in place

    def __repr__(self) -> str:
        steps = {step: [_name(f) for f in fields] for step, fields in self._fields.items()}
        more = [repr(self._delta_threshold), repr(_name(self._timestamp_field))]
        more += [] if self.timestamp_overlap else ["timestamp_overlap=False"]
        more += ["span_row_groups=True"] if self.span_row_groups else []
        more += [f"stride={self.stride}"] if self.stride != 1 else []
        return f"NGram({steps}, {', '.join(more)})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_types": None}  # row types are made at run time and cannot be pickled

    def resolved(self, schema: Unischema) -> NGram:
        """Return the same windows with all patterns replaced by fields of `schema`; this one is not changed.

        Fields are taken by name, as `schema` has them. It starts from what the user gave, so that one NGram may serve
        several readers. ColumnNotFound for an unknown field, NoFieldsMatch where nothing matches the patterns of a
        timestep, SchemaError where `timestamp_field` matches several fields; all of them are ValueErrors.
        """
        new = copy.copy(self)
        new.resolve_regex_field_names(schema)
        return new

    def resolve_regex_field_names(self, schema: Unischema) -> None:
        """Do what `resolved` does, but in place; on an error nothing is changed."""
        asked, timestamp = self._asked
        fields = {step: self.convert_fields(schema, wanted) for step, wanted in asked.items()}
        for step, wanted in asked.items():
            if wanted and not fields[step]:
                patterns = ", ".join(map(repr, wanted))
                raise NoFieldsMatch(f"no field matches {patterns} at timestep {step}; {_near(wanted[0], schema)}")
        self._timestamp_field = _timestamp(schema, timestamp)
        self._fields, self._types = fields, None

    def convert_fields(self, unischema: Unischema, field_list: Sequence[Wanted]) -> list[UnischemaField]:
        """Return fields as `unischema` has them: those given as fields in their order, then those that patterns match.

        Matches come in schema order, so that they do not depend on the process. Patterns that match nothing add none.
        """
        return list(unischema.create_schema_view(field_list).fields.values())

    def get_field_names_at_timestep(self, timestep: int) -> list[str]:
        """Return the names of the fields at a timestep; none where it is not listed. Patterns must be resolved."""
        fields = self._fields.get(timestep, [])
        if patterns := [field for field in fields if isinstance(field, str)]:
            raise SchemaError(
                f"the pattern {patterns[0]!r} is not resolved yet; call resolved(schema) and use its result"
            )
        return [field.name for field in fields]

    def get_field_names_at_all_timesteps(self) -> list[Any]:
        """Return the fields (not the names, as in Petastorm) of all timesteps, each once, by timestep as listed."""
        return list(dict.fromkeys(field for fields in self._fields.values() for field in fields))

    def get_schema_at_timestep(self, schema: Unischema, timestep: int) -> Unischema:
        """Return the view of `schema` that rows of a timestep have: its fields in schema order, maybe none."""
        names = set(self._of(schema).get_field_names_at_timestep(timestep))
        return schema.create_schema_view([f for f in schema.fields.values() if f.name in names])

    def row_types(self, schema: Unischema) -> dict[int, Any]:
        """Return the named tuple type of each timestep, in ascending order; made once for the last schema."""
        if self._types is None or self._types[0] is not schema:
            views = {step: self.get_schema_at_timestep(schema, step) for step in self.timesteps}
            self._types = (
                schema,
                {step: type(v.make_namedtuple(**dict.fromkeys(v.fields))) for step, v in views.items()},
            )
        return self._types[1]

    def make_namedtuple(self, schema: Unischema, ngram_as_dicts: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        """Return a window of dicts as a window of named tuples; see `form_ngram`."""
        types = self.row_types(schema)
        return {step: types[step](**row) for step, row in ngram_as_dicts.items()}

    def form_ngram(self, data: Sequence[Mapping[str, Any]], schema: Unischema) -> list[dict[int, dict[str, Any]]]:
        """Return all windows of consecutive rows given as dicts, each as {timestep: dict of its fields}.

        The rule in plain words, row by row: readers do not use it. NotSorted (a NotImplementedError) where timestamps
        of a candidate decrease.
        """
        own = self._of(schema)
        name_of_time = _name(own._timestamp_field)
        times = [row[name_of_time] for row in data]
        names = {step: own.get_field_names_at_timestep(step) for step in own.timesteps}
        return [
            {step: {name: data[start + k][name] for name in names[step]} for k, step in enumerate(own.timesteps)}
            for start in own._plain_starts(times)
        ]

    def _plain_starts(self, times: list[Any]) -> Iterable[int]:
        kept: int | None = None
        for start in range(len(times) - self.length + 1):
            window = times[start : start + self.length]
            for row, (before, after) in enumerate(pairwise(window), start + 1):
                if not before <= after:
                    raise NotSorted(
                        f"row {row} has the timestamp {after}, before {before} of the row it follows", row=row
                    )
            if any(after - before > self._delta_threshold for before, after in pairwise(window)):
                continue
            if kept is not None and start - kept < self.stride:
                continue
            if kept is not None and not self.timestamp_overlap and window[0] <= times[kept + self.length - 1]:
                continue
            kept = start
            yield start

    def _of(self, schema: Unischema) -> NGram:
        """Return this NGram if no pattern is left in it, else the resolved one."""
        everything = [*self.get_field_names_at_all_timesteps(), self._timestamp_field]
        return self.resolved(schema) if any(isinstance(f, str) for f in everything) else self


def _check_fields(fields: Any) -> None:
    if not isinstance(fields, dict) or not fields:
        raise SchemaError(f"fields must be a dict from timesteps to lists of fields, with one at least; got {fields!r}")
    for step, wanted in fields.items():
        if isinstance(step, bool) or not isinstance(step, int | np.integer):
            raise SchemaError(f"timesteps must be whole numbers, got {step!r}")
        if not isinstance(wanted, list):
            raise SchemaError(f"timestep {step} needs a list of fields or patterns, got {wanted!r}")
        if odd := [f for f in wanted if not isinstance(f, Wanted)]:
            raise SchemaError(f"timestep {step}: a field must be a UnischemaField or a str (pattern), got {odd[0]!r}")


def _timestamp(schema: Unischema, wanted: Any) -> UnischemaField:
    name = _name(wanted)
    if name in schema.fields:  # a name is meant as one, even where it would match others as a pattern
        return schema.fields[name]
    found = schema.create_schema_view([wanted]).fields if isinstance(wanted, str) else {}
    if not found:
        raise NoFieldsMatch(f"no field matches timestamp_field={name!r}; {_near(wanted, schema)}")
    if len(found) > 1:
        raise SchemaError(f"timestamp_field={name!r} must match one field, but matches {', '.join(found)}")
    return next(iter(found.values()))


def _name(wanted: Any) -> str:
    return wanted if isinstance(wanted, str) else str(wanted[0])


def _near(wanted: Any, schema: Unischema) -> str:
    return close_names(_name(wanted), schema.fields)
