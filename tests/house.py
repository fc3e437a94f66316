"""What the tests of the house rules share: the files of the repository and the modules of the package.

Reads files and syntax trees only; never imports what it looks at. Holds no tests itself.
"""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "penstock"
UNTRACKED = {"__pycache__", "build", "dist", "demo-output", "node_modules"}


@dataclass(frozen=True, slots=True)
class Module:
    """One source file of the package."""

    path: Path
    tree: ast.Module
    text: str

    @property
    def where(self) -> str:
        """Path below src/penstock, with slashes."""
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def stage(self) -> str:
        """First part of the path: the folder, or the name of a file at the top."""
        return self.where.split("/")[0].removesuffix(".py")


@cache
def modules() -> list[Module]:
    """All modules of the package, by path."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    return [Module(path, ast.parse(text), text) for path, text in texts.items()]


def project_files(*suffixes: str) -> list[Path]:
    """Files of the project with one of the suffixes (all without any): what a commit would hold, git or not."""
    found: list[Path] = []
    for folder, names, files in os.walk(ROOT):
        names[:] = [n for n in names if n not in UNTRACKED and (not n.startswith(".") or n == ".ci")]
        found += [Path(folder, f) for f in files if not suffixes or f.endswith(suffixes)]
    return sorted(found)
