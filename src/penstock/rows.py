"""What a dataset says about itself, and access to its rows by number: the part of `api.Dataset` that loads nothing.

Facts cost nothing: opening has read them. Rows are read by the row groups concerned, with the decoding of the loader.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs.row_values import only_value
from penstock.display import dataset_html, dataset_text
from penstock.engine.build import Builder
from penstock.engine.gather import BlockPool
from penstock.engine.loader import Stats
from penstock.engine.stages import Batch, Decode
from penstock.errors import PlanError
from penstock.options import MEMORY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from penstock.dataset.row_filter import RowFilter
    from penstock.engine.inputs import Column
    from penstock.schema.unischema import Unischema
    from penstock.source import Selection, Source


class DatasetRows(ABC):
    """Base class of `Dataset`: facts, and rows by number."""

    _source: Source
    _selection: Selection
    _names: tuple[str, ...]
    _late: RowFilter | None
    _ends: NDArray[np.int64]
    _schema: Unischema | None

    @abstractmethod
    def _columns_read(self) -> tuple[Column, ...]:
        """Return the columns with how their nulls come."""

    # -- facts ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def schema(self) -> Unischema:
        """The fields of the chosen columns, in order."""
        if self._schema is None:
            whole = self._source.facts.unischema
            some = [whole.fields[name] for name in self._names]
            self._schema = whole if list(whole.fields) == list(self._names) else whole.create_schema_view(some)
        return self._schema

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the chosen columns, in order."""
        return self._names

    @property
    def chunks(self) -> list[tuple[str, int, int]]:
        """File, row group and selected rows of every chunk, in natural order."""
        facts = self._source.facts
        files = (facts.files[file] for file in facts.chunk_file.tolist())
        return list(zip(files, facts.chunk_part.tolist(), self._selection.counts.tolist(), strict=True))

    @property
    def files(self) -> tuple[str, ...]:
        """Relative paths of the files, in order."""
        return self._source.facts.files

    @property
    def num_bytes(self) -> int:
        """Bytes of all files on disk."""
        return int(self._source.facts.file_bytes.sum())

    @property
    def fingerprint(self) -> str:
        """Digest of relative paths, sizes and rows of row groups; the same for a copy elsewhere."""
        return self._source.facts.fingerprint

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Files and row groups left out under on_error="skip", each with the reason."""
        return [*self._source.facts.skipped, *self._selection.skipped]

    @property
    def source(self) -> Source:
        """Where the rows come from: the facts about files and chunks, and a way to read one (`penstock.source`)."""
        return self._source

    @property
    def selection(self) -> Selection:
        """Which rows of each chunk of `source` are selected."""
        return self._selection

    @property
    def filters_late(self) -> bool:
        """Whether `where(..., exact=False)` leaves rows out on delivery, so that `len` counts too many."""
        return self._late is not None

    def __repr__(self) -> str:
        return dataset_text(self)

    def _repr_html_(self) -> str:
        return dataset_html(self)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> dict[str, Any]:
        """Return one row as a dict (an int) or rows as a batch (a slice, indices); reads the row groups concerned."""
        if isinstance(index, slice):
            return self.take(range(*index.indices(len(self))))
        if np.ndim(index):
            return self.take(index)
        if isinstance(index, str):
            raise TypeError(f"ds[...] takes numbers of rows; ds.select([{index!r}]) chooses columns")
        if isinstance(index, bool | np.bool_):
            raise TypeError(f"ds[...] takes numbers of rows; got {index}")
        batch = self.take([operator.index(index)])
        return {name: only_value(values) for name, values in batch.items()}

    def take(self, indices: Iterable[int]) -> Batch:
        """Return these rows as one batch, in the order given; reads each row group concerned once.

        Negative indices count from the end; a row may be asked for twice.
        """
        if self._late is not None:
            raise PlanError("rows filtered with exact=False have no numbers; use where(...) without it, or a loader")
        from penstock.engine.random_access import row_numbers, take_rows

        total = len(self)
        wanted = row_numbers(indices)
        outside = (wanted < -total) | (wanted >= total)
        if outside.any():
            raise IndexError(f"row {wanted[outside][0]} is outside of a dataset of {total} rows")
        wanted = wanted.astype(np.int64)
        wanted = np.where(wanted < 0, wanted + total, wanted)
        chunk = np.searchsorted(self._ends, wanted, "right")
        return take_rows(self.builder(), chunk, wanted - (self._ends - self._selection.counts)[chunk])

    def head(self, n: int = 5) -> Batch:
        """Return the first `n` rows as one batch."""
        return self.take(range(min(n, len(self))))

    def builder(self) -> Builder:
        """Return what reads and decodes these columns without a plan."""
        return Builder(
            source=self._source,
            selection=self._selection,
            columns=self._columns_read(),
            stages=(Decode(self._columns_read(), skip=False),),
            pool=BlockPool(keep=0),
            stats=Stats(),
            limit_bytes=MEMORY_BYTES,
        )
