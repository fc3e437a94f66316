"""What a torch loader counts, says and refuses: places after errors, lengths, waits, options that nobody has."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from penstock.codecs import CompressedImageCodec, ScalarCodec  # noqa: E402
from penstock.errors import (  # noqa: E402
    ColumnNotFound,
    LoaderClosed,
    PenstockWarning,
    PlanError,
    SchemaError,
    StateMismatch,
    TransformError,
)
from penstock.options import LoaderOptions  # noqa: E402
from penstock.testing import make_parquet  # noqa: E402
from penstock.torch import Batches, as_tensors, loader  # noqa: E402
from penstock.torch.gpu import why_cpu  # noqa: E402

FORMS = [None, "meta"]
"""Without a device, and through the threads that feed one."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """51 rows of two columns of numbers."""
    return make_parquet(tmp_path_factory.mktemp("data") / "numbers")


# -- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", FORMS)
def test_a_batch_that_fails_on_its_way_out_is_not_counted(data, device):
    seen = []

    def fails(batch):
        seen.append(1)
        if len(seen) == 4:
            raise ValueError("fourth")
        return batch

    got = []
    with loader(data, batch_size=10, device=device, device_transform=fails) as batches:
        with pytest.raises(TransformError, match="fourth"):
            got.extend(len(batch["id"]) for batch in batches)
        assert sum(got) == 30
        assert batches.state_dict()["left"] == [[30, 51]]
        batches.load_state_dict(batches.state_dict())
        assert sum(len(batch["id"]) for batch in batches) == 21


def test_a_null_that_is_refused_is_not_counted_either(tmp_path):
    pq.write_table(pa.table({"x": [*range(25), None, *range(24)]}), tmp_path / "data.parquet")
    got = []
    with loader(tmp_path, batch_size=10, nulls="error") as batches:
        with pytest.raises(SchemaError, match="has a null"):
            got.extend(len(batch["x"]) for batch in batches)
        assert sum(got) == 20
        assert batches.state_dict()["left"] == [[20, 50]]
    batches = Batches(tmp_path, batch_size=10, nulls="error")
    with pytest.raises(SchemaError, match="has a null"):
        list(batches)
    assert batches.state_dict()["left"] == [[20, 50]]


@pytest.mark.parametrize("device", FORMS)
def test_after_break_the_length_is_what_iterating_gives(data, device):
    with loader(data, batch_size=10, device=device) as batches:
        for _ in batches:
            break
        assert len(batches) == 6
        assert sum(1 for _ in batches) == 6
        assert len(batches) == 6
        for _ in batches:
            break
        batches.load_state_dict(batches.state_dict())
        assert len(batches) == 5
        assert sum(1 for _ in batches) == 5


# -- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", FORMS)
def test_closing_in_the_loop_is_not_the_end_of_an_epoch(data, device):
    with loader(data, batch_size=10, device=device) as batches:
        running = iter(batches)
        next(running)
        batches.close()
        with pytest.raises(LoaderClosed, match="closed"):
            next(running)


@pytest.mark.parametrize("device", FORMS)
def test_a_second_iterator_ends_the_first_which_says_so(data, device):
    with loader(data, batch_size=10, device=device) as batches:
        first = iter(batches)
        next(first)
        second = iter(batches)
        next(second)
        with pytest.raises(LoaderClosed, match="another one was made"):
            next(first)
        assert sum(1 for _ in second) == 5
        assert next(second, None) is None
        batches.load_state_dict(batches.state_dict())
        assert next(second, None) is None, "it was over before"


@pytest.mark.parametrize("device", FORMS)
def test_after_an_error_an_iterator_says_that_it_failed(data, device):
    def fails(batch):
        raise ValueError("no")

    with loader(data, batch_size=10, device=device, device_transform=fails) as batches:
        running = iter(batches)
        with pytest.raises(TransformError):
            next(running)
        with pytest.raises(LoaderClosed, match="has failed"):
            next(running)


@pytest.mark.parametrize("device", FORMS)
def test_several_threads_come_to_the_same_end(data, device):
    with loader(data, batch_size=2, device=device) as batches:
        for _ in range(5):
            running, start = iter(batches), threading.Barrier(3)

            def drain(running=running, start=start):
                start.wait()
                return sum(len(batch["id"]) for batch in running)

            with ThreadPoolExecutor(3) as pool:
                assert sum(task.result() for task in [pool.submit(drain) for _ in range(3)]) == 51


# -- waits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", FORMS)
def test_the_report_counts_what_the_user_waits_for(data, device):
    resting = threading.Event()

    def slow(batch):
        resting.wait(0.02)
        return batch

    with loader(data, batch_size=5, device=device, device_transform=slow) as batches:
        assert len(list(batches)) == 11
        report = batches.report()
    assert report.stats["batches"] == 11
    assert report.stats["rows"] == 51
    assert report.stats["hand_over_s"] >= 0.2
    assert report.stats["wait_s"] >= 0.15
    assert report.steps.stage_s["hand-over"].sum() >= 0.15
    assert report.hands_over_ahead == (device is not None)


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [loader, Batches])
def test_a_wrong_keyword_names_the_function_and_the_right_one(data, make):
    name = f"penstock.torch.{make.__name__}"
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'num_workers'.*workers= sets"):
        make(data, batch_size=4, num_workers=2)
    with pytest.raises(TypeError, match=rf"{name}\(\).*'shufle'; did you mean 'shuffle'"):
        make(data, batch_size=4, shufle=True)


@pytest.mark.parametrize("option", ["device", "pin_memory", "device_transform", "prefetch", "decode"])
def test_what_only_a_loader_can_do_is_said_of_batches(data, option):
    with pytest.raises(TypeError, match=rf"use penstock.torch.loader\(..., {option}=...\)"):
        Batches(data, batch_size=4, **{option: None})


def test_devices_and_transforms_are_checked_at_once(data):
    with pytest.raises(PlanError, match="device='foo' is not a device of this PyTorch"):
        loader(data, batch_size=4, device="foo")
    with pytest.raises(PlanError, match="device_transform must be a function of the batch; got 5"):
        loader(data, batch_size=4, device_transform=5)
    if not torch.cuda.is_available():
        with pytest.raises(PlanError, match="device=0"):
            loader(data, batch_size=4, device=0)
        with pytest.raises(PlanError, match="device='mps' is not available"):
            loader(data, batch_size=4, device="mps")


@pytest.mark.parametrize("make", [loader, Batches])
def test_nulls_are_checked_at_once(data, make):
    with pytest.raises(ColumnNotFound, match="nulls= names 'idd', which is no column; did you mean 'id'"):
        make(data, batch_size=4, nulls=["idd"])
    for wrong in (None, 5, ["id", 3], "masks"):
        with pytest.raises(PlanError, match="nulls must be 'mask', 'error' or a list of columns"):
            make(data, batch_size=4, nulls=wrong)


def test_a_transform_may_add_the_column_that_nulls_names(data):
    def adds(batch):
        return {**batch, "more": batch["id"]}

    with loader(data, batch_size=51, transform=adds, nulls=["more"]) as batches:
        [batch] = batches
    assert batch["more_valid"].all()
    typo = loader(data, batch_size=51, transform=adds, nulls=["mor"])
    with typo as batches, pytest.raises(ColumnNotFound, match="did you mean 'more'"):
        next(iter(batches))


def test_nulls_inside_of_lists_are_nulls():
    for values in ([["a", None], ["b"]], [{"x": 1, "y": None}], [[("k", None)]], [None, "a"]):
        with pytest.raises(SchemaError, match="column 'c' has a null"):
            as_tensors({"c": values}, nulls="error")
        with pytest.raises(SchemaError, match="column 'c' has a null"):
            as_tensors({"c": values, "d": np.arange(2)}, nulls=["d"])
        assert as_tensors({"c": values}, nulls="mask")["c"] == values
        assert "c_valid" in as_tensors({"c": values}, nulls=["c"])
    assert as_tensors({"c": [["a"], []]}, nulls="error") == {"c": [["a"], []]}


# -- decode="gpu" -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    fields = [
        penstock.UnischemaField("id", np.int64, (), ScalarCodec(), False),
        penstock.UnischemaField("image", np.uint8, (8, 8, 3), CompressedImageCodec("jpeg", 90), False),
    ]
    folder = tmp_path_factory.mktemp("pictures") / "data"
    rows = [{"id": i, "image": np.full((8, 8, 3), i, np.uint8)} for i in range(6)]
    penstock.write(rows, folder, schema=penstock.Unischema("Pictures", fields))
    return folder


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"transform": lambda batch: batch}, "transform="),
        ({"window": penstock.Window(length=2, by="id", max_gap=1)}, "window="),
        ({"pad": 0}, "pad="),
        ({"on_error": "skip"}, "on_error='skip'"),
    ],
)
def test_what_needs_pixels_on_the_cpu_keeps_them_there(pictures, options, word, monkeypatch):
    monkeypatch.setattr(penstock.torch.gpu, "why_not", lambda device: None)
    with pytest.warns(PenstockWarning, match=f"decode='gpu' is not possible: {word}") as seen:
        [batch] = loader(pictures, batch_size=6, decode="gpu", **options)
    assert batch["image"].shape[-3:] == (8, 8, 3)
    assert {one.filename for one in seen} == {__file__}


def test_options_that_leave_pictures_alone_do_not_need_the_cpu():
    assert why_cpu(LoaderOptions(4), ["image"]) is None
    assert why_cpu(LoaderOptions(4, pad={"image": 0}), ["image"])
    assert why_cpu(LoaderOptions(4, pad={"text": 0}, on_error="raise", transform=None), ["image"]) is None


def test_a_warning_of_the_plan_names_the_line_of_the_user(data):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        loader(data, batch_size=4, shuffle=True, lanes=1, shuffle_bytes=10).close()
        Batches(data, batch_size=4, shuffle=True, lanes=1, shuffle_bytes=10)
    assert [one.filename for one in seen if issubclass(one.category, PenstockWarning)] == [__file__] * 2


# -- states -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", FORMS)
def test_what_is_no_state_is_refused_with_words(data, device):
    with loader(data, batch_size=4, device=device) as batches:
        with pytest.raises(StateMismatch, match="no state of Penstock"):
            batches.load_state_dict({"a": 1})
        with pytest.raises(StateMismatch, match="a state is a dict"):
            batches.load_state_dict(None)
