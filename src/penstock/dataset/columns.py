"""Turn what the user calls columns into names of columns, in the user's order.

Used wherever columns are chosen: at opening, by `select`, by the loader. Takes names and gives names; reads nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from penstock.errors import ColumnNotFound, close_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def pick_columns(names: Sequence[str], columns: str | Iterable[Any] | None) -> list[str]:
    """Return the names that `columns` asks for, each once, in the user's order; None gives all.

    An item is a name, a field with a `.name`, the path of a struct (all its leaves), or a regular expression that
    matches whole names (in the dataset's order). A name that exists is never read as an expression. One text is one
    item. An empty list gives an empty list.

    Raises:
        ColumnNotFound: an item fits no column; lists near names.
    """
    if columns is None:
        return list(names)
    items = [columns] if isinstance(columns, str) or hasattr(columns, "numpy_dtype") else list(columns)
    known = set(names)
    picked: dict[str, None] = {}
    for item in items:
        picked.update(dict.fromkeys(_pick(names, known, item)))
    return list(picked)


def _pick(names: Sequence[str], known: set[str], item: Any) -> list[str]:
    name = item if isinstance(item, str) else getattr(item, "name", None)
    if not isinstance(name, str):
        raise ColumnNotFound(f"a column is asked for by name, field or regular expression; got {item!r}")
    if name in known:
        return [name]
    leaves = [other for other in names if other.startswith(f"{name}.")]
    found = leaves or (_matching(names, name) if isinstance(item, str) else [])
    if not found:
        raise ColumnNotFound(f"no column {name!r}, and none that it matches; {close_names(name, names)}")
    return found


def _matching(names: Sequence[str], pattern: str) -> list[str]:
    try:
        expression = re.compile(pattern)
    except re.error:
        return []
    return [name for name in names if expression.fullmatch(name)]
