"""Transforms: what they may do, how their mistakes are told, and that a batch is the user's own."""

from __future__ import annotations

import functools
import itertools
import threading

import numpy as np
import pytest

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec
from penstock.engine import build
from penstock.engine.randomness import transform_wants
from penstock.errors import PlanError, TransformError
from penstock.testing import assert_resumes_exactly, assert_same, make_parquet, mixed
from tests.engine.make import ids, save

POOLS = ["thread", "serial", "process"]
IN_THIS_PROCESS = ["thread", "serial"]


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    return penstock.open(make_parquet(tmp_path_factory.mktemp("transform") / "data"))


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return penstock.open(make_parquet(tmp_path_factory.mktemp("transform") / "mixed", columns=mixed))


# Functions of the process pool are found by name, so they stand at the top of the module.


def reshaped(batch):
    """Add, drop and reshape columns."""
    n = len(batch["id"])
    image = np.repeat(batch["value"], 6).reshape(n, 2, 3)
    return {"twice": batch["id"] * 2, "image": image, "words": [f"w{i}" for i in batch["id"]], "id": batch["id"]}


def odd_results(batch):
    """Columns that are not plain arrays: records, Fortran order, subclasses, objects, tuples, dates."""
    n = len(batch["id"])
    records = np.zeros(n, [("a", np.int32), ("b", np.float64, (2,))])
    records["a"] = batch["id"]
    return {
        "id": batch["id"],
        "records": records,
        "fortran": np.asfortranarray(np.arange(n * 4.0).reshape(n, 2, 2)),
        "objects": np.array([{"id": int(i)} for i in batch["id"]], object),
        "tuple": tuple(batch["id"].tolist()),
        "dates": batch["id"].astype("M8[D]"),
        "masked": np.ma.MaskedArray(batch["id"], batch["id"] % 2 == 0, fill_value=-5),
        "narrow": np.zeros((n, 0), np.int16),
        "text": np.array([f"row {i}" for i in batch["id"]]),
    }


def noisy(batch, rng):
    return {"id": batch["id"], "noise": rng.random(len(batch["id"]))}


def noisy_by_row(batch, positions):
    noise = [np.random.default_rng(int(p)).random() for p in positions]
    return {"id": batch["id"], "noise": np.array(noise), "position": positions}


def both(batch, *, positions, rng):
    return {"first": positions[:1].repeat(len(positions)), "noise": rng.integers(0, 1 << 40, len(positions))}


def drops_a_row(batch):
    return {name: values[:-1] for name, values in batch.items()}


def gives_a_list(batch):
    return [batch["id"]]


def gives_a_number(batch):
    return {"id": batch["id"], "mean": float(batch["value"].mean())}


def fails_on_21(batch):
    if 21 in batch["id"]:
        raise ZeroDivisionError("a row I do not like")
    return batch


def stops_on_21(batch):
    if 21 in batch["id"]:
        raise StopIteration
    return batch


