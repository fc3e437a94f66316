"""What each command prints: `run` calls the public API with the options of the command line and returns text.

`info` and `plan` read no data, only footers and indexes; `head` decodes the rows that it shows. Nothing here parses
arguments or knows how files are laid out.
"""

from __future__ import annotations

import json
import shutil
import statistics
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

import penstock
from penstock.display import count_text, schema_rows, size_text
from penstock.errors import PenstockWarning, PlanError, printable
from penstock.source import Splittable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from penstock.api import Dataset

# Below 1 MiB a request costs more than the read; above 64 MiB few row groups fit the default shuffle buffer.
_SMALL_BYTES, _LARGE_BYTES = 1 << 20, 64 << 20
_MOST_CHARACTERS, _MOST_NUMBERS = 40, 6  # of a value that is shown
_SHUFFLE: dict[str, Any] = {"no": False, "rows": True, "groups": "groups"}
_ORDERS = {"no": "as stored", "rows": "shuffled", "groups": "row groups permuted"}
_PARTS = {"yes": True, "no": False, None: None}
_NAMES = ("workers", "pool", "memory_bytes", "shuffle_bytes", "lanes", "device")
EXIT_PROBLEM = 3
"""Differs from the status of errors, so scripts can tell a bad layout from a wrong path."""


def run(options: argparse.Namespace) -> tuple[str, int]:
    """Return what a command prints and its exit status."""
    source = options.url if len(options.url) > 1 else options.url[0]
    storage = dict(options.storage_option) or None
    if options.command == "doctor":
        from penstock.doctor import examine

        names = ("label", "world", "batch_size", "row_group_bytes", "shuffle_bytes")
        report = examine(source, storage_options=storage, **_given(options, names))
        text = json.dumps(report.to_json(), indent=2) if options.json else str(report)
        return text, 0 if report.ok else EXIT_PROBLEM
    if options.command == "index":
        from penstock.doctor import index_pages

        return str(index_pages(source, beside=options.beside, storage_options=storage)), 0
    if options.command == "rewrite":
        from penstock.doctor import rewrite

        keywords = _given(
            options, ("row_group_bytes", "rows_per_file", "seed", "partition_by", "memory_bytes", "temp_folder")
        )
        if options.compression is not None:
            keywords["compression"] = None if options.compression.lower() == "none" else options.compression
        written = rewrite(
            source,
            options.out,
            shuffle=options.shuffle,
            on_error="skip" if options.skip_bad_files else "raise",
            overwrite=options.overwrite,
            storage_options=storage,
            **keywords,
        )
        return str(written), 0
    commands: dict[str, Callable[[Dataset, argparse.Namespace], str]]
    commands = {"info": _overview, "head": _head, "plan": _plan, "bench": _bench}
    dataset = penstock.open(source, columns=options.columns, storage_options=storage)
    return commands[options.command](dataset, options), 0


def _overview(dataset: Dataset, _: argparse.Namespace) -> str:
    """Return schema table, rows, files, row groups, sizes, partitions and one line of advice on row-group size."""
    lines = [
        _table(["column", "type", "shape", "null", "codec"], schema_rows(dataset)),
        "",
        f"rows         {len(dataset):,}",
        f"files        {len(dataset.files):,}, {size_text(dataset.num_bytes)}",
        f"{dataset.source.facts.part_noun + 's':<12} {_row_groups(dataset)}",
        *_partitions(dataset.files),
        f"fingerprint  {dataset.fingerprint}",
        f"advice       {_advice(dataset)}",
    ]
    return "\n".join(lines)


def _advice(dataset: Dataset) -> str:
    """Return one line: whether row groups have a size that reads fast and mixes well."""
    num_groups = len(dataset.chunks)
    if not num_groups:
        return "no rows: nothing to read"
    mean, noun = dataset.num_bytes / num_groups, dataset.source.facts.part_noun
    few = num_groups < 16 and dataset.num_bytes > _LARGE_BYTES
    if mean > _LARGE_BYTES or few:
        parts = _parts(dataset)
        if parts is not None:
            return f"{noun}s of {size_text(mean)} on disk are {parts}"
    if mean > _LARGE_BYTES:
        return f"{noun}s of {size_text(mean)} on disk are large: few fit the shuffle buffer; aim at 16 MiB"
    if mean < _SMALL_BYTES and num_groups > 64:
        return (
            f"{noun}s of {size_text(mean)} on disk are small: starting a read costs more than the read; aim at 16 MiB"
        )
    if few:
        return f"only {count_text(num_groups, noun)}: a shuffle mixes few at a time; write more, smaller ones"
    return f"{noun}s of {size_text(mean)} on disk read and shuffle well"


