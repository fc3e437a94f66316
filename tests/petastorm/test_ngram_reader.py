"""N-grams through readers and loaders: Petastorm's windows, windows across borders, shuffled, resumed, decoded once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.codecs import CompressedImageCodec, ScalarCodec
from penstock.errors import NotSorted
from penstock.petastorm import TransformSpec, make_batch_reader, make_reader
from penstock.petastorm.ngram import NGram
from penstock.petastorm.predicates import in_lambda
from penstock.testing import assert_resumes_exactly
from tests.depth import depth
from tests.petastorm.expected import rows, url

SCHEMA = penstock.Unischema(
    "Frames",
    [
        penstock.UnischemaField("time", np.int64, (), ScalarCodec(), False),
        penstock.UnischemaField("speed", np.float32, (), ScalarCodec(), False),
        penstock.UnischemaField("image", np.uint8, (4, 5, 3), CompressedImageCodec("png"), False),
    ],
)


def row(time):
    return {"time": time, "speed": np.float32(time / 2), "image": np.full((4, 5, 3), time % 251, np.uint8)}


@pytest.fixture
def frames(tmp_path):
    return write(tmp_path / "frames", [0, 1, 2, 5, 6, 7, 8, 20, 21, 22, 23, 24])


def write(path, times, group=4):
    penstock.write([row(time) for time in times], str(path), schema=SCHEMA, rows_per_file=group)
    return path


def ngram(**more):
    fields = {0: ["time", "image"], 1: ["time", "speed"], 2: [SCHEMA.time]}
    return NGram(fields, more.pop("threshold", 3), "time", **more)


def times(windows):
    return [[int(window[step].time) for step in sorted(window)] for window in windows]


def plain(listed, groups, rule):
    """All windows by the class's own plain twin, group by group."""
    found = []
    for first in range(0, len(listed), groups):
        windows = rule.form_ngram([row(t) for t in listed[first : first + groups]], SCHEMA)
        found += [[window[step]["time"] for step in sorted(window)] for window in windows]
    return found


@pytest.mark.parametrize("pool", ["thread", "dummy", "process"])
def test_windows_are_petastorms(frames, pool):
    with make_reader(frames, ngram(), shuffle_row_groups=False, reader_pool_type=pool, workers_count=2) as reader:
        found = list(reader)
        assert reader.ngram.length == 3
    assert times(found) == [[0, 1, 2], [1, 2, 5], [6, 7, 8], [21, 22, 23], [22, 23, 24]]
    assert times(found) == plain([0, 1, 2, 5, 6, 7, 8, 20, 21, 22, 23, 24], 4, ngram())
    assert found[0][0]._fields == ("time", "image")
    assert found[0][1]._fields == ("time", "speed")
    assert found[0][0].image.tolist() == row(0)["image"].tolist()
    assert found[0][1].speed == np.float32(0.5)


@settings(deadline=None, max_examples=depth(25, 300))
@given(
    gaps=st.lists(st.integers(0, 4), min_size=1, max_size=20), group=st.integers(1, 7), threshold=st.integers(0, 4),
    overlap=st.booleans(),
)  # fmt: skip
def test_windows_are_those_of_the_plain_twin(tmp_path_factory, gaps, group, threshold, overlap):
    listed = np.cumsum(gaps).tolist()
    data = write(tmp_path_factory.mktemp("frames") / "data", listed, group)
    rule = NGram({0: ["time"], 1: ["time"]}, threshold, "time", timestamp_overlap=overlap)
    with make_reader(data, rule, shuffle_row_groups=False, reader_pool_type="dummy") as reader:
        found = [[int(window[step].time) for step in (0, 1)] for window in reader]
    assert found == plain(listed, group, rule)


def test_windows_across_row_groups(frames):
    with make_reader(frames, ngram(span_row_groups=True), shuffle_row_groups=False) as reader:
        found = times(reader)
    assert found == [[0, 1, 2], [1, 2, 5], [2, 5, 6], [5, 6, 7], [6, 7, 8], [20, 21, 22], [21, 22, 23], [22, 23, 24]]


@pytest.mark.parametrize("options", [{}, {"shuffle_rows": True}, {"shuffle_row_drop_partitions": 2}])
@pytest.mark.parametrize("span", [False, True])
def test_shuffled_windows_come_once_each_and_resume_exactly(frames, options, span):
    def fresh():
        reader = make_reader(
            frames, ngram(span_row_groups=span), seed=3, num_epochs=2, reader_pool_type="dummy", **options
        )
        reader.close = reader.stop
        return reader

    with make_reader(frames, ngram(span_row_groups=span), shuffle_row_groups=False) as reader:
        stored = times(reader)
    with make_reader(frames, ngram(span_row_groups=span), seed=3, **options) as reader:
        assert len(reader) == len(stored)
        assert sorted(times(reader)) == stored
    assert_resumes_exactly(fresh, passes=1)