class CannotTravel(Exception):
    """An error whose copy cannot be made from its arguments."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def fails_oddly(batch):
    raise CannotTravel("this", "that")


def adds_a_thousand(batch):
    """Write into the batch, in place."""
    batch["id"] += 1000
    batch["value"][...] = -1
    return batch


@pytest.mark.parametrize("pool", POOLS)
def test_columns_may_be_added_dropped_and_reshaped(ds, pool):
    with ds.loader(batch_size=7, transform=reshaped, pool=pool, workers=1) as loader:
        batches = list(loader)
    assert ids(batches) == list(range(51))
    for batch in batches:
        assert list(batch) == ["twice", "image", "words", "id"]
        assert batch["twice"].tolist() == (batch["id"] * 2).tolist()
        assert batch["image"].shape == (len(batch["id"]), 2, 3)
        assert (batch["image"] == (batch["id"] / 2)[:, None, None]).all()
        assert batch["words"] == [f"w{i}" for i in batch["id"]]


def test_any_column_comes_back_from_a_process_as_it_is_in_a_thread(ds):
    with (
        ds.loader(batch_size=7, transform=odd_results) as here,
        ds.loader(batch_size=7, transform=odd_results, pool="process", workers=1) as there,
    ):
        for one, other in zip(here, there, strict=True):
            assert_same(one, other)
            assert one["masked"].fill_value == other["masked"].fill_value == -5


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_generator_depends_on_seed_epoch_and_place_only(ds, pool, shuffle):
    options = {"batch_size": 8, "shuffle": shuffle, "epochs": 2, "transform": noisy}
    with ds.loader(seed=1, pool="serial", **options) as loader:
        base = list(loader)
    with ds.loader(seed=1, pool=pool, workers=2, **options) as loader:
        assert_same(base, list(loader))
    with ds.loader(seed=2, pool="serial", **options) as loader:
        other = list(loader)
    assert not any((a["noise"] == b["noise"]).all() for a, b in zip(base, other, strict=True))
    draws = [tuple(batch["noise"].tolist()) for batch in base]
    assert len(set(draws)) == len(draws), "two batches have the same noise"


@pytest.mark.parametrize("transform", [noisy, noisy_by_row, both])
@pytest.mark.parametrize("shuffle", [False, "groups", True])
def test_augmentation_repeats_exactly_after_a_resume(ds, shuffle, transform):
    assert_resumes_exactly(lambda: ds.loader(batch_size=9, shuffle=shuffle, transform=transform, workers=2))


def test_positions_make_augmentation_exact_under_any_world(ds):
    def noise_of(world, size):
        found = {}
        for rank in range(world):
            options = {"shuffle": True, "remainder": "uneven", "rank": rank, "world": world}
            with ds.loader(batch_size=size, transform=noisy_by_row, **options) as loader:
                found |= {int(i): float(x) for b in loader for i, x in zip(b["id"], b["noise"], strict=True)}
        return found

    assert noise_of(1, 8) == noise_of(3, 5) == noise_of(7, 2)


def test_rng_is_the_pinned_generator_of_the_batch(ds):
    # Resumed runs repeat their augmentation across versions: change this only with a new order name.
    with ds.loader(batch_size=10, seed=7, epochs=2, transform=both) as loader:
        batches = list(loader)
    for number, batch in enumerate(batches):
        epoch, first = number // 6, number % 6 * 10
        assert batch["first"][0] == first
        rng = np.random.Generator(np.random.Philox(key=[7, epoch], counter=[0, first, 0, 2]))
        assert batch["noise"].tolist() == rng.integers(0, 1 << 40, len(batch["first"])).tolist()


def test_an_argument_that_a_partial_binds_is_the_users(ds):
    given = np.random.default_rng(0)
    own = functools.partial(both, rng=given)
    assert transform_wants(own) == {"positions"}
    found = next(iter(ds.loader(batch_size=10, pool="serial", transform=own)))
    assert found["noise"].tolist() == np.random.default_rng(0).integers(0, 1 << 40, 10).tolist()


def test_a_transform_must_not_return_the_mask_of_padding(ds):
    loader = ds.loader(batch_size=10, remainder="pad", transform=lambda batch: {**batch, "_valid": batch["id"]})
    with pytest.raises(TransformError, match=r"'_valid'.*another name"):
        next(iter(loader))


def test_every_seed_has_generators_of_its_own(ds):
    seeds = [0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1]
    noise = {tuple(next(iter(ds.loader(batch_size=10, seed=seed, transform=both)))["noise"]) for seed in seeds}
    assert len(noise) == len(seeds)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    ("transform", "wrong"),
    [
        (drops_a_row, r"may change columns, not rows: column 'id' has 4 rows, the batch has 5"),
        (gives_a_list, r"must return a dict of columns; got list"),
        (gives_a_number, r"must return columns of 5 rows; column 'mean' is of type float"),
    ],
)
def test_a_broken_contract_is_told_with_the_rows(ds, pool, transform, wrong):
    with ds.loader(batch_size=5, transform=transform, pool=pool, workers=1) as loader:
        with pytest.raises(TransformError, match=wrong) as caught:
            list(loader)
        assert "part-00000.parquet, row group 0, rows 0 to 4" in str(caught.value)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_names_its_rows_and_comes_after_every_batch_before_it(ds, pool, workers):
    with ds.loader(batch_size=4, transform=fails_on_21, pool=pool, workers=workers) as loader:
        got = []
        with pytest.raises(TransformError, match="ZeroDivisionError: a row I do not like") as caught:
            got.extend(loader)
        assert ids(got) == list(range(20))
        state = save(loader)
    # Rows 20 to 23 are row 3, 4, ... of the row group of 13 rows in the fourth file.
    assert "part-00003.parquet, row group 1, rows 1 to 4" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with ds.loader(batch_size=4) as loader:
        loader.load_state_dict(state)
        assert ids(loader) == list(range(20, 51))


@pytest.mark.parametrize("pool", POOLS)
def test_a_stray_stop_iteration_does_not_end_the_epoch_silently(ds, pool):
    loader = ds.loader(batch_size=4, transform=stops_on_21, pool=pool, workers=1)
    with loader, pytest.raises(TransformError, match="the transform raised StopIteration"):
        list(loader)


@pytest.mark.parametrize("pool", POOLS)
def test_an_error_that_cannot_be_pickled_is_told_too(ds, pool):
    loader = ds.loader(batch_size=4, transform=fails_oddly, pool=pool, workers=1)
    with loader, pytest.raises(TransformError, match=r"CannotTravel: this and that; in .*part-00000"):
        list(loader)


def test_an_error_in_a_process_shows_where_it_happened(ds):
    loader = ds.loader(batch_size=4, transform=fails_on_21, pool="process", workers=1)
    with loader, pytest.raises(TransformError) as caught:
        list(loader)
    assert 'raise ZeroDivisionError("a row I do not like")' in "\n".join(caught.value.__cause__.__notes__)


def test_a_lambda_travels_by_cloudpickle_or_is_refused_with_the_cure(ds, monkeypatch):
    by_lambda = {"batch_size": 10, "transform": lambda batch: {"id": batch["id"] + 1}, "pool": "process", "workers": 1}
    monkeypatch.setitem(__import__("sys").modules, "cloudpickle", None)
    with pytest.raises(PlanError, match=r"cannot be pickled.*top level of a module, pip install cloudpickle"):
        ds.loader(**by_lambda)
    monkeypatch.undo()
    pytest.importorskip("cloudpickle")
    with ds.loader(**by_lambda) as loader:
        assert ids(loader) == list(range(1, 52))


def test_what_is_no_function_is_refused(ds):
    with pytest.raises(PlanError, match="function of the batch, or a list of such functions; got dict"):
        ds.loader(batch_size=4, transform={})


# -- several functions ----------------------------------------------------------------------------------------------


def doubles(batch):
    return {"id": batch["id"] * 2}


def adds_noise(batch, rng, positions):
    return {**batch, "noise": rng.random(len(batch["id"])), "at": positions}


def adds_more_noise(batch, rng):
    return {**batch, "more": rng.random(len(batch["id"]))}


@pytest.mark.parametrize("pool", POOLS)
def test_functions_of_a_list_are_called_in_order(ds, pool):
    with ds.loader(batch_size=10, transform=[doubles, adds_noise, adds_more_noise], pool=pool) as loader:
        batches = list(loader)
    assert ids(batches) == list(range(0, 102, 2))
    assert [at for batch in batches for at in batch["at"].tolist()] == list(range(51))


def test_each_function_of_a_list_draws_numbers_of_its_own_that_repeat(ds):
    chosen = {"batch_size": 10, "shuffle": True, "seed": 3, "transform": (adds_noise, adds_more_noise)}
    with ds.loader(**chosen) as loader:
        first = list(loader)
    assert not any((batch["noise"] == batch["more"]).any() for batch in first)
    with ds.loader(**chosen, workers=1) as loader:
        assert_same(list(loader), first)
    with ds.loader(**{**chosen, "transform": adds_noise}) as loader:  # the first of a list draws as one alone does
        assert all((a["noise"] == b["noise"]).all() for a, b in zip(loader, first, strict=True))


def test_a_list_of_transforms_resumes_exactly(ds):
    assert_resumes_exactly(
        lambda: ds.loader(batch_size=7, shuffle=True, epochs=2, transform=[doubles, adds_noise, adds_more_noise])
    )


def test_an_error_names_the_function_of_the_list(ds):
    def breaks(batch):
        raise ZeroDivisionError("no")

    with pytest.raises(TransformError, match=r"transform 2 of 2 \(breaks\) raised ZeroDivisionError: no; in .*row"):
        list(ds.loader(batch_size=10, transform=[doubles, breaks]))
    with pytest.raises(TransformError, match=r"transform 1 of 2 \(gives_a_list\) must return a dict of columns"):
        list(ds.loader(batch_size=10, transform=[gives_a_list, doubles]))


def test_an_empty_list_changes_nothing_and_a_list_holds_functions_only(ds):
    with ds.loader(batch_size=10, transform=[]) as loader:
        assert ids(loader) == list(range(51))
    for wrong in ([doubles, 3], [penstock.TransformSpec(doubles)]):
        with pytest.raises(PlanError, match="a list of such functions; got"):
            ds.loader(batch_size=10, transform=wrong)


def test_a_transform_may_be_any_callable(ds):
    class Adds:
        def __init__(self, what):
            self.what = what

        def __call__(self, batch, positions):
            return {"id": batch["id"] + self.what + 0 * positions}

    with ds.loader(batch_size=10, transform=Adds(5)) as loader:
        assert ids(loader) == list(range(5, 56))
    with ds.loader(batch_size=10, transform=dict) as loader:  # takes the batch alone, and has no signature
        assert ids(loader) == list(range(51))


# -- a batch is the user's own --------------------------------------------------------------------------------------


def arrays_of(value):
    """All arrays inside a column: itself, or those of a list of rows."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [value]
    return [row for row in value if isinstance(row, np.ndarray) and not row.dtype.hasobject]


