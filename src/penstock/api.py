"""The public face: `open` a dataset, look at it, load it.

The only file that sees all stages: facts from `dataset`, orders from `plan`, batches from `engine`. It adds no work of
its own; options are checked here once and handed down as frozen values.
"""

from __future__ import annotations

import os
import warnings
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

import numpy as np
import pyarrow as pa

from penstock.codecs.base import AsStored
from penstock.codecs.row_values import only_value
from penstock.dataset import open_parquet, pick_columns
from penstock.dataset.read import CAN_VERIFY
from penstock.engine.delivery import FORKED
from penstock.engine.inputs import Column, Inputs, columns_of
from penstock.engine.loader import Loader
from penstock.engine.stages import FilterRows, Fold
from penstock.errors import LoaderClosed, NotSorted, PenstockWarning, PlanError, SchemaError
from penstock.keywords import LoaderKeywords, PlanKeywords, check_keywords, show_keywords
from penstock.openers import check_path, find_opener
from penstock.options import LoaderOptions, OnError, Verify, Window, one_of
from penstock.plan.order import Grouping, RowGrouping
from penstock.rows import DatasetRows
from penstock.schema import Unischema, UnischemaField
from penstock.schema.transform import TransformSpec, transform_schema
from penstock.source import Selection, Source, may_hold_nulls

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.dataset.row_filter import RowFilter
    from penstock.plan.plan import Plan
    from penstock.plan.windows import WindowRule, WindowTable

__all__ = ["Dataset", "Loader", "open"]

_ITER_ROWS = 256
"""Rows that iterating a dataset decodes at once."""


def open(  # noqa: PLR0913 -- a public factory takes flat keywords
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Source,
    *,
    columns: Iterable[Any] | None = None,
    filters: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    schema: Unischema | None = None,
    on_error: OnError = "raise",
    cache: Any = None,
    format: Literal["parquet"] | None = None,
    verify: Verify = "first",
) -> Dataset:
    """Open a dataset: a URL or path of a folder, a file or a pattern, a list of them, or a source of your own.

    Reads the footers of all files (in threads; a `_metadata` that lists every file spares that), no data, and keeps no
    file open. Columns come in the order given, else as stored.

    Args:
        source: Where the data is. A list keeps its order; inside a folder files go by relative path. A URL of a scheme
            that was registered (`register_source`) goes to its opener, with the options that are given here. A
            `penstock.source.Source` of your own is taken as it is.
        columns: Names, fields or regular expressions that match whole names; None for all.
        filters: Rows to keep: tuples such as ``[("split", "=", "train")]``, lists of such lists (or), a pyarrow
            expression or a predicate; see `Dataset.where`.
        storage_options: Passed to fsspec for URLs.
        filesystem: A pyarrow or fsspec filesystem to use instead of the URL's.
        schema: A Unischema to use instead of the stored one; columns without a field in it are read as their Arrow
            type says, without a codec.
        on_error: "skip" leaves out files that cannot be read and lists them in `Dataset.skipped`.
        cache: Where to keep column chunks that were read: "local-disk" (the user's cache folder), "memory", or a
            `DiskCache` or `MemoryCache` of your own; see docs/cache.md.
        format: "parquet" opens every Parquet file of a folder or pattern, also where it is a Delta, Iceberg or Hudi
            table, with rows that the table has deleted; None refuses such tables.
        verify: When to compare pages with their checksums, in files that have them: "first": the first time this
            process reads a row group; True: every time; False: never. pyarrow 14 cannot: there True is an error.

    Raises:
        DatasetNotFound: Nothing is there, or no Parquet file.
        UnsupportedFormat: A Delta, Iceberg or Hudi table; names the reader to use.
        BadFile: A file is damaged.
        SchemaError: Files disagree, or a column is missing or of a type without a mapping (docs/types.md).
    """
    one_of("on_error", on_error, ("raise", "skip"))
    one_of("format", format, (None, "parquet"))
    one_of("verify", verify, ("first", True, False))
    if verify is True and not CAN_VERIFY:
        raise PlanError(f"verify=True needs pyarrow 15 or newer; this is {pa.__version__}")
    if schema is not None and not hasattr(schema, "fields"):
        raise TypeError(f"schema= takes a penstock.Unischema; got {type(schema).__name__}")
    options: dict[str, Any] = {"storage_options": storage_options, "filesystem": filesystem, "schema": schema}
    options |= {"on_error": on_error, "cache": cache, "format": format, "verify": verify}
    opened = dataset_of(_source_of(source, columns, options), columns)
    return opened if filters is None else opened.where(filters)


