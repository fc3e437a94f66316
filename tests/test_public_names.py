"""What users may type is listed, sorted, documented, and tested to be exactly that."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import textwrap

import pytest

import penstock
from penstock import errors
from tests.house import modules


def in_order(names: list[str]) -> list[str]:
    """Sort as ruff does: constants, classes, functions."""
    return sorted(names, key=lambda n: (not n.isupper(), not n[:1].isupper(), n))


PUBLIC = ["penstock", "penstock.codecs", "penstock.testing"]


@pytest.mark.parametrize("name", PUBLIC)
def test_names_are_sorted_and_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert list(module.__all__) == in_order(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
    for public in module.__all__:
        value = getattr(module, public)
        if inspect.isclass(value) or callable(value) or inspect.ismodule(value):
            assert inspect.getdoc(value), f"{name}.{public} has no docstring"


def test_the_names_that_the_readme_promises_are_there() -> None:
    promised = {"Dataset", "Loader", "Unischema", "UnischemaField", "codecs", "open", "register_codec", "write"}
    assert promised <= set(dir(penstock))
    assert promised <= set(penstock.__all__)


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.where)
def test_a_list_of_names_is_sorted_wherever_there_is_one(module: object) -> None:
    for node in module.tree.body:  # type: ignore[attr-defined]
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            names = ast.literal_eval(node.value)
            assert list(names) == in_order(names)


def under_fields(value: type) -> set[str]:
    """Fields of a class that have a text under them."""
    body = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0].body  # type: ignore[attr-defined]
    pairs = itertools.pairwise(body)
    return {
        one.target.id
        for one, text in pairs
        if isinstance(one, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def test_every_public_dataclass_field_is_documented() -> None:
    """A field's meaning stands under the field, or in the class docstring by its name."""
    for name in penstock.__all__:
        value = getattr(penstock, name)
        if inspect.isclass(value) and hasattr(value, "__dataclass_fields__"):
            told = under_fields(value)
            for field in value.__dataclass_fields__:
                by_name = re.search(rf"\b{field}\b", inspect.getdoc(value) or "")
                assert field in told or by_name, f"{name}.{field}"


def error_tree() -> list[tuple[int, str]]:
    """Depth and name of every line of the tree drawn at the top of errors.py."""
    text = (errors.__doc__ or "").split("\n\n")[-1]
    lines = [re.match(r"( *)(\w+)", line) for line in text.splitlines()]
    return [(len(m[1]) // 2, m[2]) for m in lines if m]


def test_the_tree_in_errors_equals_the_classes() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for depth, name in error_tree():
        path[depth:] = [name]
        drawn[name] = path[depth - 1] if depth else "Exception"
    real = {
        c.__name__: next(b.__name__ for b in c.__mro__[1:] if b is Exception or issubclass(b, errors.PenstockError))
        for c in vars(errors).values()
        if inspect.isclass(c) and issubclass(c, errors.PenstockError)
    }
    assert drawn == real


def test_errors_also_inherit_the_builtin_that_the_tree_names() -> None:
    builtin = dict(re.findall(r"^ *(\w+) \((\w+)\)", errors.__doc__ or "", flags=re.M))
    for name, base in builtin.items():
        assert issubclass(getattr(errors, name), getattr(__import__("builtins"), base)), name


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        assert penstock.__version__ == version("penstock")
    except PackageNotFoundError:
        pytest.skip("penstock is not installed here, only on the path")