def scribble(batch):
    """Overwrite every number of a batch, masks included."""
    for value in batch.values():
        for array in arrays_of(value):
            if isinstance(array, np.ma.MaskedArray):
                array.data[...] = np.zeros((), array.dtype)
                array.mask[...] = True
            else:
                array[...] = np.zeros((), array.dtype)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("shuffle", [False, "groups", True])
@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_writing_into_a_batch_changes_no_other(many, pool, shuffle, remainder):
    options = {"batch_size": 4, "shuffle": shuffle, "epochs": 3, "remainder": remainder, "rank": 1, "world": 2}
    with many.loader(pool="serial", **options) as loader:
        base = list(loader)
    with many.loader(pool=pool, workers=2, **options) as loader:
        for want, batch in zip(base, loader, strict=True):
            assert_same(want, batch)
            scribble(batch)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_batch_that_is_kept_stays_as_it_was(many, pool, shuffle):
    with many.loader(batch_size=3, shuffle=shuffle, epochs=4, pool="serial") as loader:
        base = list(loader)
    with many.loader(batch_size=3, shuffle=shuffle, epochs=4, pool=pool, workers=2) as loader:
        kept = list(itertools.islice(loader, 5, 30, 3))
    assert_same(kept, base[5:30:3])


@pytest.mark.parametrize("pool", IN_THIS_PROCESS)
@pytest.mark.parametrize("shuffle", [False, "groups", True])
def test_a_transform_may_write_in_place(ds, pool, shuffle):
    with ds.loader(batch_size=4, shuffle=shuffle, epochs=3, pool=pool, transform=adds_a_thousand, workers=3) as loader:
        assert sorted(ids(loader)) == sorted(list(range(1000, 1051)) * 3)


