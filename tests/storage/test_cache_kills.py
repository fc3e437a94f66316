"""Many processes on one cache folder, killed at random: no corrupt entry is served, the limit holds."""

import os
import subprocess
import sys

import pytest

from penstock.storage import cache_files
from penstock.storage.cache_files import UsageCounter
from penstock.storage.disk_cache import DiskCache
from tests.depth import depth
from tests.house import ROOT
from tests.storage.cache_torture import LIMIT, PROCESSES, right


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize("eviction", ["lru", "none"])
def test_random_kills_leave_no_corrupt_entry(tmp_path, eviction):
    folder = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.cache_torture", str(folder), eviction, str(depth(3, 30))],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    kills, most, *others = map(int, done.stdout.split())
    assert kills > PROCESSES  # the last ones are killed at the end
    assert 0 < most <= LIMIT
    assert others == []
    check_what_is_left(folder)


def check_what_is_left(folder):
    """The next process finds whole entries only, collects what the dead were writing, and counts right."""
    cache = DiskCache(folder, LIMIT, eviction="lru")
    ours = folder / cache_files.FOLDER
    found = list(ours.glob("??/*.chunk"))
    for path in found:
        assert cache.load(path.stem) == right(int(path.stem, 16) & 0xFF)
    assert found
    cache.store("f" * 32, cache.load(found[0].stem))
    assert list((ours / "parts").iterdir()) == []
    assert cache.used_bytes <= (UsageCounter(str(ours / "usage")).peek() or 0) <= LIMIT
    cache.clear()
    # A process killed between making the folder and marking it as made leaves a folder that nobody may delete.
    assert not folder.exists() or list(folder.iterdir()) == []
