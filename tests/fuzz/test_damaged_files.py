"""Damaged Parquet files: right rows or an error that names the file; no crash, hang, raw error or growth."""

from tests.depth import depth
from tests.fuzz.damaged_files import BUDGET, footer_cases, page_cases
from tests.fuzz.harness import run_cases

MOST_BYTES = int(1.2 * BUDGET)


def troubles(function, cases, folder):
    return [str(one) for one in run_cases(f"tests.fuzz.damaged_files:{function}", cases, folder, most_bytes=MOST_BYTES)]


def test_damaged_footers(tmp_path):
    # In full, more than 2,000 of them with one bit flipped.
    assert troubles("check_footer", footer_cases(depth(16, 4800), seed=1), tmp_path) == []


def test_damaged_pages(tmp_path):
    assert troubles("check_pages", page_cases(depth(30, 3000), seed=2), tmp_path) == []