def test_a_transform_in_place_does_not_reach_an_epoch_that_is_still_being_gathered(tmp_path, monkeypatch):
    one_group = penstock.open(make_parquet(tmp_path, [[40]]))
    written, plain = threading.Event(), build.gather

    def slow(rows, *args, **more):
        if not getattr(rows, "views", True):
            written.wait(0.3)  # the first epoch, which copies, is late: the last one, which may lend views, is done
        return plain(rows, *args, **more)

    def write(batch):
        adds_a_thousand(batch)
        written.set()
        return batch

    monkeypatch.setattr(build, "gather", slow)
    with one_group.loader(batch_size=40, epochs=2, workers=2, transform=write) as loader:
        assert ids(loader) == list(range(1000, 1040)) * 2


@pytest.mark.parametrize("shuffle", [False, True])
def test_columns_of_one_batch_share_no_memory(many, shuffle):
    with many.loader(batch_size=10, shuffle=shuffle) as loader:
        for batch in loader:
            arrays = [array for value in batch.values() for array in arrays_of(value) if array.size]
            for a, b in itertools.combinations(arrays, 2):
                assert not np.shares_memory(a, b)
            assert all(array.flags.writeable for array in arrays)


def test_partition_columns_are_writable_too(tmp_path):
    penstock.write({"id": np.arange(30), "part": np.arange(30) // 10}, tmp_path / "p", partition_by="part")
    parts = penstock.open(tmp_path / "p")
    for shuffle in (False, True):
        with parts.loader(batch_size=10, shuffle=shuffle, epochs=2) as loader:
            for batch in loader:
                assert (batch["part"] == batch["id"] // 10).all()
                batch["part"][0] = 99
                batch["part"][1:] = 98


@pytest.mark.parametrize("pool", POOLS)
def test_rows_of_variable_shape_are_writable_too(tmp_path, pool):
    class ReadOnly(NdarrayCodec):
        def decode_list(self, field, cells):
            values = super().decode_list(field, cells)
            for value in values:
                value.flags.writeable = False
            return values

    shapes = {"npy": NdarrayCodec(), "npz": CompressedNdarrayCodec(), "png": CompressedImageCodec("png")}
    fields = [UnischemaField(name, np.uint8, (None, None), codec, False) for name, codec in shapes.items()]
    rows = [dict.fromkeys(shapes, np.full((2 + i, 3), i, np.uint8)) for i in range(6)]
    penstock.write(rows, tmp_path / "x", Unischema("S", fields))
    free = penstock.open(tmp_path / "x")
    for _ in range(2):
        with free.loader(batch_size=3, epochs=2, pool=pool, workers=1) as loader:
            for number, batch in enumerate(loader):
                for name, i in itertools.product(shapes, range(3)):
                    assert (batch[name][i] == number % 2 * 3 + i).all()
                    batch[name][i][...] = 77
    if pool == "thread":
        own = [UnischemaField("npy", np.uint8, (None, None), ReadOnly(), False)]
        with penstock.open(tmp_path / "x", schema=Unischema("S", own)).loader(batch_size=3) as loader:
            next(iter(loader))["npy"][0][...] = 77
