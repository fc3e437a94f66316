"""Damaged offset indexes and page headers give errors that name the file, or the right rows; never a crash."""

from pathlib import Path

import pytest

from tests.depth import depth
from tests.fuzz.harness import run_cases
from tests.fuzz.page_ranges import cases


@pytest.mark.parametrize("headers", [False, True], ids=["offset indexes", "page headers"])
def test_damage_is_noticed_or_harmless(tmp_path: Path, headers: bool) -> None:
    made = cases(tmp_path, depth(60, 20_000), seed=5, headers=headers)
    troubles = run_cases("tests.fuzz.page_ranges:check", made, tmp_path, most_bytes=256 << 20)
    assert not troubles, "\n".join(str(one) for one in troubles[:5])
