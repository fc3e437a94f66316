"""What a Petastorm reader was asked for, checked, and the job for the engine that comes of it.

The arguments of both factories meet in `Asked`; `open_job` opens the dataset, finds the rows and fields, and gives a
`Job` that makes the loader. Petastorm's exceptions are kept where its users catch them.
"""

from __future__ import annotations

import secrets
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

import penstock
from penstock.api import make_loader
from penstock.codecs import ScalarCodec
from penstock.dataset.predicates import check_predicate
from penstock.dataset.row_filter import RowFilter, make_row_filter
from penstock.engine.host import default_workers
from penstock.engine.loader import Make
from penstock.engine.rowwise import FrameTransform, RowTransform, check_value
from penstock.errors import PenstockWarning, TransformError
from penstock.options import MEMORY_BYTES, SPAN_BYTES, LoaderOptions
from penstock.petastorm._columns import batch_column, row_type
from penstock.petastorm._dtypes import batch_dtypes
from penstock.petastorm.cache import NullCache
from penstock.petastorm.errors import NoDataAvailableError
from penstock.petastorm.ngram import NGram
from penstock.plan.grouping import PartGrouping, RowGrouping
from penstock.plan.windows import WindowGrouping
from penstock.schema import Unischema, UnischemaField
from penstock.schema.transform import TransformSpec, transform_schema
from penstock.schema.unischema import schema_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.engine.build import Built
    from penstock.engine.loader import Loader
    from penstock.plan.grouping import Grouping
    from penstock.source import Source

