"""Options of a Petastorm reader, checked, and the setup that follows from them.

Both factories fill in `ReaderOptions`; `open_setup` opens the dataset, selects rows and fields and returns a
`ReaderSetup`, which makes the engine's loader. Raises Petastorm's exceptions where its users catch them.
"""

from __future__ import annotations

import secrets
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import penstock
from penstock.api import make_loader
from penstock.codecs import ScalarCodec
from penstock.dataset.predicates import check_predicate
from penstock.dataset.row_filter import RowFilter, make_row_filter
from penstock.engine.host import default_workers
from penstock.engine.loader import Make
from penstock.engine.rowwise import FrameTransform, RowTransform, check_value
from penstock.errors import PenstockWarning, TransformError, users_level
from penstock.options import MEMORY_BYTES, SPAN_BYTES, LoaderOptions
from penstock.petastorm._columns import StepType, row_type
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

    from penstock.engine.loader import Loader
    from penstock.engine.stages import Batch
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
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


_ARGUMENT = {"drop_partitions": "shuffle_row_drop_partitions"}


@dataclass(frozen=True, kw_only=True)
class ReaderSetup:
    """What a reader reads, and how batches of it are made."""

    options: ReaderOptions
    dataset: penstock.Dataset
    """Rows and columns that are read."""
    schema: Unischema
    """What is returned."""
    ngram: NGram | None
    items: Grouping
    """What is dealt to shards: rows, whole row groups or windows."""
    drawn: int | None
    """The seed that was drawn, where none was given."""
    unseen: frozenset[str]
    """Columns that are read for the predicate only."""
    dtypes: Mapping[str, np.dtype[Any]]
    """Of stored columns that have nulls; see `batch_dtypes`."""
    batch_rows: int | None = None
    """Rows that are made at once, whichever row groups they lie in; None or 0: chosen from their size."""
    warned: set[str] = field(default_factory=set)
    """Warnings that were given already."""

    @property
    def is_late(self) -> bool:
        """Whether a predicate is applied on delivery."""
        return self.options.predicate is not None and not self.options.exact

    @property
    def deals_whole(self) -> bool:
        """Whether an item is a whole row group, or a part of one, which is never divided among shards."""
        return isinstance(self.items, PartGrouping) and self.items.whole

    @property
    def calls_transform(self) -> bool:
        """Whether a function of the user's changes rows or batches, and perhaps their number."""
        return self.options.transform_spec is not None and self.options.transform_spec.func is not None

    @cached_property
    def batch_dtypes(self) -> dict[str, np.dtype[Any]]:
        """The same for what is returned: fields that a transform edits have the dtype that it gives them."""
        spec = self.options.transform_spec
        edited = set() if spec is None else {edit.name for edit in spec.edit_fields}
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

    def dealing_rows(self, **changes: Any) -> ReaderSetup:
        """Return the setup with rows dealt to shards instead of row groups, and with other fields changed."""
        changes = {"options": self.options} | changes
        items = find_items(self.dataset, replace(changes["options"], shuffle_rows=True), self.ngram)
        return replace(self, items=items, **changes)

    def make_loader(self, seed: int | None) -> Loader:
        """Return a loader; `seed` replaces the one that was drawn."""
        options, batch_items = self.options, self.batch_items
        rowwise: Any = None
        if options.transform_spec is not None:
            fields = tuple(self.schema.fields.values())
            rowwise = RowTransform(options.transform_spec, fields, stack=False)
            if options.batched:
                rowwise = FrameTransform(options.transform_spec, fields, self.dtypes)
        make = Make(
            1 if self.deals_whole else batch_items,
            aligned=not self._gathers_batches and not self.batch_rows,
            late=RowFilter(options.predicate, options.batched) if self.is_late else None,
            unseen=self.unseen,
            rowwise=rowwise,
            most_waiting=options.results_queue_size,
        )
        loader_options = LoaderOptions(
            batch_size=batch_items if self._gathers_batches else 1,
            shuffle=options.shuffle,
            seed=next((int(one) for one in (seed, options.seed, self.drawn) if one is not None), 0),
            epochs=options.num_epochs,
            rank=options.cur_shard or 0,
            world=options.shard_count or 1,
            remainder=cast("Any", options.remainder),
            pool=cast("Any", _POOLS[options.pool]),
            workers=min(options.workers_count, max(2, default_workers())),
            memory_bytes=options.memory_bytes,
            lanes=options.lanes,
        )
        return make_loader(self.dataset, loader_options, make, self.items)

    @property
    def _gathers_batches(self) -> bool:
        """Whether a step is a batch of rows from anywhere."""
        return self.options.batched and not self.deals_whole

    @property
    def batch_items(self) -> int:
        """How many rows or windows are made at once."""
        if self.batch_rows:
            return self.batch_rows
        if self._gathers_batches:  # as many rows as a row group has
            counts = self.items.counts
            return max(1, -(-int(counts.sum()) // max(1, int((counts > 0).sum()))))
        columns = self.dataset._columns or ()
        row_bytes = max(1, sum(column.item_bytes for column in columns))
        if self.ngram is not None and not all(column.light for column in columns):
            share = (self.options.memory_bytes or MEMORY_BYTES) // 16
            return max(1, min(_MOST_WINDOWS, min(_WINDOW_BYTES, share) // row_bytes))
        return max(1, min(_SLOW_ROWS if self.calls_transform else _MOST_ROWS, SPAN_BYTES // row_bytes))

    def check_edits(self, batch: Batch) -> None:
        """Warn once where a transform changed a field that `edit_fields` does not name; looks at the first batch."""
        if not self.calls_transform or "edit_fields" in self.warned:
            return
        self.warned.add("edit_fields")
        edited = {edit.name for edit in cast("TransformSpec", self.options.transform_spec).edit_fields}
        changed = [
            line
            for name, one in self.schema.fields.items()
            if name not in edited and name in batch and (line := _changed(one, batch[name]))
        ]
        if changed:
            warnings.warn(
                "the transform changes fields that edit_fields does not name, so that the schema is wrong; write "
                f"edit_fields=[{', '.join(changed)}]",
                PenstockWarning,
                stacklevel=users_level(),
            )


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


def open_setup(options: ReaderOptions) -> ReaderSetup:
    """Open the dataset and find what is to be read."""
    ds = _open(options)
    ngram, wanted = _fields(options, ds)
    ds = _raw(ds, options, wanted)
    ds = _select_rows(ds, options)
    _check_shards(ds, options)
    drawn = None
    if options.seed is None:
        drawn = int(ds.fingerprint[:15], 16) if options.shard_count is not None else secrets.randbits(60)
    view = ds.schema.create_schema_view([ds.schema.fields[name] for name in wanted])
    schema = view if options.transform_spec is None else transform_schema(view, options.transform_spec)
    _check_spec(options, view, ngram)
    if not schema.fields:
        raise RuntimeError("no fields are left: the transform_spec removes all that schema_fields selects")
    extra: list[str] = []
    if options.predicate is not None and not options.exact:
        extra = sorted(RowFilter(options.predicate, options.batched).fields - set(wanted))
    ds = ds.select([*wanted, *extra])
    items = find_items(ds, options, ngram)
    _warn_if_all_is_dropped(items, options)
    return ReaderSetup(
        options=options,
        dataset=ds,
        schema=schema,
        ngram=ngram,
        items=items,
        drawn=drawn,
        unseen=frozenset(extra),
        dtypes=batch_dtypes(ds.source, wanted) if options.batched else {},
    )


def _check_spec(options: ReaderOptions, view: Unischema, ngram: NGram | None) -> None:
    spec = options.transform_spec
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


def _open(options: ReaderOptions, **more: Any) -> penstock.Dataset:
    if options.cache is not None and not isinstance(options.cache, NullCache):
        more["cache"] = options.cache
    more |= {"storage_options": options.storage_options, "filesystem": options.filesystem, "format": options.format}
    return penstock.open(options.source, **more)


def _raw(ds: penstock.Dataset, options: ReaderOptions, wanted: list[str]) -> penstock.Dataset:
    """Return the dataset as a batch reader sees it: cells as they are stored, unless they are to be decoded."""
    encoded = [name for name in ds.columns if not isinstance(ds.schema.fields[name].codec, ScalarCodec | None)]
    if not options.batched or options.decode or not encoded:
        return ds
    if some := [name for name in encoded if name in wanted]:
        warnings.warn(
            f"make_batch_reader gives the cells of {', '.join(map(repr, some))} as bytes; use make_reader, or "
            "decode=True, for decoded values",
            UserWarning,
            stacklevel=6,
        )
    return _open(options, schema=Unischema("stored", []))


def _fields(options: ReaderOptions, ds: penstock.Dataset) -> tuple[NGram | None, list[str]]:
    """Return the n-gram and the names of the fields that are returned, or given to the transform."""
    fields, schema = options.schema_fields, petastorm_order(ds.source)
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
        declared = (
            None if options.batched else ds.source.facts.declared
        )  # make_reader gives the fields of a schema only
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


def _select_rows(ds: penstock.Dataset, options: ReaderOptions) -> penstock.Dataset:
    if options.rowgroup_selector is not None:
        from penstock.dataset.index import select_row_groups

        ds = ds.with_selection(select_row_groups(ds.source, options.rowgroup_selector, ds.selection))
    if options.filters is not None:
        ds = ds.where(options.filters)
    if options.predicate is not None and options.exact:
        from penstock.dataset.select_rows import select_rows

        found = cast(
            "RowFilter", make_row_filter(options.predicate, ds.source.facts.arrow_schema, batched=options.batched)
        )
        ds = ds.with_selection(select_rows(ds.source, found, ds.selection, workers=default_workers()))
    return ds


def _check_shards(ds: penstock.Dataset, options: ReaderOptions) -> None:
    if not len(ds):
        warnings.warn("No matching data is available for loading: no row is selected", UserWarning, stacklevel=6)
    elif options.shard_count is not None and len(ds) < options.shard_count:
        raise NoDataAvailableError(
            f"{options.shard_count} shards need at least one row each. Number of row-groups in the dataset that are "
            f"selected: {np.count_nonzero(ds.selection.counts)}, with {len(ds)} rows; give a shard_count of at most "
            f"{len(ds)}"
        )


def _warn_if_all_is_dropped(items: Grouping, options: ReaderOptions) -> None:
    num_items = int(items.counts.sum())
    if options.remainder == "drop" and num_items and num_items < (options.shard_count or 1):
        warnings.warn(
            f"remainder='drop' leaves nothing: {num_items} steps for {options.shard_count} shards; use 'uneven' or "
            "'pad'",
            PenstockWarning,
            stacklevel=5,
        )


def find_items(ds: penstock.Dataset, options: ReaderOptions, ngram: NGram | None) -> Grouping:
    """Return what is dealt to shards: rows, windows, parts of row groups or whole row groups."""
    units: RowGrouping | WindowGrouping = RowGrouping(ds.selection.counts)
    if ngram is not None:
        if options.drop_partitions > 1 and not ngram.timestamp_overlap:
            raise NotImplementedError("an NGram without overlap cannot have shuffle_row_drop_partitions > 1")
        units = WindowGrouping(ds.window_table(ngram.timestamp_field.name, ngram.rule, span=ngram.span_row_groups))
    whole = options.batched and not options.shuffle_rows
    if options.drop_partitions == 1 and not whole:
        return units
    return PartGrouping.cut(units, int(options.drop_partitions), whole=whole)


def pool_options(pool: Any) -> dict[str, Any]:
    """Return the options that one of Petastorm's pool objects stands for."""
    if pool is None:
        return {}
    name = type(pool).__name__
    kind = {"ThreadPool": "thread", "ProcessPool": "process", "DummyPool": "dummy"}.get(name)
    if kind is None:
        raise ValueError(f"reader_pool must be a ThreadPool, ProcessPool or DummyPool; got {name}")
    return {
        "pool": kind,
        "workers_count": int(getattr(pool, "workers_count", 10) or 1),
        "results_queue_size": int(getattr(pool, "results_queue_size", 50) or 1),
        "zmq_copy_buffers": getattr(pool, "zmq_copy_buffers", True),
    }
