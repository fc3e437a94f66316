"""What the fuzzing of Parquet files runs in a child process: a dataset with one damaged file, used in every way.

Every way must work or raise an error of ours that names the file; anything else is a complaint. `footer_cases` and
`page_cases` make the damaged files, `check_footer` and `check_pages` use one of them.
"""

import random
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock.doctor import examine
from penstock.errors import PenstockError, PenstockWarning
from penstock.predicates import in_lambda, in_negate, in_set
from penstock.storage.cache import MemoryCache
from penstock.testing.compare import freeze
from tests.fuzz.harness import Case
from tests.fuzz.parquet_files import Source, column_chunks, footer_start, mutated, renumbered, sources

BAD, GOOD = "bad.parquet", "good.parquet"
BUDGET = 64 << 20


def footer_cases(count: int, seed: int) -> Iterator[Case]:
    """Yield files whose footers were mutated, bit by bit or by other numbers, or that were cut."""
    rng = random.Random(seed)
    for number in range(count):
        name = rng.choice(sorted(sources()))
        good = sources()[name].data
        chance = rng.random()
        if chance < 0.05:
            size = rng.randrange(len(good))
            data, what = good[:size], f"cut to {size} bytes"
        elif chance < 0.35:
            data, what = renumbered(good, rng)
        else:
            data, what = mutated(good, footer_start(good), len(good), rng)
        yield Case(f"{name}: {what} ({seed}/{number})", (name, data, number))


def page_cases(count: int, seed: int) -> Iterator[Case]:
    """Yield files some bytes of whose column chunks were changed, none moved: footers hold offsets."""
    rng = random.Random(seed)
    for number in range(count):
        name = rng.choice(sorted(sources()))
        good = sources()[name].data
        start, stop = rng.choice(column_chunks(good))
        data, what = good, ""
        while data == good or len(data) != len(good):
            data, what = mutated(good, start, stop, rng)
        yield Case(f"{name}: {what} ({seed}/{number})", (name, data, number))


def check_footer(case: tuple[str, bytes, int], folder: Path) -> str | None:
    """Use a file with a damaged footer; then `_metadata` that describes the sound file, and a damaged `_metadata`."""
    name, data, number = case
    source, problems, rng = sources()[name], Problems(BAD), random.Random(number)
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        sound = _write(Path(inside), source, data, beside=number % 2 == 1)
        _use(Path(inside), problems, sound=sound)
        problems.look("doctor", lambda: str(examine(inside)))
        _use_summary(Path(inside), source, problems, rng)
    return problems.text


def check_pages(case: tuple[str, bytes, int], folder: Path) -> str | None:
    """Use a file with damaged pages; with checksums its rows must be right or an error."""
    name, data, number = case
    source, problems = sources()[name], Problems(BAD)
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        sound = _write(Path(inside), source, data, beside=number % 3 == 2)
        _use(Path(inside), problems, sound=sound)
        for kept in (None, MemoryCache(BUDGET)) if source.checked else ():
            path = Path(inside, source.folder, BAD)
            rows = problems.look("rows", lambda path=path, kept=kept: _rows(path, cache=kept))
            if rows is not None and rows != _sound_rows(name):
                problems.found.append("rows differ from those of the sound file")
    return problems.text