def _source_of(source: Any, columns: Iterable[Any] | None, options: dict[str, Any]) -> Source:
    """Return the source that `open` was given, or that a registered opener makes, or that of Parquet files."""
    defaults = {"on_error": "raise", "verify": "first"}
    # Never compare a filesystem: with None, pyarrow 14 crashes.
    given = {name: value for name, value in options.items() if value is not None}
    given = {name: value for name, value in given.items() if name not in defaults or value != defaults[name]}
    if hasattr(source, "facts"):
        if given:
            raise TypeError(f"{next(iter(given))}= is for opening a URL; this source is open already")
        return cast("Source", source)
    if not isinstance(source, str):
        check_path(source)
    has_scheme = isinstance(source, str) and "://" in source
    opener = find_opener(source) if has_scheme and "filesystem" not in given else None
    if opener is not None:
        found = opener(source, **given) if columns is None else opener(source, columns=columns, **given)
        if not hasattr(found, "facts"):
            raise TypeError(f"the opener of {source} must return a penstock.source.Source; got {found!r}")
        return found
    if options["cache"] is not None:
        from penstock.storage.cache import as_cache  # late: most datasets are read without

        options = options | {"cache": as_cache(options["cache"])}
    return open_parquet(source, columns=columns, **options)


def dataset_of(source: Source, columns: Iterable[Any] | None = None) -> Dataset:
    """Return all rows of a source as a dataset, with these columns (names, fields or regular expressions)."""
    names = pick_columns(source.facts.arrow_schema.names, columns)
    return Dataset(source, source.facts.selection or Selection.all(source.facts.chunk_rows), names)


