"""Say where rows lie that cannot be delivered: locations for errors, and the list of skipped rows.

Used by `build` and `take` once something has failed; nothing here runs for good data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from penstock.engine.gather import Chunk, LostChunk
from penstock.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.engine.gather_values import CellLost
    from penstock.source import Location, Selection, Source


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that was left out under on_error="skip"."""

    path: str
    """File it lies in."""
    row_group: int
    """Number of its chunk within that file: of Parquet, the row group, also where that is read in parts."""
    row: int
    """Row of that chunk or row group."""
    column: str
    """Column that could not be read or decoded."""
    reason: str
    """What was wrong."""
    part_name: str
    """The chunk in words, such as "row group 3"."""


@dataclass(frozen=True, slots=True)
class Locator:
    """Locates rows of a source. Rows are given by their number among the selected rows of their chunk."""

    source: Source
    selection: Selection

    def locate(self, chunk: int, row: int) -> Location:
        """Return where a row lies."""
        rows = self.selection.rows_of(chunk)
        return self.source.locate(chunk, row if rows is None else int(rows[row]))

    def decode_error(self, chunk: int, row: int, error: CellLost) -> DecodeError:
        """Return the error for a cell that cannot be decoded."""
        place = self.locate(chunk, row)
        return DecodeError(
            f"cannot decode column {error.column!r} in {place}: {error.reason}; "
            'load with on_error="skip" to leave such rows out',
            path=place.path, row_group=place.part, row=place.row, column=error.column,
        )  # fmt: skip

    def skipped(self, chunk: int, row: int, column: str, reason: str) -> Skipped:
        """Return the entry of a row in the list of skipped rows."""
        place = self.locate(chunk, row)
        return Skipped(place.path, place.part, cast("int", place.row), column, reason, place.part_name)

    def skipped_in(self, chunk: Chunk | LostChunk, row: int) -> Skipped:
        """Return the entry of a row that is lost with its chunk, or that is damaged in it."""
        if isinstance(chunk, LostChunk):
            return self.skipped(chunk.index, row, getattr(chunk.error, "column", None) or "", str(chunk.error))
        return self.skipped(chunk.index, row, *chunk.damaged[row])

    def describe(self, rows: Iterable[tuple[int, int]]) -> str:
        """Name rows, given by chunk and row, for an error: the first few chunks and rows."""
        places: dict[str, list[int]] = {}
        for chunk, row in rows:
            place = self.locate(chunk, row)
            places.setdefault(f"{place.path}, {place.part_name}", []).append(cast("int", place.row))
        named = []
        for name, found in list(places.items())[:3]:
            found.sort()
            listed = f"row{'s' * (len(found) > 1)} {', '.join(map(str, found[:5]))}{', ...' if len(found) > 5 else ''}"
            if found == list(range(found[0], found[-1] + 1)) and len(found) > 1:
                listed = f"rows {found[0]} to {found[-1]}"
            named.append(f"{name}, {listed}")
        more = f"; and {len(places) - 3} more {self.source.facts.part_noun}s" if len(places) > 3 else ""
        return "; ".join(named) + more
