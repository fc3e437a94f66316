"""Functions do one phase and files hold one subject: limits on lines, with a list of exceptions that only shrinks."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.house import ROOT, project_files

if TYPE_CHECKING:
    from pathlib import Path

MOST_LINES_OF_A_FUNCTION = 60
MOST_LINES_OF_A_FILE = 600

# "file" or "file:function" -> why it is longer. An entry that is no longer needed fails the test: take it out.
EXEMPT: dict[str, str] = {}


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the last."""
    body = node.body
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    code = body[1:] if documented and isinstance(body[0].value.value, str) else body  # type: ignore[attr-defined]
    return (code[-1].end_lineno or 0) - code[0].lineno + 1 if code else 0


def functions(tree: ast.AST) -> list[tuple[str, int]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(node.name, body_lines(node)) for node in ast.walk(tree) if isinstance(node, kinds)]


def sources() -> list[Path]:
    return [p for p in project_files(".py") if "/data/" not in p.as_posix()]


def too_long() -> dict[str, int]:
    """Everything over the limit, by its name in EXEMPT."""
    found: dict[str, int] = {}
    for path in sources():
        text, where = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        if text.count("\n") > MOST_LINES_OF_A_FILE:
            found[where] = text.count("\n")
        found |= {f"{where}:{n}": size for n, size in functions(ast.parse(text)) if size > MOST_LINES_OF_A_FUNCTION}
    return found


def test_no_function_and_no_file_is_too_long() -> None:
    new = {name: lines for name, lines in too_long().items() if name not in EXEMPT}
    assert not new, f"split these (a comment '# 1.' names the missing function): {new}"


def test_the_list_of_exceptions_only_shrinks() -> None:
    assert not set(EXEMPT) - set(too_long()), "these are short enough now; take them off the list"