class Dataset(DatasetRows):
    """Rows of a dataset: some columns, some rows, in their natural order. A value: `select` and `where` give new ones.

    Opening reads no data; a filter that statistics cannot decide reads its own columns once, when `where` is called.
    """

    def __init__(
        self,
        source: Source,
        selection: Selection,
        names: Sequence[str],
        late: RowFilter | None = None,
        encoded: Collection[str] = (),
    ) -> None:
        self._source = source
        self._late = late
        self._selection = selection
        self._names = tuple(names)
        self._encoded = frozenset(encoded)
        self._ends: NDArray[np.int64] = np.cumsum(selection.counts)
        self._schema: Unischema | None = None
        self._read_columns: tuple[Column, ...] | None = None
        facts = source.facts
        fields = [facts.unischema.fields[name] for name in self._names]
        if self._encoded:
            fields = [
                UnischemaField(one.name, np.bytes_, (), AsStored(), one.nullable) if one.name in self._encoded else one
                for one in fields
            ]
        try:  # refuses unsupported types now, not at the first batch
            self._columns = columns_of(fields, [facts.arrow_schema.field(name).type for name in self._names])
        except SchemaError as error:
            place = source.locate(0).path if len(facts.chunk_rows) else facts.files[0]
            raise type(error)(f"{place}: {error}") from error

    def __reduce__(self) -> Any:
        # What was found travels, files and connections do not: another process lists nothing and filters nothing again.
        return Dataset, (self._source, self._selection, self._names, self._late, self._encoded)

    # -- other views --------------------------------------------------------------------------------------------------

    def select(self, columns: Iterable[Any] | str) -> Dataset:
        """Return the dataset with these columns only, in this order: names, fields or regular expressions."""
        names = pick_columns(self._source.facts.arrow_schema.names, columns)
        return Dataset(self._source, self._selection, names, self._late, self._encoded)

    def with_selection(self, selection: Selection) -> Dataset:
        """Return the dataset with these rows of `source` in place of those selected so far."""
        return Dataset(self._source, selection, self._names, self._late, self._encoded)

    def without_decoding(self, names: Collection[str]) -> Dataset:
        """Return the dataset whose batches hold the cells of these columns as stored (bytes); `schema` stays as it is.

        For faces that decode elsewhere, such as on a GPU.
        """
        return Dataset(self._source, self._selection, self._names, self._late, names)

    def where(self, filters: Any, *, exact: bool = True) -> Dataset:
        """Return the dataset with only the rows that `filters` keeps; combines with earlier filters (and).

        Takes tuples ``(column, operator, value)`` in a list (and), a list of such lists (or), a pyarrow expression, or
        a predicate (`penstock.predicates`), over any stored or partition column. Partitions and statistics rule out
        whole row groups first; what is left is evaluated once, here, in threads, reading only the columns that it
        names. A predicate's function is called row by row with decoded values, None for null.

        With `exact=False`, for filters that would take long, nothing is read here: the order is that of all rows, and
        rows are left out as they are delivered, by their decoded values. Resuming stays exact; `len` counts rows
        before the filter, ranks may get unequal numbers of rows, and single rows cannot be requested by number. Tuples
        and expressions can then only test arrays and encoded cells for null.
        """
        from penstock.dataset.arrow_filter import delivered_schema
        from penstock.dataset.row_filter import make_row_filter
        from penstock.dataset.select_rows import select_rows
        from penstock.engine.host import default_workers

        source, schema = self._source, self._source.facts.arrow_schema
        if not exact:
            schema = delivered_schema(schema, source.facts.unischema.fields)
        found = make_row_filter(filters, schema)
        if found is None:
            return self
        if exact:
            return self.with_selection(select_rows(source, found, self._selection, workers=default_workers()))
        late = found if self._late is None else self._late & found
        return Dataset(source, self._selection, self._names, late, self._encoded)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows one by one, as `ds[i]` gives them: a dict of values, None where null.

        Row groups are read and decoded ahead in threads. The slow way: a loop over rows in Python takes about a
        hundred times as long as `loader`, which gives batches.
        """
        pid = os.getpid()
        with self.loader(batch_size=_ITER_ROWS, rank=0, world=1) as loader:
            for batch in loader:
                for row in range(len(next(iter(batch.values())))):
                    if os.getpid() != pid:
                        raise LoaderClosed(FORKED)
                    yield {name: only_value(values[row : row + 1]) for name, values in batch.items()}

    # -- loading ------------------------------------------------------------------------------------------------------

    @show_keywords(LoaderKeywords)
    def loader(self, *, batch_size: int, **options: Unpack[LoaderKeywords]) -> Loader:
        """Return a loader of batches in one global order that can be saved and resumed at any batch.

        The order depends on the dataset, the rows selected, `shuffle`, `seed`, the epoch and `shuffle_bytes`; not on
        ranks, workers, batch size or columns. See docs/loader.md for every option.

        Args:
            batch_size: Rows of a batch on each rank.
            **options: The keys of `penstock.keywords.LoaderKeywords`.

        Raises:
            PlanError: Options that contradict each other.
            BudgetError: Too few bytes for the shuffle buffer, one read and two batches; names the least.
            TypeError: A keyword that is not an option.
        """
        given: Any = options
        if not given.keys() <= LoaderOptions.__dataclass_fields__.keys():  # a name that is deprecated or unknown
            given = check_keywords(options, Dataset.loader, owner="Dataset.loader")
        return load(self, LoaderOptions(batch_size=batch_size, **given))

    def _special_loader(self, options: LoaderOptions, spec: TransformSpec | None) -> Loader:
        """Return a loader of windows, of rows that a `TransformSpec` changes, or that are filtered on delivery."""
        read, items, fold, window = self, None, None, options.window
        if window is not None:
            from penstock.plan.windows import WindowGrouping, WindowRule

            rule = WindowRule(window.length, window.max_gap, window.overlap, window.stride)
            table = self.window_table(window.by, rule, span=window.span_row_groups)
            given = self.schema if spec is None else transform_schema(self.schema, spec)
            items, fold = WindowGrouping(table), Fold(window.length, window_steps(window, list(given.fields)))
            if fold.steps is not None and spec is None:
                read = read.select([name for name in self._names if name in fold.steps])
        rowwise = None
        if spec is not None:
            from penstock.engine.rowwise import RowTransform

            rowwise = RowTransform(spec, tuple(transform_schema(read.schema, spec).fields.values()), stack=True)
        filter_rows = None
        if self._late is not None:
            filter_rows = FilterRows(self._late, self._late.fields - set(read.columns))
            read = read.select([*read.columns, *sorted(filter_rows.hidden)])
        return Loader(replace(read.inputs(items), filter_rows=filter_rows, rowwise=rowwise, fold=fold), options)

    @show_keywords(PlanKeywords)
    def plan(self, *, batch_size: int, **options: Unpack[PlanKeywords]) -> Plan:
        """Return what a loader with these options would do, as a value to print.

        Reads no data, but indexes: of all files where parts of row groups are counted, and the offset indexes of a few.

        Without `rank` and `world` it is the plan of one rank: the environment is not looked at.

        Args:
            batch_size: Rows of a batch on each rank.
            **options: The keys of `penstock.keywords.PlanKeywords`.
        """
        from penstock.engine.inputs import choose_order
        from penstock.engine.loader_facts import describe
        from penstock.plan import Cursor, Share

        given = check_keywords(options, Dataset.plan, owner="Dataset.plan")
        chosen = LoaderOptions(batch_size=batch_size, **given)
        order, inputs = choose_order(self.inputs(), chosen)
        share = Share(chosen.rank or 0, chosen.world or 1, chosen.batch_size, chosen.remainder, chosen.drop_last)
        return describe(inputs, order, Cursor.start(0, order, len(self)), share, chosen, measured=True)

    # -- inside -------------------------------------------------------------------------------------------------------

    def window_table(self, column: str, rule: WindowRule, *, span: bool) -> WindowTable:
        """Find the windows over time among the selected rows; reads one column, in threads.

        With `span`, windows may reach from one row group into the next.

        Raises:
            NotSorted: The column does not ascend within a chunk, or with `span` within the dataset.
        """
        from penstock.engine.random_access import scan_column
        from penstock.plan.windows import WindowTable

        only = self.select([column])
        try:
            with closing(scan_column(only.builder(), self._selection.counts)) as chunks:
                table = WindowTable.build(chunks, rule, span=span)
        except NotSorted as error:
            where = self._source.locate(error.chunk or 0)
            raise NotSorted(f"column {column!r} in {where}: {error}", row=error.row, chunk=error.chunk) from None
        if not table.total and len(self):
            warnings.warn(
                f"there is no window: no {rule.length} rows follow each other with gaps in {column!r} of at most "
                f"{rule.threshold}",
                PenstockWarning,
                stacklevel=4,
            )
        return table

    def _columns_read(self) -> tuple[Column, ...]:
        """Return the columns with how their nulls come, which needs the statistics of nullable ones."""
        if self._read_columns is None:
            stacked = [column.name for column in self._columns if column.form in ("fixed", "cells")]
            nulls = may_hold_nulls(self._source, stacked)
            self._read_columns = tuple(
                replace(column, masked=True) if column.name in nulls else column for column in self._columns
            )
        return self._read_columns

    def inputs(self, items: Grouping | None = None) -> Inputs:
        """Return what a loader of these rows works from; `items` are dealt out instead of rows."""
        if not self._names:
            raise PlanError("no columns are selected: there is nothing to load; select at least one")
        source, selection = self._source, self._selection
        items = items or RowGrouping(selection.counts)
        return Inputs(
            source=source,
            selection=selection,
            columns=self._columns_read(),
            items=items,
            row_bytes=source.row_bytes(),
            column_bytes=source.row_bytes(self._names),
            chunk_bytes=source.chunk_bytes(self._names),
            rows=items.digest(selection.digest()),
        )


def window_steps(window: Window, names: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """Return the steps at which each column is wanted, in the order of the columns; None: all at every step."""
    if window.columns is None:
        return None
    outside = sorted(step for step in window.columns if not 0 <= step < window.length)
    if outside:
        raise PlanError(f"the steps of a window of {window.length} rows are 0 to {window.length - 1}; got {outside}")
    steps: dict[str, list[int]] = {}
    for step, listed in sorted(window.columns.items()):
        for name in pick_columns(names, [listed] if isinstance(listed, str) else listed):
            steps.setdefault(name, []).append(step)
    return {name: tuple(steps[name]) for name in names if name in steps}


def load(dataset: Dataset, options: LoaderOptions) -> Loader:
    """Return what `Dataset.loader` returns, for options that were checked already."""
    spec = options.transform if isinstance(options.transform, TransformSpec) else None
    if spec is not None:
        options = replace(options, transform=None)
    for function in options.transforms:
        if not callable(function):
            found = type(function).__name__
            raise PlanError(f"transform must be a function of the batch, or a list of such functions; got {found}")
    plain = options.window is None and spec is None and dataset._late is None
    return Loader(dataset.inputs(), options) if plain else dataset._special_loader(options, spec)
