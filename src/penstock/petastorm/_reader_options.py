"""Options of a Petastorm reader: their names, order and defaults, each declared once, and the setup made from them.

`ReaderKeywords` names the options for signatures and `take_arguments` gives a function Petastorm's order of them;
`check_arguments` returns `ReaderOptions`. `open_setup` opens the dataset, selects rows and fields and returns a
`ReaderSetup`, which makes the engine's loader. Raises Petastorm's exceptions where its users catch them.
"""

from __future__ import annotations

import inspect
import secrets
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import numpy as np

import penstock
from penstock.codecs import ScalarCodec
from penstock.dataset.predicates import check_predicate
from penstock.dataset.row_filter import RowFilter, make_row_filter
from penstock.engine.host import default_workers
from penstock.engine.rowwise import FrameTransform, RowTransform, check_value
from penstock.engine.stages import Batch, FilterRows
from penstock.errors import PenstockWarning, TransformError, close_names, users_level
from penstock.factories import make_loader
from penstock.options import MEMORY_BYTES, SPAN_BYTES, LoaderOptions
from penstock.petastorm._columns import StepType, row_type
from penstock.petastorm._dtypes import batch_dtypes
from penstock.petastorm.cache import NULL_CACHE, NullCache, make_cache
from penstock.petastorm.errors import NoDataAvailableError
from penstock.petastorm.fs_utils import normalize_dataset_url_or_urls
from penstock.petastorm.ngram import NGram
from penstock.plan.order import Grouping, RowGrouping
from penstock.plan.parts import PartGrouping
from penstock.plan.windows import WindowGrouping
from penstock.schema import Unischema, UnischemaField
from penstock.schema.transform import TransformSpec, transform_schema
from penstock.schema.unischema import schema_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.engine.loader import Loader
    from penstock.source import Source

_POOLS = {"thread": "thread", "process": "process", "dummy": "serial"}
_MOST_ROWS = 1024
"""Most rows that are made at once for a reader of rows."""
_SLOW_ROWS = 64
"""The same where a function of the user's is called for each of them."""
_MOST_WINDOWS = 4096
_WINDOW_BYTES = 256 << 20
"""Windows whose rows must be decoded are made together up to these, so that a row shared by two is decoded once."""


def whole_number(name: str, value: Any, *, least: int) -> int:
    """Return an argument as an int; ValueError if it is not a whole number, or less than `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"{name} must be a whole number, at least {least}; got {value!r}")
    return int(value)


class ReaderKeywords(TypedDict, total=False):
    """Petastorm's arguments beside the URL that its two factories share, in its order; `make_reader` describes them."""

    schema_fields: Any
    reader_pool_type: str
    workers_count: int
    results_queue_size: int
    seed: int | None
    shuffle_rows: bool
    shuffle_row_groups: bool
    shuffle_row_drop_partitions: int
    predicate: Any
    rowgroup_selector: Any
    num_epochs: int | None
    cur_shard: int | None
    shard_count: int | None
    shard_seed: int | None
    cache_type: str | None
    cache_location: str | None
    cache_size_limit: int | None
    cache_row_size_estimate: int | None
    cache_extra_settings: Mapping[str, Any] | None
    hdfs_driver: str
    transform_spec: Any
    filters: Any
    storage_options: Mapping[str, Any] | None
    zmq_copy_buffers: bool
    filesystem: Any
    convert_early_to_numpy: bool


class OwnReaderKeywords(ReaderKeywords, total=False):
    """The same, and the arguments that Petastorm does not have."""

    remainder: str
    exact: bool
    memory_bytes: int | None
    lanes: int | None
    format: str | None


class ReaderOptions(OwnReaderKeywords, total=False):
    """The arguments of a reader, all of them and checked; see `make_reader` for their meaning."""

    source: Any
    batched: bool
    cache: Any
    decode: bool


