"""A store that fails is not damaged data: equal epochs or an error that says so, and nothing is ever skipped for it."""

import contextlib
import errno
import itertools
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import doctor
from penstock.errors import DatasetIncomplete, LoaderClosed, StoreError, StoreRefused, StoreUnavailable
from penstock.predicates import in_lambda
from penstock.storage.cache import MemoryCache
from penstock.storage.faults import ATTEMPTS
from penstock.testing import FaultyFileSystem, ServerError, TransientFaults
from tests.depth import depth

ROWS = 400
RATE = 0.05
"""Of requests that fail. An attempt makes three requests or less, so that eight of them hardly ever fail."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("faults")
    rng = np.random.default_rng(0)
    for part in range(3):
        ids = np.arange(part * ROWS, (part + 1) * ROWS)
        penstock.write(
            {"id": ids, "word": [f"w{i % 7}" * (i % 5) for i in ids], "x": rng.normal(size=(ROWS, 3)).astype("f4")},
            root / "data",
            row_group_bytes=2000,
            part=part,
        )
    penstock.commit(root / "data")
    return str(root / "data")


class Switched:
    """Lets everything through until it is switched on; counts the requests that failed."""

    def __init__(self, error: Exception) -> None:
        self.error, self.on, self.failed = error, False, 0

    def __call__(self, path: str) -> Exception | None:
        if not self.on:
            return None
        self.failed += 1
        return self.error


def epoch(ds, **more):
    with ds.loader(batch_size=64, shuffle=True, seed=5, on_error="skip", workers=3, **more) as loader:
        batches = list(loader)
        assert loader.skipped == []
    return {name: np.concatenate([np.asarray(batch[name]) for batch in batches]) for name in ("id", "word", "x")}


def assert_equal(found, wanted):
    for name in wanted:
        assert found[name].tolist() == wanted[name].tolist()


def even(value):
    return value % 2 == 0


SELECTIONS = {
    "all": lambda ds: ds,
    "filter": lambda ds: ds.where([("word", "!=", "w3w3")]),
    "predicate": lambda ds: ds.where(in_lambda(["id"], even)),
}
CACHES = {"plain": dict, "cached": lambda: {"cache": MemoryCache(10**7)}}


@pytest.mark.parametrize("select", SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
def test_transient_faults_change_no_epoch(folder, pauses, select, cache):
    wanted = epoch(select(penstock.open(folder)))
    faults = TransientFaults(RATE, seed=3)
    ds = penstock.open(folder, filesystem=FaultyFileSystem(fault=faults), on_error="skip", **cache())
    assert_equal(epoch(select(ds)), wanted)
    assert ds.skipped == []
    assert faults.num_raised == len(pauses) > 0


ERRORS = {
    "time-out": TimeoutError("timed out"),
    "reset": ConnectionResetError("reset by peer"),
    "503": ServerError(),
    "descriptors": OSError(errno.EMFILE, "Too many open files"),
    "memory": MemoryError("out of memory"),
    "unknown": OSError("no details"),
}
ANY_ERROR = pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)


def assert_says_unavailable(error, folder):
    assert isinstance(error, StoreUnavailable)
    assert str(error).startswith(folder)
    assert f"is unavailable after {ATTEMPTS} attempts" in str(error)
    assert error.url.startswith(folder)
    assert error.attempts == ATTEMPTS
    assert "damaged" not in str(error)
    assert "write" not in str(error)


@ANY_ERROR
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_store_that_is_down_does_not_open(folder, pauses, on_error, error):
    fault = Switched(error)
    fault.on = True
    with pytest.raises(StoreUnavailable) as found:
        penstock.open(folder, filesystem=FaultyFileSystem(fault=fault), on_error=on_error)
    if error is ERRORS["unknown"]:  # as a library that cannot connect at all
        assert str(found.value).startswith(f"{folder} cannot be reached (OSError: no details)")
    else:
        assert_says_unavailable(found.value, folder)


@ANY_ERROR
def test_footers_that_cannot_be_fetched_leave_no_file_out(folder, pauses, error):
    def fault(path):
        return error if path.endswith(".parquet") else None

    with pytest.raises(StoreUnavailable) as found:
        penstock.open(folder, filesystem=FaultyFileSystem(fault=fault), on_error="skip")
    assert_says_unavailable(found.value, folder)


@ANY_ERROR
@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("pool", ["thread", "serial"])
def test_loading_skips_nothing(folder, pauses, error, cache, pool):
    fault = Switched(error)
    ds = penstock.open(folder, filesystem=FaultyFileSystem(fault=fault), on_error="skip", **cache())
    with ds.loader(batch_size=64, on_error="skip", pool=pool) as loader:
        fault.on = True
        with pytest.raises(StoreUnavailable) as found:
            list(loader)
        assert loader.skipped == []
        assert_says_unavailable(found.value, folder)
        fault.on = False
    assert len(list(ds.loader(batch_size=64, on_error="skip"))) == -(-3 * ROWS // 64)
    assert ds.skipped == []


@ANY_ERROR
@pytest.mark.parametrize("name", ["filter", "predicate"])
def test_filters_skip_nothing(folder, pauses, error, name):
    fault = Switched(error)
    ds = penstock.open(folder, filesystem=FaultyFileSystem(fault=fault), on_error="skip")
    fault.on = True
    with pytest.raises(StoreUnavailable) as found:
        SELECTIONS[name](ds)
    assert_says_unavailable(found.value, folder)
    assert ds.skipped == []


def test_the_doctor_calls_no_file_damaged(folder, pauses, tmp_path):
    def fault(path):
        return TimeoutError("timed out") if path.endswith(".parquet") else None

    with pytest.raises(StoreUnavailable, match=r"\.parquet is unavailable"):
        doctor.examine(folder, filesystem=FaultyFileSystem(fault=fault))


def test_the_doctor_and_a_rewrite_get_over_transient_faults(folder, pauses, tmp_path):
    faults = TransientFaults(RATE, seed=1)
    fs = FaultyFileSystem(fault=lambda path: faults(path) if path.startswith(folder) else None)
    found, wanted = doctor.examine(folder, filesystem=fs), doctor.examine(folder)
    assert [finding.code for finding in found.findings] == [finding.code for finding in wanted.findings]
    doctor.rewrite(folder, str(tmp_path / "again"), filesystem=fs)
    assert sorted(penstock.open(tmp_path / "again").take(range(3 * ROWS))["id"]) == list(range(3 * ROWS))


REFUSED = {
    "403": ServerError("Forbidden", status=403),
    "401": ServerError("Unauthorized", status=401),
    "permissions": PermissionError(errno.EACCES, "Permission denied"),
    "credentials": type("NoCredentialsError", (Exception,), {})("Unable to locate credentials"),
}


@pytest.mark.parametrize("error", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("ending", ["", ".parquet"], ids=["listing", "footers"])
def test_a_refusal_is_reported_at_once_when_opening(folder, pauses, error, ending):
    refused = []

    def fault(path):
        if path.endswith(ending):
            refused.append(path)
            return error
        return None

    with pytest.raises(StoreRefused, match="access refused") as found:
        penstock.open(folder, filesystem=FaultyFileSystem(fault=fault), on_error="skip")
    assert "\n" not in str(found.value)
    assert found.value.url in str(found.value)
    assert len(refused) == 1
    assert pauses == []


@pytest.mark.parametrize("error", REFUSED.values(), ids=REFUSED)
def test_a_refusal_is_reported_at_once_when_loading(folder, pauses, error):
    fault = Switched(error)
    ds = penstock.open(folder, filesystem=FaultyFileSystem(fault=fault), on_error="skip")
    with ds.loader(batch_size=64, on_error="skip", pool="serial") as loader:
        fault.on = True
        with pytest.raises(StoreRefused, match=r"\.parquet: access refused"):
            list(loader)
        assert loader.skipped == []
    assert fault.failed <= loader.plan.num_chunks  # each was requested once
    assert pauses == []


def test_a_marker_that_cannot_be_read_is_not_a_missing_one(tmp_path, pauses):
    """A dataset that is being written must not open as if it were whole because of a time-out."""
    penstock.write({"id": np.arange(10)}, tmp_path / "d")
    (tmp_path / "d" / "_penstock_writing.json").write_text("{}")
    with pytest.raises(DatasetIncomplete):
        penstock.open(str(tmp_path / "d"), filesystem=FaultyFileSystem(fault=lambda path: None))

    def fault(path):
        return TimeoutError("timed out") if "_penstock_writing" in path else None

    with pytest.raises(StoreUnavailable):
        penstock.open(str(tmp_path / "d"), filesystem=FaultyFileSystem(fault=fault))


KINDS = [
    None,
    None,
    None,
    TimeoutError("slow"),
    ConnectionResetError("reset"),
    ServerError(),
    OSError(errno.EIO, "I/O"),
]


@settings(
    max_examples=depth(15, 300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(schedule=st.lists(st.sampled_from(KINDS), max_size=150), cached=st.booleans())
def test_any_schedule_of_faults_gives_the_epoch_or_an_error_of_the_store(folder, pauses, schedule, cached):
    wanted = penstock.open(folder)
    faults = itertools.chain(schedule, itertools.repeat(None))
    fs = FaultyFileSystem(fault=lambda _: next(faults))
    try:
        ds = penstock.open(folder, filesystem=fs, on_error="skip", **CACHES["cached" if cached else "plain"]())
        found = epoch(ds)
    except StoreError as error:
        assert_says_unavailable(error, folder)
        return
    assert_equal(found, epoch(wanted))
    assert ds.skipped == []


@pytest.mark.parametrize("pool", ["thread", "process"])
def test_a_loader_that_waits_for_its_store_can_be_closed(folder, pool):
    """Pauses between attempts are real here: closing ends them, and no thread makes another attempt."""
    failing, requests = threading.Event(), []

    def fault(path):
        if not failing.is_set():
            return None
        requests.append(path)
        return TimeoutError("slow")

    ds = penstock.open(folder, filesystem=FaultyFileSystem(fault=fault))
    loader = ds.loader(batch_size=64, pool=pool, workers=1)
    failing.set()
    consumer = threading.Thread(target=consume, args=(loader,))
    consumer.start()
    while not requests:
        time.sleep(0.001)
    loader.close()
    consumer.join()
    assert len(requests) < ATTEMPTS


def consume(loader):
    with contextlib.suppress(StoreUnavailable, LoaderClosed):
        list(loader)