@pytest.mark.parametrize("span", [False, True])
def test_batches_of_windows(frames, span):
    with make_batch_reader(frames, ngram(span_row_groups=span), shuffle_row_groups=False, decode=True) as reader:
        found = list(reader)
    with make_reader(frames, ngram(span_row_groups=span), shuffle_row_groups=False) as reader:
        by_row = list(reader)
    for step in range(3):
        assert np.concatenate([batch[step].time for batch in found]).tolist() == [w[step].time for w in by_row]
    assert found[0][0].image.shape[1:] == (4, 5, 3)


def test_windows_shared_out_to_shards_come_once_each(frames):
    found = []
    for shard in range(3):
        with make_reader(frames, ngram(), seed=1, cur_shard=shard, shard_count=3) as reader:
            found += times(reader)
    with make_reader(frames, ngram(), seed=1) as reader:
        assert sorted(found) == sorted(times(reader))


def test_a_predicate_and_a_transform_come_before_the_windows(frames):
    how = {
        "predicate": in_lambda(["time"], _not_one),
        "transform_spec": TransformSpec(_double, edit_fields=[("speed", np.float64, (), False)]),
    }
    with make_reader(frames, ngram(threshold=5), shuffle_row_groups=False, **how) as reader:
        found = list(reader)
    assert times(found)[0] == [0, 2, 5]
    assert found[0][1].speed == 2.0
    assert found[0][1].speed.dtype == np.float64


def _not_one(time):
    return time != 1


def _double(values):
    return {**values, "speed": np.float64(values["speed"]) * 2}


def test_timestamps_that_go_back_are_an_error_naming_the_file(tmp_path):
    data = write(tmp_path / "frames", [3, 2, 1, 0])
    with pytest.raises(NotSorted, match=r"column 'time' in .*row group 0"):
        make_reader(data, ngram())


def test_no_overlap_does_not_go_with_drop_partitions(frames):
    with pytest.raises(NotImplementedError, match="without overlap"):
        make_reader(frames, ngram(timestamp_overlap=False), shuffle_row_drop_partitions=2)


@pytest.mark.parametrize("how", ["rows", "batches", "native"])
def test_a_frame_that_windows_share_is_decoded_once(tmp_path, monkeypatch, how):
    data = write(tmp_path / "frames", range(400), group=100)
    decoded = []
    codec = type(SCHEMA.image.codec)
    plain_decode = codec.decode_column
    monkeypatch.setattr(
        codec,
        "decode_column",
        lambda self, field, cells, out: (decoded.append(len(cells)), plain_decode(self, field, cells, out))[1],
    )
    if how == "native":
        window = penstock.Window(3, by="time", max_gap=1)
        batches = list(penstock.open(data).loader(batch_size=98, window=window))
        assert sum(len(batch["image"]) for batch in batches) == 4 * 98
    elif how == "rows":
        with make_reader(data, ngram()) as reader:
            assert len(list(reader)) == 4 * 98
    else:
        with make_batch_reader(data, ngram(), decode=True) as reader:
            assert sum(len(batch[0].time) for batch in reader) == 4 * 98
    assert sum(decoded) == 400


# -- the native face -------------------------------------------------------------------------------------------------


def test_native_windows_have_an_axis_of_time(frames):
    window = penstock.Window(3, by="time", max_gap=3, span_row_groups=True)
    with penstock.open(frames).loader(batch_size=3, window=window) as loader:
        batches = list(loader)
    assert [batch["time"].shape for batch in batches] == [(3, 3), (3, 3), (2, 3)]
    assert batches[0]["image"].shape == (3, 3, 4, 5, 3)
    assert np.concatenate([batch["time"] for batch in batches])[2].tolist() == [2, 5, 6]
    assert batches[0]["image"][1, 2].tolist() == row(5)["image"].tolist()


def test_native_windows_with_columns_for_each_step_and_a_transform(frames):
    window = penstock.Window(3, by="time", max_gap=3, columns={0: ["image", "time"], 2: ["time"]}, stride=2)
    loader = penstock.open(frames).loader(batch_size=2, window=window, transform=_shapes)
    batch = next(iter(loader))
    assert {name: values.tolist() for name, values in batch.items()} == {"image": [[1, 4, 5, 3]] * 2, "time": [[2]] * 2}


def _shapes(batch):
    return {name: np.array([one.shape for one in values]) for name, values in batch.items()}


@pytest.mark.parametrize("shuffle", [False, "groups", True])
def test_native_windows_resume_exactly(frames, shuffle):
    ds = penstock.open(frames)
    window = penstock.Window(2, by="time", max_gap=3, span_row_groups=True)
    assert_resumes_exactly(lambda: ds.loader(batch_size=2, window=window, shuffle=shuffle, seed=5), passes=2)


def test_petastorms_own_frames_form_windows():
    stored = sorted(rows("timed"))
    with make_reader(url("timed"), NGram({0: ["timestamp"], 1: ["timestamp"]}, 10**9, "timestamp")) as reader:
        for window in reader:
            assert stored.index(int(window[1].timestamp)) == stored.index(int(window[0].timestamp)) + 1