PETASTORM_ORDER = tuple(ReaderKeywords.__annotations__)
"""The arguments that both factories take by position after the URL."""
_CACHE = ("cache_type", "cache_location", "cache_size_limit", "cache_row_size_estimate", "cache_extra_settings")
_WITHOUT_EFFECT = {
    "pyarrow_serialize": (False, "results of processes come through shared memory"),
    "zmq_copy_buffers": (True, "results of processes come through shared memory, not ZeroMQ"),
    "hdfs_driver": ("libhdfs3", "pyarrow has one driver only, libhdfs"),
}
"""Arguments that change nothing: their default, and why."""
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(ReaderOptions.__annotations__),
    **{name: default for name, (default, _) in _WITHOUT_EFFECT.items()},
    "reader_pool_type": "thread",
    "workers_count": 10,
    "results_queue_size": 50,
    "shuffle_rows": False,
    "shuffle_row_groups": True,
    "shuffle_row_drop_partitions": 1,
    "num_epochs": 1,
    "cache_type": NULL_CACHE,
    "convert_early_to_numpy": False,
    "remainder": "uneven",
    "exact": True,
    "decode": False,
}
"""What an argument is where it is not given; None where it is not named here."""
_Function = TypeVar("_Function", bound="Callable[..., Any]")


def take_arguments(positional: Sequence[str], named: Sequence[str]) -> Callable[[_Function], _Function]:
    """Return a decorator that gives a function this signature: some arguments also by position, others by name only.

    Types and defaults come from the function, else from the reader's options. The function is called with every
    argument by keyword, defaults filled in. `help` and `inspect.signature` show the whole signature.
    """

    def decorate(function: _Function) -> _Function:
        own, types = inspect.signature(function), OwnReaderKeywords.__annotations__
        parameters = []
        for name in (*positional, *named):
            kind = inspect.Parameter.KEYWORD_ONLY if name in named else inspect.Parameter.POSITIONAL_OR_KEYWORD
            shown = own.parameters.get(name) or inspect.Parameter(
                name, kind, default=_DEFAULTS[name], annotation=types[name].__forward_arg__
            )
            parameters.append(shown.replace(kind=kind))
        signature = own.replace(parameters=parameters)

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            unknown = next((name for name in keywords if name not in signature.parameters), None)
            try:
                bound = signature.bind(*args, **keywords)
            except TypeError as error:
                hint = "" if unknown is None else f"; {close_names(unknown, signature.parameters)}"
                raise TypeError(f"{function.__name__}() {error}{hint}") from None
            bound.apply_defaults()
            return function(**bound.arguments)

        called: Any = call
        called.__signature__ = signature
        return cast("_Function", called)

    return decorate


def check_arguments(source: Any, *, batched: bool, **arguments: Any) -> ReaderOptions:
    """Return the options of a reader, checked; warns about arguments that are deprecated or have no effect."""
    for name, (default, why) in _WITHOUT_EFFECT.items():
        if arguments.get(name, default) != default:
            warnings.warn(f"{name} has no effect: {why}", PenstockWarning, stacklevel=users_level())
    if arguments.get("shard_seed") is not None:
        text = "shard_seed was deprecated and will be removed in future versions. Use seed"
        warnings.warn(text, UserWarning, stacklevel=users_level())
        arguments["seed"] = arguments["shard_seed"]
    if "cache_type" in arguments:
        arguments["cache"] = make_cache(*[arguments[name] for name in _CACHE])
    options = _DEFAULTS | arguments | {"source": normalize_dataset_url_or_urls(source), "batched": batched}
    _check(options)
    return cast("ReaderOptions", options)


