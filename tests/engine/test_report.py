"""The stall report: who waited, for what, and what would help; and the counters as Prometheus reads them."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import numpy as np
import pytest

import penstock
from penstock.engine import report as module
from penstock.engine.loader import KEPT_STEPS, WAIT_BOUNDS, Stats, Step
from penstock.engine.report import Report, steps_of
from penstock.errors import PlanError


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    where = tmp_path_factory.mktemp("report") / "train"
    penstock.write({"id": np.arange(2000), "x": np.zeros((2000, 8), np.float32)}, where, row_group_bytes=4000)
    return penstock.open(where)


def slow(batch):
    time.sleep(0.01)
    return batch


def made(*, wait=0.01, own=0.0, steps=200, stages=(0.0, 0.0, 0.0), **changes):
    """A report of made-up steps: seconds of each, and of read, gather and finish in each."""
    kept, end = [], 0.0
    waits = [wait] * steps if np.isscalar(wait) else wait
    for number, one in enumerate(waits, 1):
        end += one + own
        kept.append(Step(end, 10, one, *(number * s for s in stages), 10**9 * number))
    given = {
        "stats": {"batches": len(waits)}, "steps": steps_of(kept, len(waits)), "waits": (0,), "rank": 0, "world": 1,
        "workers": 2, "pool": "thread", "has_transform": False, "num_waiting": 0, "num_skipped": 0,
    }  # fmt: skip
    return Report(**{**given, **changes})


def test_a_consumer_that_is_slower_than_the_loader_is_told_so(ds):
    with ds.loader(batch_size=100) as loader:
        list(loader)  # imports what reading needs
    with ds.loader(batch_size=100, epochs=5) as loader:
        for _ in loader:
            time.sleep(0.01)
        report = loader.report()
    assert report.bottleneck in ("consumer", "start")  # a busy machine may take long for the first batch
    assert len(report.steps) == 100
    assert report.steps.own_s[1:].min() >= 0.009


def test_a_slow_transform_is_the_bottleneck(ds):
    with ds.loader(batch_size=20, transform=slow, workers=1) as loader:
        for _ in loader:
            pass
        report = loader.report()
    assert report.bottleneck == "finish"
    assert "transform" in report.advice
    text = str(report)
    assert "decoding and transform" in text
    assert re.search(r"^ +1 to 13 +\d+\.\d ms +\d+%", text, re.M)
    assert len(text.splitlines()) < 16


def test_the_serial_pool_has_a_report_too(ds):
    with ds.loader(batch_size=100, transform=slow, pool="serial") as loader:
        list(loader)
        assert loader.report().bottleneck == "finish"
        assert "the consumer itself" in str(loader.report())


def test_nothing_delivered_is_said_and_not_an_error(ds):
    with ds.loader(batch_size=100) as loader:
        report = loader.report()
        assert report.bottleneck == ""
        assert "no batch" in str(report)
        assert report.advice
        iter(loader)
    assert "no batch" in str(loader.report())


@pytest.mark.parametrize(
    ("changes", "bottleneck", "hint"),
    [
        ({"wait": 0.0001, "own": 0.1}, "consumer", "your own step"),
        ({"stages": (0.018, 0.0, 0.001)}, "read", "fewer columns"),
        ({"stages": (0.0, 0.018, 0.001)}, "gather", "shuffle='groups'"),
        ({"stages": (0.0, 0.001, 0.018)}, "finish", "smaller pictures"),
        ({"stages": (0.0, 0.001, 0.018), "has_transform": True}, "finish", "pool='process'"),
        ({"stages": (0.0, 0.001, 0.018), "has_transform": True, "pool": "process"}, "finish", "on the device"),
        ({"stages": (0.001, 0.001, 0.001)}, "room", "85% of the 2 workers"),
        ({"wait": 0.001, "stages": (0.0, 0.0001, 0.0002)}, "passing", "larger batches"),
        ({"wait": [2.0, *[0.0] * 199], "own": 0.01}, "start", "shuffle_bytes"),
    ],
)
def test_each_cause_has_its_name_and_one_line_of_advice(changes, bottleneck, hint):
    report = made(**changes)
    assert report.bottleneck == bottleneck
    assert hint in report.advice
    assert "\n" not in report.advice
    assert report.advice in str(report)


def test_a_slow_store_is_told_from_slow_unpacking():
    assert "cache='local-disk'" not in made(stages=(0.018, 0, 0)).advice
    kept = [Step(0.01 * n, 10, 0.01, 0.018 * n, 0.0, 0.0, 1000 * n) for n in range(1, 101)]
    assert "cache='local-disk'" in replace(made(), steps=steps_of(kept, 100)).advice


def test_a_pause_is_not_counted_as_work_of_the_consumer():
    kept, end = [], 0.0
    for number in range(1, 101):
        end += 0.02 + (60 if number == 50 else 0)
        kept.append(Step(end, 10, 0.01, 0.0, 0.0, 0.0, 0))
    steps = steps_of(kept, 100)
    assert steps.num_pauses == 1
    assert steps.seconds == pytest.approx(100 * 0.01 + 98 * 0.01)
    assert "1 pause of your own left out" in str(replace(made(), steps=steps))


def test_steps_add_up_to_the_counters():
    stats = Stats()
    for number in range(10):
        stats.read(1.0, 100)
        stats.gathered(0.5)
        stats.finished(0.25 * number)
        stats.delivered(number, 0.125)
    steps = steps_of(stats.last_steps(), stats.batches)
    assert (steps.first, len(steps)) == (1, 10)
    assert steps.stage_s["read"].tolist() == [1.0] * 10
    assert steps.stage_s["finish"].tolist() == [0.25 * n for n in range(10)]
    assert steps.bytes_read == 1000
    assert int(steps.num_rows.sum()) == stats.rows == 45
    assert float(steps.wait_s.sum()) == stats.wait_s


def test_only_the_last_steps_are_kept():
    stats = Stats()
    for _ in range(KEPT_STEPS + 10):
        stats.read(1.0, 100)
        stats.delivered(1, 0.0)
    steps = steps_of(stats.last_steps(), stats.batches)
    assert (steps.first, len(steps)) == (12, KEPT_STEPS - 1)
    assert steps.stage_s["read"].tolist() == [1.0] * (KEPT_STEPS - 1)
    assert steps.bytes_read == 100 * (KEPT_STEPS - 1)


SAMPLE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\} (\S+)\Z')


def samples(text):
    """Parse the text format as its description says; fails on a line that is not of it."""
    found, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split(" ")
            types[name] = kind
        elif not line.startswith("# HELP"):
            match = SAMPLE.match(line)
            assert match, line
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2]))
            key = match[1], tuple(sorted(labels.items()))
            assert key not in found
            found[key] = float(match[3])
            assert any(match[1].startswith(name) for name in types), f"{match[1]} has no TYPE"
    return found, types


def test_prometheus_text_holds_the_counters(ds):
    with ds.loader(batch_size=100, rank=1, world=2) as loader:
        for _ in loader:
            pass
        stats, text = loader.stats(), loader.report().prometheus(job='a "b"\\\n')
    found, types = samples(text)
    assert text.endswith("\n")
    assert types["penstock_wait_seconds"] == "histogram"
    own = {"rank": "1", "world": "2", "job": 'a \\"b\\"\\\\\\n'}

    def value(name, **labels):
        return found["penstock_" + name, tuple(sorted({**own, **labels}.items()))]

    assert value("rows_total") == 1000
    assert value("batches_total") == stats["batches"] == 10
    assert value("read_bytes_total") == stats["bytes_read"]
    assert value("stage_seconds_total", stage="finish") == stats["finish_s"]
    assert value("wait_seconds_sum") == stats["wait_s"]
    buckets = [value("wait_seconds_bucket", le=repr(bound)) for bound in WAIT_BOUNDS]
    buckets.append(value("wait_seconds_bucket", le="+Inf"))
    assert buckets == sorted(buckets)
    assert buckets[-1] == value("wait_seconds_count") == 10


def test_prometheus_itself_reads_it(ds):
    parser = pytest.importorskip("prometheus_client.parser")
    with ds.loader(batch_size=100) as loader:
        list(loader)
    families = {f.name: f for f in parser.text_string_to_metric_families(loader.report().prometheus())}
    assert families["penstock_rows"].samples[0].value == 2000
    assert families["penstock_wait_seconds"].type == "histogram"


@pytest.mark.parametrize("name", ["le", "stage", "a-b", "__x", "1x", ""])
def test_labels_that_prometheus_would_refuse_are_refused(name):
    with pytest.raises(PlanError, match="label"):
        made().prometheus(**{name: "x"})


def test_a_wait_is_counted_in_its_class():
    stats = Stats()
    for wait in (0.0, 0.0001, 0.0002, 5.0, 100.0):
        stats.delivered(1, wait)
    assert stats.waits() == [2, 1, *[0] * 7, 1, 1]


def test_a_report_costs_little_to_keep():
    stats, began = Stats(), time.perf_counter()
    for _ in range(10_000):
        stats.delivered(1, 0.0)
    assert (time.perf_counter() - began) / 10_000 < 100e-6  # about 2 us; a busy machine may take more


def test_more_workers_are_advised_only_where_there_are_cores(monkeypatch):
    report = made(stages=(0.0, 0.001, 0.018))
    monkeypatch.setattr(module.host, "cores", lambda: 8)
    assert "raise workers= (2 of 8 cores)" in report.advice
    monkeypatch.setattr(module.host, "cores", lambda: 2)
    assert "raise workers=" not in report.advice


def test_words_and_advice_exist_for_every_cause():
    assert set(module.WORDS) >= set(module.STAGES)
    variants = {"finish-thread", "finish-process", "hand-over-ahead", "read-slow"}
    assert set(module.WORDS) == {*module.STAGES, *module._ADVICE} - variants
    assert variants < set(module._ADVICE)


# -- behind the workers -----------------------------------------------------------------------------------------------


def test_what_the_hand_over_takes_is_wait_and_not_work_of_the_consumer(ds):
    with ds.loader(batch_size=100) as loader:
        for _ in loader.stream().map(lambda delivery: time.sleep(0.01)):
            pass
        report = loader.report()
    assert "handing batches over" in str(report)
    assert report.stats["hand_over_s"] >= 0.19
    assert report.steps.wait_s.min() >= 0.0099


def test_batches_taken_ahead_count_when_they_are_received(ds):
    with ds.loader(batch_size=100) as loader:
        stream = loader.stream().map(lambda delivery: delivery.batch, ahead=2)
        delivery = stream.take()
        assert loader.stats()["batches"] == 0
        stream.received(delivery.place, 0.125)
        report = loader.report()
    assert report.steps.wait_s.tolist() == [0.125]
    assert report.stats["rows"] == 100
    assert report.hands_over_ahead


def test_a_hand_over_ahead_is_the_bottleneck_only_if_it_hardly_rests():
    def of(hand_over, **changes):
        kept = [Step(0.01 * n, 10, 0.01, 0, 0, 0.002 * n, 0, hand_over * n) for n in range(1, 101)]
        return replace(made(), steps=steps_of(kept, 100), hands_over_ahead=True, **changes)

    assert of(0.009).bottleneck == "hand-over"
    assert "threads of its own" in of(0.009).advice
    assert of(0.001).bottleneck == "room"
