"""Predicates: row filters as objects that can be combined and pickled.

Users make them; `row_filter` evaluates them over many rows at once. The classes here define what a predicate means for
one row (`do_include`): the plain twin of everything that is faster. They read nothing and know no columns.

Names and arguments are Petastorm's. Null is None, and no predicate fails on it: a set contains it only if it has None.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np

from penstock.dataset.value_keys import KeySet
from penstock.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = [
    "PredicateBase",
    "in_intersection",
    "in_lambda",
    "in_negate",
    "in_pseudorandom_split",
    "in_reduce",
    "in_set",
]

BUCKETS = (1 << 63) - 1
"""Buckets of `in_pseudorandom_split`: Petastorm's sys.maxsize, fixed so that a split is the same on every machine."""


class PredicateBase(ABC):
    """Decides for each row whether it is kept.

    Subclass it with `get_fields` and `do_include`. In a loader or `make_reader`, `do_include` gets one row: a dict of
    decoded values, None for null. In `make_batch_reader` it gets a pandas DataFrame and returns a boolean Series.
    """

    @abstractmethod
    def get_fields(self) -> Iterable[str]:
        """Return the names of the fields that `do_include` uses; only these are read."""

    @abstractmethod
    def do_include(self, values: Any) -> Any:
        """Return whether a row with these values is kept."""


class _OfOneField(PredicateBase):
    _predicate_field: str

    def get_fields(self) -> set[str]:
        """Return the one field."""
        return {self._predicate_field}


class in_set(_OfOneField):  # noqa: N801 -- Petastorm's name
    """Keep rows whose value is one of `inclusion_values`.

    Whole row groups are ruled out by partition values and by minimum and maximum. Values are compared as values: 1 and
    np.int64(1), a date and a datetime64 of any unit are the same; NaN equals nothing.
    """

    def __init__(self, inclusion_values: Iterable[Any], predicate_field: str) -> None:
        self._predicate_field = _name(predicate_field)
        self._inclusion_values = KeySet(_values("in_set", inclusion_values))

    def do_include(self, values: Mapping[str, Any]) -> bool:
        """Return whether the row's value is in the set."""
        return single(values[self._predicate_field], self) in self._inclusion_values

    def __repr__(self) -> str:
        return f"in_set({_few(self._inclusion_values)}, {self._predicate_field!r})"


class in_intersection(_OfOneField):  # noqa: N801 -- Petastorm's name
    """Keep rows whose list or array has at least one element among `inclusion_values`; null has none.

    Arrays of several dimensions are searched element by element; a text is one element. A column of single numbers is a
    ValueError, as in Petastorm: use `in_set`.
    """

    def __init__(self, inclusion_values: Iterable[Any], _predicate_field: str) -> None:
        self._predicate_field = _name(_predicate_field)
        self._inclusion_values = KeySet(_values("in_intersection", inclusion_values))

    def do_include(self, values: Mapping[str, Any]) -> bool:
        """Return whether the row's elements and the values have one in common."""
        return any(element in self._inclusion_values for element in elements(values[self._predicate_field], self))

    def __repr__(self) -> str:
        return f"in_intersection({_few(self._inclusion_values)}, {self._predicate_field!r})"


