"""Parts of the package use each other's public names only, write to no object but their own, and share no class names.

A folder's private names are its own. An attribute that begins with an underscore is written by the object that has it:
`self._x = ...` and nothing else, in any folder. There is no list of exceptions.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.house import PACKAGE, Module, modules

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMEDTUPLE = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
"""Public methods of named tuples, in spite of their names."""

TWINS = {
    "Batches": "the datasets of torch and TensorFlow",
    "Loader": "the loaders of NumPy, torch, TensorFlow and JAX",
}
"""Class names that stand twice on purpose."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMEDTUPLE


def is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def names_made(module: Module) -> Iterator[str]:
    """Yield every name that a module defines: classes, functions, attributes of self, fields, slots and constants."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            yield from names
            if "__slots__" in names:
                values = (one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant))
                yield from (value for value in values if isinstance(value, str))


@cache
def homes() -> dict[str, set[str]]:
    """Return the top-level folders that define each name."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in modules():
        for name in names_made(module):
            found[name].add(module.stage)
    return found


def names_used(module: Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of every attribute of another object, also by `getattr`, and of every import."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and not is_own(node.value):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            name = node.args[1] if len(node.args) > 1 else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and not is_own(node.args[0]):
                yield node.lineno, name.value
        elif isinstance(node, ast.ImportFrom):
            path = (node.module or "").split(".")
            if path[0] == "penstock" and path[1:2] != [module.stage]:
                yield from ((node.lineno, alias.name) for alias in node.names)


def breaches(module: Module) -> list[str]:
    """Return where a module uses a private name that only other folders define."""
    return [
        f"{module.where}:{line} uses {name} of {', '.join(sorted(homes()[name]))}"
        for line, name in names_used(module)
        if is_private(name) and name in homes() and module.stage not in homes()[name]
    ]


def namespace_of(node: ast.expr) -> ast.expr | None:
    """Return x of `x.__dict__` and `vars(x)`; None for anything else."""
    if isinstance(node, ast.Attribute) and node.attr == "__dict__":
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "vars" and node.args:
        return node.args[0]
    return None


def written(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the objects into whose private attributes this node writes or deletes.

    Private names that no module defines belong to other libraries.
    """
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        if is_private(node.attr) and node.attr in homes():
            yield node.value
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        owner = namespace_of(node.value)
        if owner is not None:
            yield owner
    elif isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in ("setattr", "delattr", "__setattr__", "__delattr__") and len(node.args) > 1:
            target = node.args[1]
            if not isinstance(target, ast.Constant) or (is_private(target.value) and target.value in homes()):
                yield node.args[0]
        elif name in ("update", "setdefault", "pop", "clear") and isinstance(node.func, ast.Attribute):
            owner = namespace_of(node.func.value)
            if owner is not None:
                yield owner


def foreign_writes(module: Module) -> list[str]:
    """Return where a module writes into a private attribute of another object than self."""
    return [
        f"{module.where}:{getattr(node, 'lineno', 0)} writes to {ast.unparse(owner)}"
        for node in ast.walk(module.tree)
        for owner in written(node)
        if not is_own(owner)
    ]


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.where)
def test_a_folder_uses_no_private_name_of_another(module: Module) -> None:
    assert breaches(module) == []


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.where)
def test_a_private_attribute_is_written_by_its_own_object(module: Module) -> None:
    assert foreign_writes(module) == []


def test_a_class_name_stands_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module.where)
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in TWINS} == {}
    assert set(twice) == set(TWINS), "TWINS lists a name that stands once"


@pytest.mark.parametrize(
    "code",
    [
        "loader._progress",
        "loader._progress = 1",
        "getattr(loader, '_progress')",
        "from penstock.engine.run import _progress",
    ],
)
def test_the_law_sees_a_private_name_of_another_folder(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(homes(), "_progress", {"engine"})
    assert breaches(Module(PACKAGE / "jax" / "bad.py", ast.parse(code), code))
    assert not breaches(Module(PACKAGE / "engine" / "good.py", ast.parse(code), code))


@pytest.mark.parametrize(
    "code",
    [
        "other._x = 1",
        "other._x += 1",
        "del other._x",
        "a.b._x, y = 1, 2",
        "setattr(other, '_x', 1)",
        "setattr(other, name, 1)",
        "object.__setattr__(other, '_x', 1)",
        "other.__dict__['_x'] = 1",
        "vars(other)['_x'] = 1",
        "other.__dict__.update(state)",
        "vars(other).update(state)",
    ],
)
def test_the_law_sees_a_write_into_another_object(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(homes(), "_x", {"engine"})
    assert foreign_writes(Module(PACKAGE / "engine" / "bad.py", ast.parse(code), code))


@pytest.mark.parametrize(
    "code",
    [
        "self._x = 1",
        "setattr(self, '_x', 1)",
        "object.__setattr__(self, name, 1)",
        "self.__dict__.update(state)",
        "other.x = 1",
        "setattr(other, 'x', 1)",
        "vars(other)['_x']",
        "y = other._x",
        "theirs._attribute_of_another_library = None",
    ],
)
def test_the_law_lets_an_object_write_to_itself(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(homes(), "_x", {"engine"})
    assert not foreign_writes(Module(PACKAGE / "engine" / "good.py", ast.parse(code), code))
