"""The cache on disk: limits, eviction, damage, foreign files, disks that refuse."""

import errno
import os
import pickle
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import PenstockWarning
from penstock.storage import cache_files, disk_cache
from penstock.storage.cache_files import HEADER_BYTES, UsageCounter, cost_of, entry_path
from penstock.storage.disk_cache import DiskCache

ENTRY = 8192  # what an entry of these tests takes on disk


def key(number: int) -> str:
    return f"{number:02x}{number:030x}"


def data(number: int, size: int = 5000) -> pa.Buffer:
    return pa.py_buffer(bytes([number % 256]) * size)


def entry(cache: DiskCache, number: int) -> Path:
    return Path(entry_path(str(Path(cache.path) / cache_files.FOLDER), key(number)))


def kept(cache: DiskCache, numbers) -> list[int]:
    return [number for number in numbers if entry(cache, number).exists()]


def fill(cache: DiskCache, numbers) -> None:
    for number in numbers:
        assert cache.fetch([key(number)], lambda _, n=number: [data(n)]) == [data(number)]


def age(cache: DiskCache, number: int, seconds: float) -> None:
    """Make an entry look as if it was used so long ago."""
    past = time.time() - seconds
    os.utime(entry(cache, number), (past, past))


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


class TestFolder:
    def test_another_object_finds_what_one_stored(self, tmp_path):
        fill(DiskCache(tmp_path / "a", 10**6), range(3))
        again = DiskCache(tmp_path / "a", 10**6)
        fill(again, range(3))
        assert again.stats["hits"] == 3

    def test_nothing_is_made_before_the_first_store(self, tmp_path):
        cache = DiskCache(tmp_path / "a" / "b", 10**6)
        assert cache.load(key(1)) is None
        assert cache.used_bytes == 0
        cache.drop(key(1))
        cache.clear_own()
        cache.clear()
        assert list(tmp_path.iterdir()) == []

    def test_the_folder_is_marked_as_a_cache(self, tmp_path):
        fill(DiskCache(tmp_path, 10**6), [1])
        tag = (tmp_path / cache_files.FOLDER / "CACHEDIR.TAG").read_text()
        assert tag.startswith("Signature: 8a477f597d28d172789f06886806bc55\n")

    def test_a_file_is_no_folder(self, tmp_path):
        (tmp_path / "file").write_text("x")
        with pytest.raises(NotADirectoryError, match="is a file"):
            DiskCache(tmp_path / "file", 10)

    def test_the_default_is_the_users_cache_folder_and_a_share_of_the_disk(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        cache = DiskCache()
        assert cache.path == str(tmp_path / "penstock")
        free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
        assert cache.size_limit == pytest.approx(0.2 * free, rel=0.05)
        fill(cache, [1])
        assert entry(cache, 1).exists()
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        assert disk_cache.user_cache_folder() == os.path.expanduser("~/.cache/penstock")
        monkeypatch.setattr(sys, "platform", "darwin")
        assert disk_cache.user_cache_folder() == os.path.expanduser("~/Library/Caches/penstock")

    def test_it_travels_by_its_settings(self, tmp_path):
        fill(DiskCache(tmp_path, 10**6, eviction="lru"), [1])
        other = pickle.loads(pickle.dumps(DiskCache(tmp_path, 10**6, eviction="lru")))
        assert (other.path, other.size_limit, other.eviction) == (str(tmp_path), 10**6, "lru")
        assert other.load(key(1)) == data(1)
        assert repr(other) == f"DiskCache({str(tmp_path)!r}, size_limit=1000000, eviction='lru')"


class TestLimit:
    def test_small_entries_count_as_whole_blocks(self, tmp_path):
        cache = DiskCache(tmp_path, 10 * 4096)
        for number in range(20):
            cache.store(key(number), data(number, 10))
        assert len(kept(cache, range(20))) == 10
        assert cache.used_bytes == 10 * 4096

    @pytest.mark.parametrize("eviction", ["idle", "none"])
    def test_a_cache_smaller_than_the_data_does_not_thrash(self, tmp_path, eviction):
        cache = DiskCache(tmp_path, 4 * ENTRY, eviction=eviction)
        for _ in range(5):
            fill(cache, range(10))
        assert cache.stats["hits"] == 4 * 4
        assert cache.stats["stored"] == 4
        assert cache.stats.get("evicted", 0) == 0
        assert kept(cache, range(10)) == [0, 1, 2, 3]

    def test_lru_drops_what_was_used_longest_ago(self, tmp_path):
        cache = DiskCache(tmp_path, 4 * ENTRY, eviction="lru")
        fill(cache, range(4))
        for number, seconds in enumerate((40, 30, 20, 10)):
            age(cache, number, seconds)
        fill(cache, [0])  # used again
        fill(cache, [4, 5])
        assert kept(cache, range(6)) == [0, 3, 4, 5]
        assert cache.used_bytes <= cache.size_limit

    def test_lru_goes_on_when_its_list_of_victims_has_run_out(self, tmp_path):
        cache = DiskCache(tmp_path, 3 * ENTRY, eviction="lru")
        fill(cache, range(40))
        assert len(kept(cache, range(40))) == 3
        assert cache.stats["evicted"] == 37

    def test_idle_drops_what_an_earlier_run_left_and_nothing_of_its_own(self, tmp_path):
        old = DiskCache(tmp_path, 4 * ENTRY)
        fill(old, range(4))
        for number in range(4):
            age(old, number, 100 - number)
        cache = DiskCache(tmp_path, 4 * ENTRY)
        fill(cache, [0])  # of the earlier run, but used by this one
        fill(cache, range(10, 20))
        assert kept(cache, range(20)) == [0, 10, 11, 12]

    def test_none_keeps_even_what_is_old(self, tmp_path):
        cache = DiskCache(tmp_path, 2 * ENTRY, eviction="none")
        fill(cache, range(2))
        age(cache, 0, 10**6)
        fill(DiskCache(tmp_path, 2 * ENTRY, eviction="none"), range(2, 5))
        assert kept(cache, range(5)) == [0, 1]

    def test_smaller_entries_still_fit_where_a_large_one_did_not(self, tmp_path):
        cache = DiskCache(tmp_path, 3 * ENTRY, eviction="none")
        fill(cache, range(2))
        cache.store(key(2), data(2, 4 * 5000))
        cache.store(key(3), data(3))
        assert kept(cache, range(4)) == [0, 1, 3]

    def test_a_lost_total_is_counted_again(self, tmp_path):
        fill(DiskCache(tmp_path, 10**6), range(3))
        usage = tmp_path / cache_files.FOLDER / "usage"
        for wrong in (b"", b"nonsense" * 3):
            usage.write_bytes(wrong)
            cache = DiskCache(tmp_path, 4 * ENTRY, eviction="none")
            fill(cache, range(3, 9))
            assert len(kept(cache, range(9))) == 4
            assert UsageCounter(str(usage)).peek() == 4 * ENTRY
            for number in (3, 4, 5, 6, 7, 8):
                cache.drop(key(number))

    def test_a_full_cache_notices_that_files_were_deleted(self, tmp_path, monkeypatch):
        cache = DiskCache(tmp_path, 2 * ENTRY, eviction="none")
        fill(cache, range(4))
        entry(cache, 0).unlink()
        monkeypatch.setattr(disk_cache, "_COUNT_AGAIN_S", 0.0)
        monkeypatch.setattr(cache, "_refused", (0, 0.0))
        fill(cache, [5])
        assert kept(cache, range(6)) == [1, 5]

    def test_a_lock_that_another_holds_delays_nobody_for_long(self, tmp_path, monkeypatch):
        monkeypatch.setattr(disk_cache, "_LOCK_S", 0.1)
        cache = DiskCache(tmp_path, 10**6)
        fill(cache, [0])
        with UsageCounter(str(tmp_path / cache_files.FOLDER / "usage")).hold(1) as account:
            assert account is not None
            began = time.monotonic()
            fill(cache, [1, 0])
            assert time.monotonic() - began < 20
        assert kept(cache, [0, 1]) == [0]
        fill(cache, [1])
        assert kept(cache, [0, 1]) == [0, 1]


class TestDamage:
    @pytest.mark.parametrize("where", [0, 9, 20, 33, 38, HEADER_BYTES, HEADER_BYTES + 4999])
    def test_a_flipped_bit_is_never_served(self, tmp_path, where):
        cache = DiskCache(tmp_path, 10**6)
        fill(cache, [1])
        path = entry(cache, 1)
        damaged = bytearray(path.read_bytes())
        damaged[where] ^= 1
        path.write_bytes(damaged)
        assert cache.load(key(1)) is None
        assert not path.exists()
        fill(cache, [1])  # from the source, and stored anew
        assert cache.load(key(1)) == data(1)
        assert cache.stats["damaged"] == 1

    @pytest.mark.parametrize("length", [0, 10, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 4999])
    def test_a_torn_entry_is_never_served(self, tmp_path, length):
        cache = DiskCache(tmp_path, 10**6)
        fill(cache, [1])
        os.truncate(entry(cache, 1), length)
        fill(cache, [1])
        assert cache.load(key(1)) == data(1)

    def test_zeros_behind_the_header_are_never_served(self, tmp_path):
        cache = DiskCache(tmp_path, 10**6)
        fill(cache, [1])
        whole = entry(cache, 1).read_bytes()
        entry(cache, 1).write_bytes(whole[:1000] + bytes(len(whole) - 1000))
        assert cache.load(key(1)) is None

    def test_an_entry_under_another_name_is_never_served(self, tmp_path):
        cache = DiskCache(tmp_path, 10**6)
        fill(cache, [1, 2])
        entry(cache, 2).write_bytes(entry(cache, 1).read_bytes())
        assert cache.load(key(2)) is None


class TestForeignFiles:
    def test_clearing_delete_only_what_the_cache_made(self, tmp_path):
        mine = tmp_path / "mine"
        (mine / "sub").mkdir(parents=True)
        (mine / "notes.txt").write_text("keep me")
        (mine / "sub" / f"{key(9)}.chunk").write_text("looks like an entry, is not in our folder")
        before = snapshot(mine)
        for delete in (DiskCache.clear_own, DiskCache.clear):
            cache = DiskCache(mine, 10**6)
            fill(cache, range(5))
            delete(cache)
            assert snapshot(mine) == before

    def test_files_put_into_our_folder_stay_as_well(self, tmp_path):
        cache = DiskCache(tmp_path, 3 * ENTRY, eviction="lru")
        fill(cache, range(3))
        folder = tmp_path / cache_files.FOLDER
        theirs = [folder / "notes.txt", folder / "aa" / "b.txt", folder / "zz" / f"{key(1)}.chunk", folder / "parts/x"]
        for path in theirs:
            path.parent.mkdir(exist_ok=True)
            path.write_text("theirs")
        fill(cache, range(3, 9))
        cache.clear()
        assert all(path.read_text() == "theirs" for path in theirs)
        assert list(folder.rglob("*.chunk")) == [theirs[2]]
        fill(cache, range(3))  # and it still works
        assert len(kept(cache, range(3))) == 3

    def test_a_folder_of_that_name_that_is_not_ours_is_left_alone(self, tmp_path):
        folder = tmp_path / cache_files.FOLDER
        folder.mkdir()
        (folder / "thesis.tex").write_text("years of work")
        before = snapshot(tmp_path)
        cache = DiskCache(tmp_path, 10**6)
        with pytest.warns(PenstockWarning, match="do not belong to a cache"):
            fill(cache, range(3))
        cache.clear()
        assert snapshot(tmp_path) == before

    def test_a_link_is_not_followed(self, tmp_path):
        (tmp_path / "theirs").mkdir()
        (tmp_path / "theirs" / f"{key(0xAB)}.chunk").write_text("theirs")
        cache = DiskCache(tmp_path / "cache", 10**6)
        fill(cache, [1])
        (tmp_path / "cache" / cache_files.FOLDER / "ab").symlink_to(tmp_path / "theirs")
        cache.clear()
        assert (tmp_path / "theirs" / f"{key(0xAB)}.chunk").exists()

    def test_folders_go_only_if_the_cache_made_them_and_they_are_empty(self, tmp_path):
        made = DiskCache(tmp_path / "new", 10**6)
        fill(made, range(3))
        made.clear()
        assert not (tmp_path / "new").exists()
        (tmp_path / "old").mkdir()
        found = DiskCache(tmp_path / "old", 10**6)
        fill(found, range(3))
        found.clear()
        assert list((tmp_path / "old").iterdir()) == []

    def test_clear_own_leaves_what_others_stored(self, tmp_path):
        other, mine = DiskCache(tmp_path, 10**6), DiskCache(tmp_path, 10**6)
        fill(other, range(3))
        fill(mine, range(6))
        mine.clear_own()
        assert kept(mine, range(6)) == [0, 1, 2]
        assert UsageCounter(str(tmp_path / cache_files.FOLDER / "usage")).peek() == 3 * ENTRY
        mine.clear_own()
        other.clear()
        fill(mine, range(2))  # a folder that another one deleted is made again
        fill(mine, range(2, 4))
        assert 3 in kept(mine, range(4))


class TestRefusal:
    def test_a_disk_that_is_full_costs_one_warning(self, tmp_path, monkeypatch):
        cache = DiskCache(tmp_path, 10**6)
        fill(cache, range(3))

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(disk_cache, "write_entry", full)
        with pytest.warns(PenstockWarning, match="No space left") as told:
            fill(cache, range(8))
        assert len(told) == 1
        assert "its entries are used" in str(told[0].message)
        assert cache.load(key(1)) == data(1)
        assert list((tmp_path / cache_files.FOLDER / "parts").iterdir()) == []
        assert UsageCounter(str(tmp_path / cache_files.FOLDER / "usage")).peek() == 3 * ENTRY

    def test_a_folder_that_cannot_be_written_serves_what_it_has(self, tmp_path):
        fill(DiskCache(tmp_path, 10**6), range(3))
        folder = tmp_path / cache_files.FOLDER
        cache = DiskCache(tmp_path, 10**6)
        paths = [folder, folder / "parts", *folder.glob("??")]
        try:
            for path in paths:
                path.chmod(0o500)
            (folder / "usage").chmod(0o400)
            if os.access(folder / "parts", os.W_OK):
                pytest.skip("this user may write everywhere")
            with pytest.warns(PenstockWarning, match="cannot be written"):
                fill(cache, range(6))
            assert cache.stats["hits"] == 3
        finally:
            for path in paths:
                path.chmod(0o700)

    def test_a_filesystem_mounted_for_reading_only(self, tmp_path, monkeypatch):
        fill(DiskCache(tmp_path, 10**6), range(3))
        cache = DiskCache(tmp_path, 10**6)

        def refuse(*_, **__):
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(os, "utime", refuse)
        monkeypatch.setattr(os, "makedirs", refuse)
        with pytest.warns(PenstockWarning, match="Read-only file system") as told:
            fill(cache, range(6))
        assert len(told) == 1
        assert cache.stats["hits"] == 3

    def test_a_path_below_a_file_costs_one_warning(self, tmp_path):
        (tmp_path / "file").write_text("x")
        cache = DiskCache(tmp_path / "file" / "cache", 10**6)
        with pytest.warns(PenstockWarning, match="cannot be written"):
            fill(cache, range(3))

    def test_no_warning_where_all_is_well(self, tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache = DiskCache(tmp_path, 2 * ENTRY)
            fill(cache, range(5))
            cache.clear()


class TestParts:
    def test_what_a_killed_process_left_is_collected_and_counted_out(self, tmp_path):
        cache = DiskCache(tmp_path, 10**6)
        fill(cache, [1])
        parts = tmp_path / cache_files.FOLDER / "parts"
        dead = parts / f"{cache_files._where()}-{_dead_pid()}-0-{ENTRY}.part"
        live = parts / f"{cache_files._where()}-{os.getpid()}-0-{ENTRY}.part"
        elsewhere = parts / f"00000000-1-0-{ENTRY}.part"
        ancient = parts / f"00000000-2-0-{ENTRY}.part"
        for path in (dead, live, elsewhere, ancient):
            path.write_bytes(b"half an entry")
        os.utime(ancient, (0, 0))
        ledger = UsageCounter(str(tmp_path / cache_files.FOLDER / "usage"))
        with ledger.hold(1) as account:
            account.write(5 * ENTRY)
        fill(DiskCache(tmp_path, 10**6), [2])
        assert sorted(path.name for path in parts.iterdir()) == sorted([live.name, elsewhere.name])
        assert ledger.peek() == 4 * ENTRY
        assert cache.used_bytes == 2 * ENTRY

    def test_a_part_that_was_taken_for_abandoned_is_no_error(self, tmp_path, monkeypatch):
        cache = DiskCache(tmp_path, 10**6)
        fill(cache, [1])
        write = disk_cache.write_entry

        def write_and_lose(path, *more):
            write(path, *more)
            os.unlink(path)

        monkeypatch.setattr(disk_cache, "write_entry", write_and_lose)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fill(cache, [2])
        assert kept(cache, [1, 2]) == [1]


def _dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_the_cost_of_an_entry_is_in_blocks():
    assert cost_of(0) == cost_of(4096 - HEADER_BYTES) == 4096
    assert cost_of(4097 - HEADER_BYTES) == ENTRY == cost_of(5000)
