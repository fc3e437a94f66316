"""List the modules of the package whose functions run between `penstock.open` and the first batch of a scalar table.

`python tests/reading_path.py` prints them in the order of their first call, with their lines and the lines of the
functions that ran: the size of what a newcomer has to read. Codecs and errors are not counted. `test_reading_path.py`
compares docs/development.md with it.
"""

from __future__ import annotations

import ast
import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

import penstock

PACKAGE = Path(penstock.__file__).parent
NOT_COUNTED = ("codecs/", "errors.py", "__init__.py")


def run() -> dict[str, set[int]]:
    """Return the modules in the order of their first call, with the first lines of the functions that ran."""
    seen: dict[str, set[int]] = {}

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(f"{PACKAGE}"):
            where = Path(code.co_filename).relative_to(PACKAGE).as_posix()
            if not where.startswith(NOT_COUNTED):
                seen.setdefault(where, set()).add(code.co_firstlineno)

    with tempfile.TemporaryDirectory() as folder:
        penstock.write({"x": np.arange(1000), "y": np.arange(1000) * 0.5}, folder)
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            with penstock.open(folder).loader(batch_size=32, rank=0, world=1) as loader:
                next(iter(loader))
                sys.setprofile(None)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return seen


def lines(where: str, first_lines: set[int]) -> tuple[int, int]:
    """Return the lines of a module, and of its functions that begin at these lines."""
    text = (PACKAGE / where).read_text(encoding="utf-8")
    ran = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            ran += first in first_lines and (node.end_lineno or 0) - first + 1
    return text.count("\n"), ran


if __name__ == "__main__":
    sizes = {where: lines(where, first_lines) for where, first_lines in run().items()}
    if "--json" in sys.argv:
        print(json.dumps(sizes))
    else:
        for where, (total, ran) in sizes.items():
            print(f"{total:5} {ran:5}  {where}")
        print(f"{len(sizes)} modules, {sum(total for total, _ in sizes.values())} lines")