_POOLS = {"thread": "thread", "process": "process", "dummy": "serial"}
_MOST_ROWS = 1024
"""Most rows that are made at once for a reader of rows."""
_SLOW_ROWS = 64
"""The same where a function of the user's is called for each of them."""
_MOST_WINDOWS = 4096
_WINDOW_BYTES = 256 << 20
"""Windows whose rows must be decoded are made together up to these, so that a row shared by two is decoded once."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of a reader; see `make_reader`."""

    source: Any
    batched: bool
    schema_fields: Any = None
    pool: str = "thread"
    workers_count: int = 10
    results_queue_size: int = 50
    seed: int | None = None
    shuffle_rows: bool = False
    shuffle_row_groups: bool = True
    drop_partitions: int = 1
    predicate: Any = None
    rowgroup_selector: Any = None
    num_epochs: int | None = 1
    cur_shard: int | None = None
    shard_count: int | None = None
    transform_spec: TransformSpec | None = None
    filters: Any = None
    storage_options: Mapping[str, Any] | None = None
    filesystem: Any = None
    cache: Any = None
    remainder: str = "uneven"
    exact: bool = True
    memory_bytes: int | None = None
    lanes: int | None = None
    decode: bool = False
    zmq_copy_buffers: bool = True
    """Only reported by `Reader.diagnostics`."""
    format: str | None = None

    def __post_init__(self) -> None:
        for name in ("seed", "cur_shard", "shard_count"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
                raise ValueError(f"{name} must be a whole number or None; got {value!r}")
        for name in ("exact", "decode"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise ValueError(f"{name} must be True or False; got {getattr(self, name)!r}")  # noqa: TRY004 -- Petastorm's
        if self.pool not in _POOLS:
            raise ValueError(f"Unknown reader_pool_type {self.pool!r}; use one of {', '.join(map(repr, _POOLS))}")
        if (self.cur_shard is None) != (self.shard_count is None):
            raise ValueError(
                f"cur_shard and shard_count go together; got cur_shard={self.cur_shard}, shard_count={self.shard_count}"
            )
        for name in ("workers_count", "results_queue_size", "drop_partitions"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{_ARGUMENT.get(name, name)} must be a whole number, at least 1; got {value!r}")
        if self.num_epochs is not None and (
            isinstance(self.num_epochs, bool) or not isinstance(self.num_epochs, int) or self.num_epochs < 1
        ):
            raise ValueError(f"num_epochs must be a whole number, at least 1, or None; got {self.num_epochs!r}")
        if self.cur_shard is not None and not 0 <= self.cur_shard < (self.shard_count or 0):
            raise ValueError(f"cur_shard must be in [0, shard_count={self.shard_count}); got {self.cur_shard!r}")
        if self.transform_spec is not None and not isinstance(self.transform_spec, TransformSpec):
            raise ValueError(f"transform_spec must be a TransformSpec; got {type(self.transform_spec).__name__}")
        if self.predicate is not None:
            check_predicate(self.predicate)
        if self.lanes is not None and not self.shuffle_rows:
            raise ValueError(f"lanes={self.lanes} needs shuffle_rows=True: other orders have no lanes")

    @property
    def shuffle(self) -> Any:
        """The order as the engine calls it."""
        if self.shuffle_rows:
            return True
        return "groups" if self.shuffle_row_groups else False

    @property
    def deals_parts(self) -> bool:
        """Whether an item is a whole row group, or a part of one."""
        return self.batched and not self.shuffle_rows


_ARGUMENT = {"drop_partitions": "shuffle_row_drop_partitions"}


class StepType(NamedTuple):
    """The row of one step of a window."""

    names: tuple[str, ...]
    type: Any


@dataclass(frozen=True)
class Job:
    """What a reader does."""

    asked: Asked
    dataset: penstock.Dataset
    """Rows and columns that are read."""
    schema: Unischema
    """What is returned."""
    stored: Unischema
    """What is read, of what is returned or given to the transform."""
    ngram: NGram | None
    items: Grouping
    drawn: int | None
    """The seed that was drawn, where none was given."""
    unseen: frozenset[str]
    dtypes: Mapping[str, np.dtype[Any]]
    """Of stored columns that have nulls; see `batch_dtypes`."""

    @property
    def batched(self) -> bool:
        """Whether a step is a batch."""
        return self.asked.batched

    @property
    def is_late(self) -> bool:
        """Whether a predicate is applied on delivery."""
        return self.asked.predicate is not None and not self.asked.exact

    @property
    def drew_seed(self) -> bool:
        """Whether the seed was not given."""
        return self.drawn is not None

    @cached_property
    def batch_dtypes(self) -> dict[str, np.dtype[Any]]:
        """The same for what is returned: fields that a transform edits have the dtype that it gives them."""
        spec = self.asked.transform_spec
        edited = set() if spec is None else {field.name for field in spec.edit_fields}
        return {name: dtype for name, dtype in self.dtypes.items() if name not in edited}

    @property
    def step_types(self) -> dict[int, StepType]:
        """The row of each step of a window."""
        ngram = cast("NGram", self.ngram)
        schemas = {step: ngram.get_schema_at_timestep(self.schema, step) for step in ngram.timesteps}
        return {
            step: StepType(tuple(one.fields), row_type(schema_name(one), tuple(one.fields)))
            for step, one in schemas.items()
        }

    def loader(self, seed: int | None) -> Loader:
        """Return the loader; `seed` replaces the one that was drawn."""
        asked, facts_rows = self.asked, self._batch_items()
        options = LoaderOptions(
            batch_size=1 if not self._gathers_batches else facts_rows,
            shuffle=asked.shuffle,
            seed=_first_given(seed, asked.seed, self.drawn),
            epochs=asked.num_epochs,
            rank=asked.cur_shard or 0,
            world=asked.shard_count or 1,
            remainder=cast("Any", asked.remainder),
            pool=cast("Any", _POOLS[asked.pool]),
            workers=min(asked.workers_count, max(2, default_workers())),
            memory_bytes=asked.memory_bytes,
            lanes=asked.lanes,
        )
        return make_loader(self.dataset, options, self._make(facts_rows), self.items)

    @property
    def _gathers_batches(self) -> bool:
        """Whether a step is a batch of rows from anywhere."""
        return self.batched and not self.asked.deals_parts

    def _make(self, batch_items: int) -> Make:
        asked = self.asked
        late = None
        if self.is_late:
            late = RowFilter(asked.predicate, asked.batched)
        return Make(
            1 if self.asked.deals_parts else batch_items,
            aligned=not self._gathers_batches,
            late=late,
            unseen=self.unseen,
            rowwise=self._rowwise(),
            most_waiting=asked.results_queue_size,
        )

    def _batch_items(self) -> int:
        """Return how many rows or windows are made at once."""
        if self._gathers_batches:  # as many rows as a row group has
            counts = self.items.counts
            return max(1, -(-int(counts.sum()) // max(1, int((counts > 0).sum()))))
        row_bytes = max(1, sum(column.item_bytes for column in self.dataset._columns or ()))
        most = _MOST_ROWS
        if self.asked.transform_spec is not None and self.asked.transform_spec.func is not None:
            most = _SLOW_ROWS
        if self.ngram is not None and not all(column.light for column in self.dataset._columns or ()):
            share = (self.asked.memory_bytes or MEMORY_BYTES) // 16
            return max(1, min(_MOST_WINDOWS, min(_WINDOW_BYTES, share) // row_bytes))
        return max(1, min(most, SPAN_BYTES // row_bytes))

    def _rowwise(self) -> Any:
        spec = self.asked.transform_spec
        if spec is None:
            return None
        fields = tuple(self.schema.fields.values()) if self.ngram is None else tuple(_all_fields(self).values())
        return FrameTransform(spec, fields, self.dtypes) if self.batched else RowTransform(spec, fields, stack=False)

    def check(self, built: Built) -> None:
        """Warn once where a transform changed a field that `edit_fields` does not name."""
        spec = self.asked.transform_spec
        if spec is None or spec.func is None or getattr(self, "_checked", False):
            return
        object.__setattr__(self, "_checked", True)
        edited = {field.name for field in spec.edit_fields}
        changed = [
            line
            for name, field in self.schema.fields.items()
            if name not in edited and name in built.batch and (line := _changed(field, built.batch[name]))
        ]
        if changed:
            warnings.warn(
                "the transform changes fields that edit_fields does not name, so that the schema is wrong; write "
                f"edit_fields=[{', '.join(changed)}]",
                PenstockWarning,
                stacklevel=4,
            )


def _first_given(*values: int | None) -> int:
    return next((int(value) for value in values if value is not None), 0)


def _all_fields(job: Job) -> dict[str, UnischemaField]:
    """Return every field that the steps of a window need, after the transform."""
    return dict(job.schema.fields)


def _changed(field: UnischemaField, column: Any) -> str | None:
    """Return the `edit_fields` line for a column that is not what its field says; None if it is."""
    value = next((one for one in column if one is not None and one is not np.ma.masked), None)
    if value is None:
        return None
    try:
        check_value(field, value)
    except TransformError:
        dtype = str(getattr(value, "dtype", np.asarray(value).dtype.type.__name__)).removeprefix("torch.")
        dtype = {"bool": "bool_", "str": "str_", "bytes": "bytes_", "object": "object_"}.get(dtype, dtype)
        shape = tuple(getattr(value, "shape", ()))
        return f"({field.name!r}, np.{dtype}, {shape}, {field.nullable})"
    return None


def open_job(asked: Asked) -> Job:
    """Open the dataset and find what is to be read."""
    ds = _open(asked)
    ngram, wanted = _fields(asked, ds)
    ds = _raw(ds, asked, wanted)
    ds = _select_rows(ds, asked)
    _check_shards(ds, asked)
    drawn = None
    if asked.seed is None:
        drawn = int(ds.fingerprint[:15], 16) if asked.shard_count is not None else secrets.randbits(60)
    view = ds.schema.create_schema_view([ds.schema.fields[name] for name in wanted])
    schema = view if asked.transform_spec is None else transform_schema(view, asked.transform_spec)
    _check_spec(asked, view, ngram)
    if not schema.fields:
        raise RuntimeError("no fields are left: the transform_spec removes all that schema_fields asks for")
    extra = [name for name in _extra(asked) if name not in wanted]
    ds = ds.select([*wanted, *extra])
    items = _items(ds, asked, ngram)
    _warn_if_all_is_dropped(items, asked)
    dtypes = batch_dtypes(ds.source, wanted) if asked.batched else {}
    return Job(asked, ds, schema, view, ngram, items, drawn, frozenset(extra), dtypes)


def _check_spec(asked: Asked, view: Unischema, ngram: NGram | None) -> None:
    spec = asked.transform_spec
    if spec is None:
        return
    new = [field.name for field in spec.edit_fields if field.name not in view.fields]
    if spec.func is None and new:
        raise ValueError(f"edit_fields adds {', '.join(map(repr, new))}, but there is no func that would make them")
    if ngram is not None and ngram.timestamp_field.name in {field.name for field in spec.edit_fields}:
        warnings.warn(
            f"windows are formed by the stored timestamps, before the transform changes {ngram.timestamp_field.name!r}",
            PenstockWarning,
            stacklevel=5,
        )


def _open(asked: Asked, **more: Any) -> penstock.Dataset:
    if asked.cache is not None and not isinstance(asked.cache, NullCache):
        more["cache"] = asked.cache
    more |= {"storage_options": asked.storage_options, "filesystem": asked.filesystem, "format": asked.format}
    return penstock.open(asked.source, **more)


def _raw(ds: penstock.Dataset, asked: Asked, wanted: list[str]) -> penstock.Dataset:
    """Return the dataset as a batch reader sees it: cells as they are stored, unless they are to be decoded."""
    encoded = [name for name in ds.columns if not isinstance(ds.schema.fields[name].codec, ScalarCodec | None)]
    if not asked.batched or asked.decode or not encoded:
        return ds
    if some := [name for name in encoded if name in wanted]:
        warnings.warn(
            f"make_batch_reader gives the cells of {', '.join(map(repr, some))} as bytes; use make_reader, or "
            "decode=True, for decoded values",
            UserWarning,
            stacklevel=6,
        )
    return _open(asked, schema=Unischema("stored", []))


def _fields(asked: Asked, ds: penstock.Dataset) -> tuple[NGram | None, list[str]]:
    """Return the n-gram and the names of the fields that are returned, or given to the transform."""
    fields, schema = asked.schema_fields, petastorm_order(ds.source)
    if isinstance(fields, NGram):
        fields.resolve_regex_field_names(schema)  # in place, as Petastorm does: programs look at it afterwards
        ngram = fields.resolved(schema)  # its own: another reader may resolve the user's for another schema
        listed = {field.name for field in ngram.get_field_names_at_all_timesteps()}
        return ngram, [name for name in schema.fields if name in listed]
    if fields is not None and not isinstance(fields, str) and not hasattr(fields, "__iter__"):
        raise ValueError(
            f"schema_fields must be a list of fields and patterns, an NGram or None; got {type(fields).__name__}"
        )
    chosen: Sequence[Any] = [fields] if isinstance(fields, str) else list(fields or ())
    if not chosen:
        declared = None if asked.batched else ds.source.facts.declared  # make_reader gives the fields of a schema only
        return None, [name for name in schema.fields if declared is None or name in declared]
    names = list(schema.create_schema_view(chosen).fields)
    if not names:
        raise RuntimeError(
            f"No fields matching the criteria {chosen}: a pattern must match a whole name; the dataset has "
            f"{', '.join(map(repr, ds.columns))}"
        )
    return None, names


def petastorm_order(source: Source) -> Unischema:
    """Return the schema of a dataset; partition columns come first where no schema is stored, as in Petastorm."""
    schema, partitions = source.facts.unischema, source.facts.constants
    if source.facts.declared is not None or not partitions:
        return schema
    fields = schema.fields.values()
    return Unischema(schema_name(schema), sorted(fields, key=lambda field: field.name not in partitions))


def _extra(asked: Asked) -> list[str]:
    """Return fields that are read but not returned."""
    if asked.predicate is None or asked.exact:
        return []
    return sorted(RowFilter(asked.predicate, asked.batched).fields)


def _select_rows(ds: penstock.Dataset, asked: Asked) -> penstock.Dataset:
    if asked.rowgroup_selector is not None:
        from penstock.dataset.index import select_row_groups

        ds = ds.with_selection(select_row_groups(ds.source, asked.rowgroup_selector, ds.selection))
    if asked.filters is not None:
        ds = ds.where(asked.filters)
    if asked.predicate is not None and asked.exact:
        from penstock.dataset.select_rows import select_rows

        found = cast("RowFilter", make_row_filter(asked.predicate, ds.source.facts.arrow_schema, batched=asked.batched))
        ds = ds.with_selection(select_rows(ds.source, found, ds.selection, workers=default_workers()))
    return ds


def _check_shards(ds: penstock.Dataset, asked: Asked) -> None:
    if not len(ds):
        warnings.warn("No matching data is available for loading: no row is selected", UserWarning, stacklevel=6)
    elif asked.shard_count is not None and len(ds) < asked.shard_count:
        raise NoDataAvailableError(
            f"{asked.shard_count} shards need at least one row each. Number of row-groups in the dataset that are "
            f"selected: {np.count_nonzero(ds.selection.counts)}, with {len(ds)} rows; give a shard_count of at most "
            f"{len(ds)}"
        )


def _warn_if_all_is_dropped(items: Grouping, asked: Asked) -> None:
    num_items = int(items.counts.sum())
    if asked.remainder == "drop" and num_items and num_items < (asked.shard_count or 1):
        warnings.warn(
            f"remainder='drop' leaves nothing: {num_items} steps for {asked.shard_count} shards; use 'uneven' or 'pad'",
            PenstockWarning,
            stacklevel=5,
        )


def _items(ds: penstock.Dataset, asked: Asked, ngram: NGram | None) -> Grouping:
    units: RowGrouping | WindowGrouping = RowGrouping(ds.selection.counts)
    if ngram is not None:
        if asked.drop_partitions > 1 and not ngram.timestamp_overlap:
            raise NotImplementedError("an NGram without overlap does not go with shuffle_row_drop_partitions > 1")
        units = WindowGrouping(ds.window_table(ngram.timestamp_field.name, ngram.rule, span=ngram.span_row_groups))
    if asked.drop_partitions == 1 and not asked.deals_parts:
        return units
    return PartGrouping.cut(units, int(asked.drop_partitions), whole=asked.deals_parts)


def window_columns(built: Built, types: Mapping[int, StepType], dtypes: Mapping[str, np.dtype[Any]]) -> dict[int, Any]:
    """Return windows as {step: named tuple of columns}."""
    first, fold = min(types), cast("Any", built.fold)
    columns = {name: batch_column(values, dtypes.get(name)) for name, values in built.batch.items()}
    return {
        step: make.type._make([columns[name][fold[:, step - first]] for name in make.names])
        for step, make in sorted(types.items())
    }


def pool_of(pool: Any) -> tuple[str, int, int]:
    """Return kind, workers and queue size of one of Petastorm's pool objects."""
    if pool is None:
        return "thread", 10, 50
    name = type(pool).__name__
    kind = {"ThreadPool": "thread", "ProcessPool": "process", "DummyPool": "dummy"}.get(name)
    if kind is None:
        raise ValueError(f"reader_pool must be a ThreadPool, ProcessPool or DummyPool; got {name}")
    return kind, int(getattr(pool, "workers_count", 10) or 1), int(getattr(pool, "results_queue_size", 50) or 1)


__all__ = ["Asked", "Job", "StepType", "open_job", "petastorm_order", "pool_of", "window_columns"]
