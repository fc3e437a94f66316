"""Names that Petastorm has and this version does not have yet: they can be imported, and say what they wait for.

Makes classes and functions that raise on use, so that a program that only imports a name runs. Holds no such name
itself; the modules that mirror Petastorm's do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable


def later_class(module: str, name: str, *, extra: str, instead: str) -> Any:
    """Return a class that raises when it is made; `isinstance` and subclassing work."""

    def __init__(self: object, *args: object, **keywords: object) -> None:  # noqa: ARG001, N807 - becomes a method
        _raise(module, name, extra, instead)

    doc = f"Not in this version of Penstock; {instead}."
    return type(name, (), {"__init__": __init__, "__module__": module, "__doc__": doc})


def later_function(module: str, name: str, *, extra: str, instead: str) -> Callable[..., Any]:
    """Return a function that raises when it is called."""

    def function(*args: object, **keywords: object) -> NoReturn:  # noqa: ARG001 - takes what Petastorm's takes
        _raise(module, name, extra, instead)

    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    function.__doc__ = f"Not in this version of Penstock; {instead}."
    return function


def _raise(module: str, name: str, extra: str, instead: str) -> NoReturn:
    raise NotImplementedError(
        f"{module}.{name} is not in this version of Penstock yet (it comes with the extra penstock[{extra}]); {instead}"
    )
