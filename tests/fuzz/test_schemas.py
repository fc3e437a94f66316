"""Damaged schemas that are stored with a dataset, as JSON and as Petastorm's pickle, and damaged pickled indexes."""

from __future__ import annotations

from penstock.schema.petastorm_dump import dump_unischema
from tests.depth import depth
from tests.fuzz.harness import Case, mutations, run_cases
from tests.fuzz.schemas import SCHEMA, TEXT
from tests.schema.petastorm_bytes import index_bytes

GOOD = {"json": TEXT, "pickle": dump_unischema(SCHEMA), "index": index_bytes(4)}
MOST_BYTES = 256 << 20
"""A pickle of a million steps."""


def test_damaged_schemas(tmp_path):
    cases = [
        Case(f"{kind}: {case.name}", (kind, case.data))
        for kind, good in GOOD.items()
        for case in mutations(good, depth(60, 1500), seed=7)
    ]
    warm = [Case(kind, (kind, good)) for kind, good in GOOD.items()]
    found = run_cases("tests.fuzz.schemas:check", cases, tmp_path, most_bytes=MOST_BYTES, warm=warm)
    assert [str(one) for one in found] == []
