"""The class of a dataset's rows: named tuples that can be pickled.

Readers and Spark's tasks make their rows here, by the names of a schema. Knows names only, no values.
"""

from __future__ import annotations

import keyword
import re
from collections import namedtuple
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1024)
def row_type(schema_name: str, names: tuple[str, ...]) -> Any:
    """Return the class of rows: a named tuple with these fields, in this order.

    A name that Python allows stays as it is. One that it does not allow gets its odd characters replaced (`s.a` becomes
    `s_a`), and a number at its end where another field has that name. The same class for the same arguments; its rows
    can be pickled, though no module holds the class.
    """
    taken = {name for name in names if _identifier(name) == name}
    found: list[str] = []
    for name in names:
        free = plain = _identifier(name)
        number = 2
        while plain != name and free in taken:
            free, number = f"{plain}_{number}", number + 1
        taken.add(free)
        found.append(free)
    made = namedtuple(f"{schema_name}_view", found)  # type: ignore[misc]
    setattr(made, "__reduce__", lambda row: (row_of, (schema_name, names, tuple(row))))  # noqa: B010 - no such method
    return made


def row_of(schema_name: str, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """Return one row: what a pickled row says is to be called."""
    return row_type(schema_name, names)._make(values)


def _identifier(name: str) -> str:
    plain = re.sub(r"\W", "_", name)
    if not plain or plain[0] == "_" or plain[0].isdigit():
        plain = f"f{plain}"
    return f"{plain}_" if keyword.iskeyword(plain) else plain