def _parts(dataset: Dataset) -> str | None:
    """Return in which parts a shuffle reads row groups, or what is needed for that; None if they cannot be divided."""
    source = dataset.source
    if not isinstance(source, Splittable):
        return None
    with warnings.catch_warnings():  # what it warns of is said here
        warnings.simplefilter("ignore", PenstockWarning)
        split = source.split(scan=None)
        if split is not None:
            size = size_text(dataset.num_bytes / len(split.chunk))
            return f"shuffled in {count_text(len(split.chunk), 'part')} of {size} on disk on average"
        try:
            split = source.split(scan=True)
        except PlanError:  # not on this store, unless there is an index of pages
            return "shuffled in parts once `penstock index --beside URL` has found their pages"
    if split is None:
        return None
    parts = count_text(len(split.chunk), "part")
    return f"shuffled in {parts} once `penstock index --beside URL` has found their pages, or with parts=True"


def _row_groups(dataset: Dataset) -> str:
    rows = [count for _, _, count in dataset.chunks]
    if not rows:
        return "0"
    spread = f"{min(rows):,}" if min(rows) == max(rows) else f"{min(rows):,} to {max(rows):,}"
    mean = size_text(dataset.num_bytes / len(rows))
    return f"{len(rows):,} of {spread} rows (median {statistics.median_low(rows):,}), {mean} each on disk"


def _partitions(files: tuple[str, ...]) -> list[str]:
    """Return a line with every partition column and its number of values, if folders are named key=value."""
    values: dict[str, set[str]] = {}
    for file in files:
        for key, found, value in (part.partition("=") for part in file.split("/")[:-1]):
            if found:
                values.setdefault(key, set()).add(value)
    listed = ", ".join(f"{printable(key)} ({len(found):,})" for key, found in values.items())
    return [f"partitions   {listed}"] if listed else []


def _head(dataset: Dataset, options: argparse.Namespace) -> str:
    """Return the first rows: as a table if it fits the terminal, else one block for each row."""
    count = min(options.rows, len(dataset))
    if not count:
        return "no rows"
    batch = dataset.head(count)
    rows = [[_value_text(batch[name][index]) for name in dataset.columns] for index in range(count)]
    names = list(map(printable, dataset.columns))
    table = _table(["row", *names], [[str(i), *row] for i, row in enumerate(rows)])
    if max(map(len, table.splitlines())) <= shutil.get_terminal_size().columns:
        return table
    width = max(map(len, names))
    blocks = []
    for index, row in enumerate(rows):
        lines = [f"  {name.ljust(width)}  {value}" for name, value in zip(names, row, strict=True)]
        blocks.append("\n".join([f"row {index}", *lines]))
    return "\n".join(blocks)


def _plan(dataset: Dataset, options: argparse.Namespace) -> str:
    """Return the plan of one epoch as text."""
    return str(
        dataset.plan(
            batch_size=options.batch_size,
            shuffle=_SHUFFLE[options.shuffle],
            seed=options.seed,
            rank=options.rank,
            world=options.world,
            remainder=options.remainder,
            drop_last=options.drop_last,
            lanes=options.lanes,
            parts=_PARTS[options.parts],
            **_given(options, ("shuffle_bytes",)),
        )
    )


def _bench(dataset: Dataset, options: argparse.Namespace) -> str:
    """Return rates, the ratio to the limit and where the time went; `--json`: the numbers on one line."""
    from penstock.bench import Workload, measure

    chosen = {"batch_size": options.batch_size, "shuffle": _SHUFFLE[options.shuffle], "seed": options.seed}
    chosen |= {"parts": _PARTS[options.parts]}
    task = Workload(
        options=chosen | _given(options, _NAMES),
        framework=options.framework,
        seconds=options.seconds,
        batches=options.batches,
        warm_up_s=options.warm_up,
        rounds=options.rounds,
    )
    result = measure(dataset, task)
    if options.json:
        return json.dumps(result.to_json())
    return (
        f"{len(dataset):,} rows x {len(dataset.columns):,} columns in {len(dataset.chunks):,} row groups, "
        f"{dataset.num_bytes / 1e6:,.0f} MB; batches of {options.batch_size:,}, {_ORDERS[options.shuffle]}\n\n{result}"
    )


def _value_text(value: Any) -> str:
    """Return one value in at most about 40 characters: small arrays in full, others as dtype, shape and range."""
    if value is None or value is np.ma.masked:
        return "null"
    if isinstance(value, np.ndarray) and value.ndim:
        if value.ndim == 1 and value.size <= _MOST_NUMBERS:
            return "[" + ", ".join(_value_text(item) for item in value) + "]"
        kind = f"{value.dtype} {'x'.join(map(str, value.shape))}"
        if value.dtype.kind not in "biufmM" or not value.size:
            return kind
        low, high = (np.nanmin(value), np.nanmax(value)) if value.dtype.kind == "f" else (value.min(), value.max())
        return f"{kind} {_value_text(low)}..{_value_text(high)}"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    if isinstance(value, np.generic):
        return printable(str(value))
    text = repr(value) if isinstance(value, str | list | dict) else printable(str(value))
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with columns as wide as their widest cell; no trailing spaces."""
    table = [header, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "\n".join(line.rstrip() for line in lines)


def _given(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Return the options that were given on the command line; the others keep the defaults of the function."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}
