"""House style that no linter knows: module docstrings, one word per idea, errors that speak, no traces of a machine."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house import ROOT, Module, modules, project_files

TEXT = (".py", ".md", ".toml", ".txt", ".sh", ".cfg", ".yml", ".json", ".svg", "run", "test", "demo", "soak")
HERE = Path(__file__)

# One word per idea (docs/glossary.md); the other words are kept out so that a search finds everything.
FORBIDDEN = {
    r"ventilat\w*": "say read ahead, or submit",
    r"pieces?": "say chunk",
    r"worker_pool_size": "say workers",
}
# Files that must quote other people's words: Petastorm's names as its users typed them.
MAY_QUOTE = re.compile(r"petastorm|glossary")

MACHINE = re.compile(r"(?<![\w.])(/home/\w+|/Users/\w+|/roo[t]/|/wor[k]/|/tmp/\w|[A-Z]:\\\\Users|\.\./share[d])")


def sentences(docstring: str) -> int:
    return len(re.findall(r"[^\s.!?][^.!?]*[.!?:](?:\s|$)", docstring))


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.where)
def test_a_module_says_its_place_and_its_contract(module: Module) -> None:
    docstring = ast.get_docstring(module.tree) or ""
    assert sentences(docstring) >= 2, f"{module.where}: where does data come from, go to, what is not done here?"


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.where)
def test_one_word_per_idea(module: Module) -> None:
    if MAY_QUOTE.search(module.where):
        return
    for pattern, advice in FORBIDDEN.items():
        found = re.search(rf"(?i)\b{pattern}\b|(?<=_){pattern}|{pattern}(?=_)", module.text)
        assert not found, f"{module.where}: {found.group()!r}: {advice}" if found else ""


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.where)
def test_errors_say_something(module: Module) -> None:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            call = node.exc
            name = ast.unparse(call.func)
            silent = not call.args and not call.keywords and name.split(".")[-1].endswith(("Error", "Exception"))
            percent = (
                any(isinstance(a, ast.Constant) and "%s" in str(a.value) for a in call.args) and len(call.args) > 1
            )
            assert not silent, f"{module.where}:{node.lineno}: {name}() without a message"
            assert not percent, f"{module.where}:{node.lineno}: {name} does not fill in %s"


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.where)
def test_lint_exceptions_carry_a_reason(module: Module) -> None:
    for number, line in enumerate(module.text.splitlines(), 1):
        # An unused argument (ARG) explains itself: the signature is another's.
        if "# noqa" in line and not re.search(r"# noqa: ARG\d+$", line):
            assert re.search(r"# noqa: [A-Z]+\d+(, ?[A-Z]+\d+)*\s+\S", line), f"{module.where}:{number}: {line.strip()}"


def test_no_path_of_a_machine_is_in_the_project() -> None:
    found = []
    for path in project_files(*TEXT):
        if path != HERE:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            found += [
                f"{path.relative_to(ROOT)}:{n}: {m.group()}" for n, x in enumerate(lines, 1) if (m := MACHINE.search(x))
            ]
    assert not found


def test_no_address_of_a_package_index_is_in_the_project() -> None:
    index = re.compile(r"--(extra-)?index-url|--find-links|--trusted-host|pypi\.org/simple")
    found = [p for p in project_files(*TEXT) if p != HERE and index.search(p.read_text("utf-8", "replace"))]
    assert not found


def test_sentences_are_counted() -> None:
    assert sentences("Shuffle utils.") == 1
    assert sentences("Order rows for one epoch.\n\nTakes sizes, gives positions. Does no I/O.") == 3
