"""Defects of Petastorm's pools that this face must not have: hangs, spins and lost results; named by their place."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import psutil
import pytest

from penstock.errors import PlanError, TransformError, WorkerDied
from penstock.petastorm import TransformSpec, make_batch_reader, make_reader
from penstock.petastorm.predicates import in_lambda
from penstock.testing import make_parquet
from tests.depth import depth


@pytest.fixture
def table(tmp_path):
    return make_parquet(tmp_path / "data", [[10] * 20])


def within(seconds, work):
    """Run `work` in a thread and fail if it has not ended in time; returns what it raised."""
    raised = []

    def run():
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    return raised[0] if raised else None


def test_defect_5_2_5_early_conversion_goes_with_the_process_pool(table):
    with make_batch_reader(table, convert_early_to_numpy=True, reader_pool_type="process", workers_count=1) as reader:
        assert sorted(np.concatenate([batch.id for batch in reader]).tolist()) == list(range(200))


def kill_me(row):
    if row["id"] == 55:
        os.kill(os.getpid(), signal.SIGKILL)
    return row


def test_defect_5_3_a_killed_worker_is_an_error_and_no_hang(table):
    def work():
        with make_reader(table, transform_spec=TransformSpec(kill_me), reader_pool_type="process") as reader:
            list(reader)

    assert isinstance(within(60, work), WorkerDied)


class Locked:
    """A function that no pickler takes."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, value):
        return value > 3


def test_defect_5_3_an_unpicklable_predicate_is_told_of_or_stays_here(table):
    predicate = in_lambda(["id"], Locked())
    with make_reader(table, predicate=predicate, reader_pool_type="process", workers_count=1) as reader:
        assert len(list(reader)) == 196
    with pytest.raises(PlanError, match="cannot be pickled"):
        make_reader(table, predicate=predicate, reader_pool_type="process", exact=False)


def fails_late(row):
    if row["id"] > 20:
        raise ValueError("on purpose")
    return row


def test_defect_5_3_a_failing_worker_with_full_queues_is_stopped(table):
    def work():
        reader = make_reader(
            table, transform_spec=TransformSpec(fails_late), results_queue_size=1, shuffle_row_groups=False
        )
        next(reader)
        time.sleep(0.3)  # the workers run into the failure and into the full queue
        reader.stop()
        reader.join()

    assert within(20, work) is None


def test_defect_5_3_a_failure_comes_after_all_rows_before_it(table):
    found = []
    how = {"transform_spec": TransformSpec(fails_late), "shuffle_row_groups": False}
    with make_reader(table, **how) as reader, pytest.raises(TransformError, match="on purpose"):
        found.extend(int(row.id) for row in reader)
    assert found == list(range(20))


def test_defect_5_3_the_dummy_pool_always_ends(table):
    def work():
        for _ in range(depth(10, 200)):
            with make_reader(table, reader_pool_type="dummy", num_epochs=2) as reader:
                assert len(list(reader)) == 400

    assert within(120, work) is None


@pytest.mark.parametrize("options", [{}, {"shuffle_rows": True}])
def test_defect_5_3_waiting_readers_take_no_cpu(table, options):
    with make_reader(table, num_epochs=None, **options) as reader:
        next(reader)
        time.sleep(0.5)  # all queues fill
        before = psutil.Process().cpu_times()
        time.sleep(1.0)
        after = psutil.Process().cpu_times()
    assert after.user + after.system - before.user - before.system < 0.5