class in_lambda(PredicateBase):  # noqa: N801 -- Petastorm's name
    """Keep rows for which a function returns true.

    `predicate_func` gets the values of `predicate_fields`, in that order, and `state_arg` last if it is given; in
    `make_batch_reader` it gets pandas Series instead of values and returns a boolean Series.
    """

    def __init__(self, predicate_fields: list[str], predicate_func: Callable[..., Any], state_arg: Any = None) -> None:
        if not isinstance(predicate_fields, list):
            raise ValueError(  # noqa: TRY004 -- what Petastorm raises
                f"in_lambda takes a list of field names; got {predicate_fields!r}: put it into [ ]"
            )
        if not callable(predicate_func):
            raise TypeError(f"in_lambda takes a function of the fields' values; got {predicate_func!r}")
        self._predicate_fields = [_name(field) for field in predicate_fields]
        self._predicate_func = predicate_func
        self._state_arg = state_arg

    def get_fields(self) -> list[str]:
        """Return the fields, in the order in which the function gets them."""
        return list(self._predicate_fields)

    def do_include(self, values: Any) -> Any:
        """Return what the function returns for these values."""
        return self.call([values[field] for field in self._predicate_fields])

    def call(self, values: Sequence[Any]) -> Any:
        """Call the function with the fields' values, in their order."""
        return self._predicate_func(*values) if self._state_arg is None else self._predicate_func(
            *values, self._state_arg
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"in_lambda({self._predicate_fields}, {_function(self._predicate_func)})"


class in_negate(PredicateBase):  # noqa: N801 -- Petastorm's name
    """Keep the rows that another predicate does not keep, including those with nulls."""

    def __init__(self, predicate: PredicateBase) -> None:
        self._predicate = check_predicate(predicate)

    def get_fields(self) -> Iterable[str]:
        """Return the other predicate's fields."""
        return self._predicate.get_fields()

    def do_include(self, values: Any) -> bool:
        """Return the opposite of the other predicate's answer."""
        return not self._predicate.do_include(values)

    def __repr__(self) -> str:
        return f"in_negate({self._predicate!r})"


class in_reduce(PredicateBase):  # noqa: N801 -- Petastorm's name
    """Combine predicates: `reduce_func`, such as `all` or `any`, gets the list of their answers for a row.

    With `all` and `any`, partition values and statistics rule out row groups as each predicate alone would, and with
    `all` users' functions see only rows that the others keep. Any other function is called once for each
    combination of answers that occurs; in `make_batch_reader` it gets a list of boolean Series.
    """

    def __init__(self, predicate_list: Sequence[PredicateBase], reduce_func: Callable[[list[Any]], Any]) -> None:
        if not callable(reduce_func):
            raise TypeError(f"in_reduce takes a function of a list, such as all or any; got {reduce_func!r}")
        self._predicate_list = [check_predicate(predicate) for predicate in predicate_list]
        self._reduce_func = reduce_func

    @property
    def is_all(self) -> bool:
        """Whether every predicate must keep a row."""
        return self._reduce_func is all or self._reduce_func is np.all

    @property
    def is_any(self) -> bool:
        """Whether one predicate is enough to keep a row."""
        return self._reduce_func is any or self._reduce_func is np.any

    def get_fields(self) -> set[str]:
        """Return the fields of all predicates."""
        return {field for predicate in self._predicate_list for field in predicate.get_fields()}

    def do_include(self, values: Any) -> Any:
        """Return what the function returns for the answers."""
        return self._reduce_func([predicate.do_include(values) for predicate in self._predicate_list])

    def __repr__(self) -> str:
        return f"in_reduce({self._predicate_list}, {_function(self._reduce_func)})"


class in_pseudorandom_split(_OfOneField):  # noqa: N801 -- Petastorm's name
    """Keep the rows of one of several random parts, by the MD5 of a field's text: the same on every machine.

    `fraction_list=[0.8, 0.2]` with `subset_index=1` keeps about a fifth of the values. Rows with equal values fall
    into the same part. The split is exactly Petastorm's.
    """

    def __init__(self, fraction_list: Sequence[float], subset_index: int, predicate_field: str) -> None:
        fractions = list(fraction_list)
        if not 0 <= subset_index < len(fractions):
            raise ValueError(f"subset_index must be in [0, {len(fractions)}), one of fraction_list; got {subset_index}")
        if any(not 0 <= fraction <= 1 for fraction in fractions) or sum(fractions) > 1 + 1e-9:
            raise ValueError(f"fraction_list must hold shares of at least 0 that add up to at most 1; got {fractions}")
        self._predicate_field = _name(predicate_field)
        self._fraction_list = fractions
        self._subset_index = subset_index
        self._low = sum(fractions[:subset_index]) * (BUCKETS - 1)
        self._high = sum(fractions[: subset_index + 1]) * (BUCKETS - 1)

    def do_include(self, values: Mapping[str, Any]) -> bool:
        """Return whether the row's value falls into the part."""
        if self._predicate_field not in values:
            raise ValueError(f"the row has no field {self._predicate_field!r} to split by; it has {list(values)}")
        return self.holds(values[self._predicate_field])

    def holds(self, value: Any) -> bool:
        """Return whether a value falls into the part."""
        return self._low <= bucket_of(value) < self._high

    def __repr__(self) -> str:
        return f"in_pseudorandom_split({self._fraction_list}, {self._subset_index}, {self._predicate_field!r})"


def bucket_of(value: Any) -> int:
    """Return the bucket of a value. Must never change: people have trained on these splits."""
    return int.from_bytes(hashlib.md5(str(value).encode(), usedforsecurity=False).digest(), "big") % BUCKETS


def is_predicate(value: Any) -> TypeGuard[PredicateBase]:
    """Tell whether a value is a predicate: any instance that has both methods."""
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("get_fields", "do_include")
    )


def check_predicate(value: Any) -> PredicateBase:
    """Return a predicate unchanged.

    Raises:
        ValueError: it is not a predicate.
    """
    if not is_predicate(value):
        raise ValueError(f"a predicate is wanted (an instance of PredicateBase, as in_set makes one); got {value!r}")
    return value


def single(value: Any, predicate: PredicateBase) -> Any:
    """Return a value unchanged; SchemaError if it is a list or array."""
    if isinstance(value, list | dict | set) or (isinstance(value, np.ndarray) and value.ndim):
        raise SchemaError(f"{predicate!r} needs a field of single values, its rows hold {type(value).__name__}s; "
                          "use in_intersection to look for elements, or in_lambda")  # fmt: skip
    return value


def elements(value: Any, predicate: PredicateBase | None) -> list[Any]:
    """Return the elements of a row's list or array; null has none, and a text is one element."""
    if value is None:
        return []
    if isinstance(value, str | bytes):
        return [value]
    if isinstance(value, np.ndarray) and value.ndim:
        return [None if element is np.ma.masked else element for element in value.ravel()]
    if not hasattr(value, "__iter__") or isinstance(value, np.ndarray | np.generic):
        raise SchemaError(f"{predicate!r} needs a field of lists or arrays, its rows hold single values "
                          f"({type(value).__name__}); use in_set")  # fmt: skip
    return [element for part in value for element in _flat(part)]


def _flat(value: Any) -> list[Any]:
    nested = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim)
    return [inner for part in value for inner in _flat(part)] if nested else [value]


def _name(field: Any) -> str:
    name = field if isinstance(field, str) else getattr(field, "name", None)
    if not isinstance(name, str):
        raise ValueError(f"a predicate names its field by text; got {field!r}")  # noqa: TRY004 -- Petastorm's kind
    return name


def _values(what: str, values: Any) -> Iterable[Any]:
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise ValueError(f"{what} takes a list or set of values; got {values!r}: put it into [ ]")
    return cast("Iterable[Any]", values)


def _few(keys: KeySet) -> str:
    shown = sorted(keys.keys, key=repr)[:5]
    return repr(shown)[:-1] + (f", ... {len(keys.keys)} values]" if len(keys.keys) > 5 else "]")


def _function(function: Any) -> str:
    return getattr(function, "__qualname__", repr(function))