def _check(options: Mapping[str, Any]) -> None:
    """Raise ValueError for a value that no reader can have."""
    for name in ("seed", "cur_shard", "shard_count"):
        value = options[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
            raise ValueError(f"{name} must be a whole number or None; got {value!r}")
    for name in ("exact", "decode"):
        if not isinstance(options[name], bool | np.bool_):
            raise ValueError(f"{name} must be True or False; got {options[name]!r}")  # noqa: TRY004 -- Petastorm's
    if options["reader_pool_type"] not in _POOLS:
        raise ValueError(
            f"Unknown reader_pool_type {options['reader_pool_type']!r}; use one of {', '.join(map(repr, _POOLS))}"
        )
    cur_shard, shard_count, num_epochs = options["cur_shard"], options["shard_count"], options["num_epochs"]
    if (cur_shard is None) != (shard_count is None):
        raise ValueError(f"cur_shard and shard_count go together; got cur_shard={cur_shard}, shard_count={shard_count}")
    for name in ("workers_count", "results_queue_size", "shuffle_row_drop_partitions"):
        whole_number(name, options[name], least=1)
    if num_epochs is not None and (isinstance(num_epochs, bool) or not isinstance(num_epochs, int) or num_epochs < 1):
        raise ValueError(f"num_epochs must be a whole number, at least 1, or None; got {num_epochs!r}")
    if cur_shard is not None and not 0 <= cur_shard < shard_count:
        raise ValueError(f"cur_shard must be in [0, shard_count={shard_count}); got {cur_shard!r}")
    if options["transform_spec"] is not None and not isinstance(options["transform_spec"], TransformSpec):
        raise ValueError(f"transform_spec must be a TransformSpec; got {type(options['transform_spec']).__name__}")
    if options["predicate"] is not None:
        check_predicate(options["predicate"])
    if options["lanes"] is not None and not options["shuffle_rows"]:
        raise ValueError(f"lanes={options['lanes']} needs shuffle_rows=True: other orders have no lanes")


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
    """Rows that are made at once, from any row groups; None or 0: chosen from their size."""
    warned: set[str] = field(default_factory=set)
    """Warnings that were given already."""

    @property
    def is_late(self) -> bool:
        """Whether a predicate is applied on delivery."""
        return self.options["predicate"] is not None and not self.options["exact"]

    @property
    def deals_whole(self) -> bool:
        """Whether an item is a whole row group, or a part of one, which is never divided among shards."""
        return isinstance(self.items, PartGrouping) and self.items.whole

    @property
    def calls_transform(self) -> bool:
        """Whether a function of the user's changes rows or batches, and perhaps their number."""
        return self.options["transform_spec"] is not None and self.options["transform_spec"].func is not None

    @cached_property
    def batch_dtypes(self) -> dict[str, np.dtype[Any]]:
        """The same for what is returned: fields that a transform edits have the dtype that it gives them."""
        spec = self.options["transform_spec"]
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
        items = find_items(self.dataset, changes["options"] | {"shuffle_rows": True}, self.ngram)
        return replace(self, items=items, **changes)

    def make_loader(self, seed: int | None) -> Loader:
        """Return a loader; `seed` replaces the one that was drawn."""
        options, batch_items = self.options, self.batch_items
        rowwise: Any = None
        if options["transform_spec"] is not None:
            fields = tuple(self.schema.fields.values())
            rowwise = RowTransform(options["transform_spec"], fields, stack=False)
            if options["batched"]:
                rowwise = FrameTransform(options["transform_spec"], fields, self.dtypes)
        loader_options = LoaderOptions(
            batch_size=batch_items if self._gathers_batches else 1,
            shuffle=bool(options["shuffle_rows"]) or ("groups" if options["shuffle_row_groups"] else False),
            seed=next((int(one) for one in (seed, options["seed"], self.drawn) if one is not None), 0),
            epochs=options["num_epochs"],
            rank=options["cur_shard"] or 0,
            world=options["shard_count"] or 1,
            remainder=cast("Any", options["remainder"]),
            pool=cast("Any", _POOLS[options["reader_pool_type"]]),
            workers=min(options["workers_count"], max(2, default_workers())),
            memory_bytes=options["memory_bytes"],
            lanes=options["lanes"],
        )
        late = RowFilter(options["predicate"], options["batched"]) if self.is_late else None
        return make_loader(
            self.dataset,
            loader_options,
            self.items,
            batch_items=1 if self.deals_whole else batch_items,
            aligned=not self._gathers_batches and not self.batch_rows,
            filter_rows=None if late is None else FilterRows(late, self.unseen),
            rowwise=rowwise,
            most_waiting=options["results_queue_size"],
        )

    @property
    def _gathers_batches(self) -> bool:
        """Whether a step is a batch of rows from anywhere."""
        return self.options["batched"] and not self.deals_whole

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
            share = (self.options["memory_bytes"] or MEMORY_BYTES) // 16
            return max(1, min(_MOST_WINDOWS, min(_WINDOW_BYTES, share) // row_bytes))
        return max(1, min(_SLOW_ROWS if self.calls_transform else _MOST_ROWS, SPAN_BYTES // row_bytes))

    def check_edits(self, batch: Batch) -> None:
        """Warn once where a transform changed a field that `edit_fields` does not name; looks at the first batch."""
        if not self.calls_transform or "edit_fields" in self.warned:
            return
        self.warned.add("edit_fields")
        edited = {edit.name for edit in cast("TransformSpec", self.options["transform_spec"]).edit_fields}
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
    """Return the `edit_fields` line for a column that differs from its field; None if it matches."""
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
    if options["seed"] is None:
        drawn = int(ds.fingerprint[:15], 16) if options["shard_count"] is not None else secrets.randbits(60)
    view = ds.schema.create_schema_view([ds.schema.fields[name] for name in wanted])
    schema = view if options["transform_spec"] is None else transform_schema(view, options["transform_spec"])
    _check_spec(options, view, ngram)
    if not schema.fields:
        raise RuntimeError("no fields are left: the transform_spec removes all that schema_fields selects")
    extra: list[str] = []
    if options["predicate"] is not None and not options["exact"]:
        extra = sorted(RowFilter(options["predicate"], options["batched"]).fields - set(wanted))
    ds = ds.select([*wanted, *extra])
    items = find_items(ds, options, ngram)
    num_items = int(items.counts.sum())
    if options["remainder"] == "drop" and num_items and num_items < (options["shard_count"] or 1):
        warnings.warn(
            f"remainder='drop' leaves nothing: {num_items} steps for {options['shard_count']} shards; use 'uneven' or "
            "'pad'",
            PenstockWarning,
            stacklevel=users_level(),
        )
    return ReaderSetup(
        options=options,
        dataset=ds,
        schema=schema,
        ngram=ngram,
        items=items,
        drawn=drawn,
        unseen=frozenset(extra),
        dtypes=batch_dtypes(ds.source, wanted) if options["batched"] else {},
    )


def _check_spec(options: ReaderOptions, view: Unischema, ngram: NGram | None) -> None:
    spec = options["transform_spec"]
    if spec is None:
        return
    new = [field.name for field in spec.edit_fields if field.name not in view.fields]
    if spec.func is None and new:
        raise ValueError(f"edit_fields adds {', '.join(map(repr, new))}, but there is no func that makes them")
    if ngram is not None and ngram.timestamp_field.name in {field.name for field in spec.edit_fields}:
        warnings.warn(
            f"windows are formed by the stored timestamps, before the transform changes {ngram.timestamp_field.name!r}",
            PenstockWarning,
            stacklevel=users_level(),
        )


def _open(options: ReaderOptions, **more: Any) -> penstock.Dataset:
    if not isinstance(options["cache"], NullCache):
        more["cache"] = options["cache"]
    return penstock.open(
        options["source"],
        storage_options=options["storage_options"],
        filesystem=options["filesystem"],
        format=cast("Any", options["format"]),
        **more,
    )


def _raw(ds: penstock.Dataset, options: ReaderOptions, wanted: list[str]) -> penstock.Dataset:
    """Return the dataset as a batch reader sees it: cells as they are stored, unless they are to be decoded."""
    encoded = [name for name in ds.columns if not isinstance(ds.schema.fields[name].codec, ScalarCodec | None)]
    if not options["batched"] or options["decode"] or not encoded:
        return ds
    if some := [name for name in encoded if name in wanted]:
        warnings.warn(
            f"make_batch_reader gives the cells of {', '.join(map(repr, some))} as bytes; use make_reader, or "
            "decode=True, for decoded values",
            UserWarning,
            stacklevel=users_level(),
        )
    return _open(options, schema=Unischema("stored", []))


def _fields(options: ReaderOptions, ds: penstock.Dataset) -> tuple[NGram | None, list[str]]:
    """Return the n-gram and the names of the fields that are returned, or given to the transform."""
    fields, schema = options["schema_fields"], petastorm_order(ds.source)
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
            None if options["batched"] else ds.source.facts.declared
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
    if options["rowgroup_selector"] is not None:
        from penstock.dataset.index import select_row_groups

        ds = ds.with_selection(select_row_groups(ds.source, options["rowgroup_selector"], ds.selection))
    if options["filters"] is not None:
        ds = ds.where(options["filters"])
    if options["predicate"] is not None and options["exact"]:
        from penstock.dataset.select_rows import select_rows

        found = cast(
            "RowFilter", make_row_filter(options["predicate"], ds.source.facts.arrow_schema, batched=options["batched"])
        )
        ds = ds.with_selection(select_rows(ds.source, found, ds.selection, workers=default_workers()))
    return ds


def _check_shards(ds: penstock.Dataset, options: ReaderOptions) -> None:
    if not len(ds):
        warnings.warn(
            "No matching data is available for loading: no row is selected", UserWarning, stacklevel=users_level()
        )
    elif options["shard_count"] is not None and len(ds) < options["shard_count"]:
        raise NoDataAvailableError(
            f"{options['shard_count']} shards need at least one row each. Number of row-groups in the dataset that are "
            f"selected: {np.count_nonzero(ds.selection.counts)}, with {len(ds)} rows; give a shard_count of at most "
            f"{len(ds)}"
        )


def find_items(ds: penstock.Dataset, options: ReaderOptions, ngram: NGram | None) -> Grouping:
    """Return what is dealt to shards: rows, windows, parts of row groups or whole row groups."""
    units: RowGrouping | WindowGrouping = RowGrouping(ds.selection.counts)
    if ngram is not None:
        if options["shuffle_row_drop_partitions"] > 1 and not ngram.timestamp_overlap:
            raise NotImplementedError("an NGram without overlap cannot have shuffle_row_drop_partitions > 1")
        units = WindowGrouping(ds.window_table(ngram.timestamp_field.name, ngram.rule, span=ngram.span_row_groups))
    whole = options["batched"] and not options["shuffle_rows"]
    if options["shuffle_row_drop_partitions"] == 1 and not whole:
        return units
    return PartGrouping.cut(units, int(options["shuffle_row_drop_partitions"]), whole=whole)


def pool_options(pool: Any) -> dict[str, Any]:
    """Return the options that one of Petastorm's pool objects stands for."""
    if pool is None:
        return {}
    name = type(pool).__name__
    kind = {"ThreadPool": "thread", "ProcessPool": "process", "DummyPool": "dummy"}.get(name)
    if kind is None:
        raise ValueError(f"reader_pool must be a ThreadPool, ProcessPool or DummyPool; got {name}")
    return {
        "reader_pool_type": kind,
        "workers_count": int(getattr(pool, "workers_count", 10) or 1),
        "results_queue_size": int(getattr(pool, "results_queue_size", 50) or 1),
        "zmq_copy_buffers": getattr(pool, "zmq_copy_buffers", True),
    }
