"""Damaged cells of every codec: a right value or an error that names the place; no crash, hang or raw error.

Memory must not grow beyond the budget and a fifth.
"""

from __future__ import annotations

import io
import zipfile

import numpy as np

from tests.depth import depth
from tests.fuzz.cells import BUDGET, FIELDS, good_cell, progressive_jpeg
from tests.fuzz.harness import Case, mutations, run_cases

CHECK = "tests.fuzz.cells:check"


WARM = [Case(kind, (kind, good_cell(kind))) for kind in FIELDS]


def troubles(cases, folder):
    found = run_cases(CHECK, cases, folder, most_bytes=int(1.2 * BUDGET), warm=WARM)
    return [str(one) for one in found]


def damaged(kind, good, count):
    return [Case(f"{kind}: {case.name}", (kind, case.data)) for case in mutations(good, count, seed=len(kind))]


def test_damaged_cells(tmp_path):
    cases = [case for kind in FIELDS for case in damaged(kind, good_cell(kind), depth(25, 600))]
    assert troubles(cases + damaged("jpeg free", progressive_jpeg(), depth(25, 600)), tmp_path) == []


def npz_of(array, method=zipfile.ZIP_DEFLATED):
    file, npy = io.BytesIO(), io.BytesIO()
    np.save(npy, array)
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("arr.npy", npy.getvalue())
    return file.getvalue()


def test_bombs_of_every_zip(tmp_path):
    large = np.zeros((24 << 20, 5), np.uint8)
    methods = {"stored": 0, "deflated": 8, "bzip2": 12, "lzma": 14}
    cells = {name: npz_of(large if method else large[: 1 << 17], method) for name, method in methods.items()}
    cases = [Case(f"{kind}: {name}", (kind, cell)) for kind in ("npz", "npz free") for name, cell in cells.items()]
    assert troubles(cases, tmp_path) == []
