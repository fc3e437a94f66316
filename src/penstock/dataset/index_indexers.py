"""Row-group indexes: which row groups hold which values, for columns that statistics say too little about.

An indexer is built row group by row group (`index_build`), merged by `+`, stored beside the dataset (`index_store`) and
asked by selectors (`index`). Row groups are known by their ordinals in the whole dataset: files by relative
path, row groups in order, empty ones left out. Names are Petastorm's. Reads nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from penstock.dataset.predicates import elements
from penstock.dataset.value_keys import is_never, key_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

NOT_NULL = "Field is Not Null"
"""The one value that an index of non-null rows has."""


class RowGroupIndexerBase(ABC):
    """Maps values to the ordinals of the row groups that hold them.

    Subclass it for an index of your own: `build_index` is called with the decoded rows of one row group (dicts of
    `column_names`, None for null) and its ordinal, on a copy of the indexer; the copies are merged by `+`. Stored are
    the name, the columns, and `get_row_group_indexes` of all `indexed_values`, which must be numbers, text, bytes,
    dates or decimals.
    """

    @abstractmethod
    def __add__(self, other: Any) -> Any:
        """Return an indexer that knows what both know."""

    @property
    @abstractmethod
    def index_name(self) -> str:
        """Name by which selectors ask for the index."""

    @property
    @abstractmethod
    def column_names(self) -> Iterable[str]:
        """Columns that are read to build it."""

    @property
    @abstractmethod
    def indexed_values(self) -> Sequence[Any]:
        """Values that it knows row groups of."""

    @abstractmethod
    def get_row_group_indexes(self, value_key: Any) -> set[int]:
        """Return the ordinals of the row groups that hold a value; none for a value that is not indexed."""

    @abstractmethod
    def build_index(self, decoded_rows: Sequence[Mapping[str, Any]], row_group_index: int) -> Any:
        """Add the rows of one row group; ValueError where there are none."""


class _FieldIndexer(RowGroupIndexerBase):
    """What the shipped indexers share: a name, one column, and values with their ordinals."""

    def __init__(self, index_name: str, index_field: str) -> None:
        self._index_name = index_name
        self._column_name = index_field if isinstance(index_field, str) else str(getattr(index_field, "name", ""))
        self._groups: dict[Hashable, tuple[Any, set[int]]] = {}

    @property
    def index_name(self) -> str:
        """Name by which selectors ask for the index."""
        return self._index_name

    @property
    def column_names(self) -> list[str]:
        """The one column."""
        return [self._column_name]

    @property
    def indexed_values(self) -> list[Any]:
        """Values that it knows row groups of, in the order in which they came."""
        return [value for value, _ in self._groups.values()]

    def get_row_group_indexes(self, value_key: Any = NOT_NULL) -> set[int]:
        """Return the ordinals of the row groups that hold a value; none for a value that is not indexed."""
        _, groups = self._groups.get(key_of(value_key), (None, set()))
        return set(groups)

    def add(self, value: Any, groups: Iterable[int]) -> None:
        """Note that row groups hold a value; NaN and NaT, which equal nothing, are passed over."""
        key = key_of(value)
        if not is_never(key):
            self._groups.setdefault(key, (_plain(value), set()))[1].update(int(group) for group in groups)

    def __add__(self, other: Any) -> Self:
        """Return an indexer that knows what both know.

        Raises:
            TypeError: The other is of another class.
            ValueError: The other has another name or column.
        """
        if type(other) is not type(self):
            raise TypeError(f"cannot add {type(other).__name__} to {type(self).__name__}: indexes of one kind only")
        mine, theirs = (self.index_name, *self.column_names), (other.index_name, *other.column_names)
        if mine != theirs:
            raise ValueError(f"cannot add the index {theirs[0]!r} of {theirs[1]!r} to {mine[0]!r} of {mine[1]!r}")
        found = type(self)(self._index_name, *self.column_names)
        for one in (self, other):
            for value, groups in one._groups.values():
                found.add(value, groups)
        return found

    def _values(self, decoded_rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        if not decoded_rows:
            raise ValueError(f"cannot build the index {self._index_name!r} from a row group without rows")
        return [row[self._column_name] for row in decoded_rows]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._index_name!r}, {self._column_name!r})"


class SingleFieldIndexer(_FieldIndexer):
    """An index of the values of one column; arrays and lists count element by element, nulls not at all."""

    def build_index(self, decoded_rows: Sequence[Mapping[str, Any]], row_group_index: int) -> dict[Any, set[int]]:
        """Add the rows of one row group; return the row groups of all values so far.

        Raises:
            ValueError: There are no rows.
        """
        for value in self._values(decoded_rows):
            for element in indexed_elements(value):
                self.add(element, [row_group_index])
        return {value: set(groups) for value, groups in self._groups.values()}


class FieldNotNullIndexer(_FieldIndexer):
    """An index of the row groups in which one column has a value that is not null."""

    @property
    def indexed_values(self) -> list[Any]:
        """The one value there is, whether a row group has it or not."""
        return [NOT_NULL]

    def build_index(self, decoded_rows: Sequence[Mapping[str, Any]], row_group_index: int) -> set[int]:
        """Add the rows of one row group; return the row groups so far.

        Raises:
            ValueError: There are no rows.
        """
        if any(value is not None for value in self._values(decoded_rows)):
            self.add(NOT_NULL, [row_group_index])
        return self.get_row_group_indexes()

    def get_row_group_indexes(self, value_key: Any = None) -> set[int]:  # noqa: ARG002 -- there is one value
        """Return the ordinals of the row groups that have a value, whatever is asked for."""
        return super().get_row_group_indexes(NOT_NULL)


class StoredIndexer(_FieldIndexer):
    """An index of a user's own class as it was stored: it can be queried, not built."""

    def __init__(self, index_name: str, index_field: str, *more: str) -> None:
        super().__init__(index_name, index_field)
        self._columns = [self._column_name, *more]

    @property
    def column_names(self) -> list[str]:
        """Columns it was built from."""
        return list(self._columns)

    def build_index(self, decoded_rows: Sequence[Mapping[str, Any]], row_group_index: int) -> Any:
        """Refuse: only the class that made it can build it."""
        raise NotImplementedError(f"the index {self._index_name!r} was stored; its own class can build it, this cannot")


def indexed_elements(value: Any) -> list[Any]:
    """Return the values that a row is indexed under: itself, or its elements, without nulls."""
    if value is None:
        return []
    if not isinstance(value, list | tuple | np.ndarray) or np.ndim(value) == 0:
        return [value]
    return [element for element in elements(value, None) if element is not None]


def _plain(value: Any) -> Any:
    """Return NumPy values as Python's, which print and store as what they are; times stay."""
    if isinstance(value, np.ndarray):
        value = value[()]
    return value.item() if isinstance(value, np.generic) and value.dtype.kind not in "mM" else value