class Problems:
    """Collects what goes wrong in one case."""

    def __init__(self, *files: str) -> None:
        self.files = files
        """Every error must name one of these."""
        self.found: list[str] = []

    def look(self, way: str, use: Callable[[], object]) -> object:
        """Use the file in one way; return what that gives, None after an error."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", PenstockWarning)
                return use()
        except PenstockError as error:
            if not any(file in str(error) for file in self.files):
                self.found.append(f"{way}: {type(error).__name__} does not name the file: {error}")
        except AssertionError as error:
            self.found.append(f"{way}: {error}")
        except Exception:
            self.found.append(f"{way}: a raw error\n{traceback.format_exc(limit=-4)}")
        return None

    @property
    def text(self) -> str | None:
        """All that was found; None if nothing."""
        return "\n".join(self.found) or None


def _write(folder: Path, source: Source, data: bytes, *, beside: bool) -> int:
    """Write the mutated file and what its dataset has; `beside`: also a sound file, whose rows are returned."""
    inner = folder / source.folder
    inner.mkdir(exist_ok=True)
    (inner / BAD).write_bytes(data)
    if source.common is not None:
        (folder / "_common_metadata").write_bytes(source.common)
    if not beside:
        return 0
    (inner / GOOD).write_bytes(source.data)
    return int(pq.read_metadata(inner / GOOD).num_rows)


def _use(folder: Path, problems: Problems, *, sound: int, way: str = "") -> None:
    """Open, filter and load a dataset; `sound` of its rows are in a file that was not mutated."""

    def load(on_error: str, kept: MemoryCache | None = None, **more: object) -> None:
        ds = penstock.open(folder, on_error=on_error, cache=kept)
        options = {"batch_size": 16, "memory_bytes": BUDGET, "shuffle_bytes": 8 << 20, "workers": 1, **more}
        with ds.loader(on_error=on_error, **options) as loader:
            rows = sum(len(next(iter(batch.values()))) for batch in loader if batch)
        assert on_error == "raise" or rows >= sound, f"{rows} rows came where the sound file has {sound}"

    problems.look(f"{way}load", lambda: load("raise", shuffle=True, seed=1))
    problems.look(f"{way}load, skip", lambda: load("skip"))
    problems.look(f"{way}load, cache", lambda: load("raise", MemoryCache(BUDGET)))
    problems.look(f"{way}filter", lambda: _filter(folder))
    problems.look(f"{way}filter, skip", lambda: _filter(folder, on_error="skip"))


def _filter(folder: Path, **options: str) -> None:
    """Filter by tuples, by an expression and by predicates, over the columns that the dataset says it has."""
    ds = penstock.open(folder, **options)
    values = [(name, _value(ds.source.facts.arrow_schema.field(name).type)) for name in ds.columns[:8]]
    plain = [(name, value) for name, value in values if value is not None][:3]
    if plain:
        (first, least), (last, value) = plain[0], plain[-1]
        ds.where([[(first, ">", least)], [(last, "!=", value), (first, "in", [least])]]).head(3)
        ds.where(in_negate(in_set([value], last))).head(3)
    if ds.columns:
        ds.where(in_lambda([ds.columns[-1]], lambda cell: cell is not None)).head(3)


def _value(kind: pa.DataType) -> object:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return 30
    if pa.types.is_floating(kind):
        return 0.5
    return "text 3" if pa.types.is_string(kind) else None


def _use_summary(folder: Path, source: Source, problems: Problems, rng: random.Random) -> None:
    """Put a `_metadata` beside the files: first a sound one, then a mutated one."""
    paths = sorted((folder / source.folder).glob("*.parquet"))
    whole = None
    for path in paths:
        meta = pq.read_metadata(pa.BufferReader(source.data))
        meta.set_file_path(path.relative_to(folder).as_posix())
        if whole is None:
            whole = meta
        else:
            whole.append_row_groups(meta)
    whole.write_metadata_file(str(folder / "_metadata"))
    _use(folder, problems, sound=0, way="with _metadata, ")
    for path in paths:
        path.write_bytes(source.data)
    data = (folder / "_metadata").read_bytes()
    changed, what = renumbered(data, rng) if rng.random() < 0.3 else mutated(data, footer_start(data), len(data), rng)
    (folder / "_metadata").write_bytes(changed)
    problems.files = ("_metadata", ".parquet")  # sound files may seem to have changed
    _use(folder, problems, sound=0, way=f"with _metadata ({what}), ")
    problems.look(f"doctor with _metadata ({what})", lambda: str(examine(folder)))


def _rows(path: Path, **options: Any) -> object:
    """Return all rows in order, in a form to compare."""
    ds = penstock.open(path, **options)
    return freeze(ds.head(len(ds)))


@cache
def _sound_rows(name: str) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / BAD
        path.write_bytes(sources()[name].data)
        return _rows(path)
