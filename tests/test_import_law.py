"""Imports point down the flow only: the map of the stages, checked on syntax trees."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

import pytest

from tests.house import Module, modules

if TYPE_CHECKING:
    from collections.abc import Iterator

# A stage may import stages of earlier lines, and itself. Names on one line do not see each other, but for `options`
# and `progress`, which may see `errors`.
MAP = [
    {"errors", "halt"},
    {"options", "progress", "nulls", "plugins"},
    {"keywords"},
    {"alias"},
    {"aliases"},
    {"storage"},
    {"codecs"},
    {"schema"},
    {"source"},
    {"openers"},
    {"dataset"},
    {"predicates"},
    {"plan"},
    {"engine"},
    {"display"},
    {"rows"},
    {"api"},
    {"factories"},
    {"torch", "tensorflow", "jax"},
    {"write"},
    {"spark"},
    {"jobs"},
    {"doctor"},
    {"tar"},
    {"bench"},
    {"cli"},
    {"petastorm"},
    {"testing"},
]
LINE = {stage: line for line, stages in enumerate(MAP) for stage in stages}

# (module, import) -> why it may. Only for names that annotations need and that are never imported at run time.
TYPES_ONLY = {
    ("display.py", "penstock.rows"): "the dataset that it draws",
    ("keywords.py", "penstock.schema.transform"): "what transform= takes",
}

# Planning is pure: arrays in, arrays out. No files, clocks, threads or processes.
PLAN_MAY_IMPORT = {"numpy", "penstock"}
PLAN_MUST_NOT = {"asyncio", "concurrent", "io", "multiprocessing", "os", "pathlib", "random", "shutil", "socket"}
PLAN_MUST_NOT |= {"subprocess", "tempfile", "threading", "time"}

FRAMEWORKS = {"torch", "tensorflow", "jax", "pyspark", "ray"}


def imported(module: Module) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of everything a module imports, late imports and those for type checking included."""
    package = ["penstock", *module.where.split("/")[:-1]]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            # `from penstock import api` imports a stage by name
            yield from ((node.lineno, f"{stem}.{a.name}" if stem == "penstock" else stem) for a in node.names)


def stage_of(dotted: str) -> str | None:
    parts = dotted.split(".")
    return parts[1] if parts[0] == "penstock" and len(parts) > 1 else None


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.where)
def test_a_module_imports_only_from_the_lines_above(module: Module) -> None:
    # The package's own __init__ is the public face; a __main__ is a program, which nothing imports.
    if module.where == "__init__.py" or module.where.endswith("/__main__.py"):
        return
    assert module.stage in LINE, f"{module.where}: give the stage {module.stage!r} its line in MAP"
    for line, name in imported(module):
        stage = stage_of(name)
        # A name of the package that is no stage (`from penstock import Unischema`) goes through the public face.
        target = LINE.get(stage, LINE["api"]) if stage else -1
        if name == "penstock":
            target = LINE["api"]
        if stage != module.stage and (module.where, name) not in TYPES_ONLY:
            assert target < LINE[module.stage], f"{module.where}:{line} imports {name}, which is not above it"


@pytest.mark.parametrize("module", [m for m in modules() if m.stage == "plan"], ids=lambda m: m.where)
def test_the_plan_is_pure(module: Module) -> None:
    for line, name in imported(module):
        top = name.split(".")[0]
        allowed = top in PLAN_MAY_IMPORT or (top in sys.stdlib_module_names and top not in PLAN_MUST_NOT)
        assert allowed, f"{module.where}:{line} imports {name}; plan/ knows NumPy and values only"
        assert stage_of(name) in {None, "errors", "plan"}, f"{module.where}:{line} imports {name}"


@pytest.mark.parametrize("module", [m for m in modules() if m.stage == "codecs"], ids=lambda m: m.where)
def test_codecs_never_see_the_schema(module: Module) -> None:
    for line, name in imported(module):
        assert stage_of(name) != "schema", f"{module.where}:{line}: a codec sees a field's attributes, not its class"


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.where)
def test_a_framework_is_imported_only_where_it_is_handed_over(module: Module) -> None:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and node in module.tree.body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            heavy = {n.split(".")[0] for n in names} & FRAMEWORKS
            allowed = module.stage in {"torch", "tensorflow", "jax", "spark", "petastorm"}
            assert allowed or not heavy, f"{module.where}:{node.lineno} imports {heavy} at import time"


def test_the_law_sees_a_breach(tmp_path: object) -> None:
    from tests.house import PACKAGE

    bad = Module(PACKAGE / "plan" / "bad.py", ast.parse("from ..engine import loop\nimport penstock.api"), "")
    assert [stage_of(name) for _, name in imported(bad)] == ["engine", "api"]
