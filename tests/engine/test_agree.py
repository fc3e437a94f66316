"""Columns of a mix: the same in every batch, nulls where a loader has none, errors that name what differs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.errors import SchemaError
from penstock.testing import assert_same, make_parquet, mixed
from tests.engine.mixes import make, run, three_sets


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return three_sets(tmp_path_factory.mktemp("mix"))


def parquet(folder, **columns):
    penstock.write(columns, folder)
    return penstock.open(folder)


def test_different_columns_are_an_error_that_names_them(tmp_path):
    one = parquet(tmp_path / "1", a=np.arange(3), b=np.arange(3), c=np.arange(3))
    two = parquet(tmp_path / "2", a=np.arange(3), z=np.arange(3))
    with pytest.raises(SchemaError, match=r"loader 0 lacks 'z'; loader 1 lacks 'b', 'c'; .*missing='null'"):
        make([one, two])


def test_columns_come_in_the_order_of_the_first_loader(tmp_path):
    one = parquet(tmp_path / "1", a=np.arange(3), b=np.arange(3))
    two = parquet(tmp_path / "2", b=np.arange(3), a=np.arange(3) + 10)
    with make([one, two], stop="all") as mix:
        assert mix.columns == ("a", "b")
        assert [list(batch) for batch in mix] == [["a", "b"]] * 2


def test_absent_columns_come_as_nulls_like_a_loader_gives_them(tmp_path):
    """The twin: the same columns, all null, read by a loader."""
    types = {name: column.type for name, column in mixed(np.arange(20)).items()}
    if int(pa.__version__.split(".")[0]) < 16:  # such a pyarrow does not read null lists of fixed size
        types = {name: kind for name, kind in types.items() if not pa.types.is_fixed_size_list(kind)}

    def nulls(rows):
        return {name: pa.array(rows) if name == "id" else pa.nulls(len(rows), kind) for name, kind in types.items()}

    full = penstock.open(make_parquet(tmp_path / "full", [(20,)], columns=mixed)).select(list(types))
    empty = penstock.open(make_parquet(tmp_path / "null", [(6,)], columns=nulls))
    bare = empty.select(["id"])
    with make([full, bare], missing="null", stop="all", shuffle=False) as mix, empty.loader(batch_size=4) as loader:
        assert mix.columns == full.columns
        got = [batch for batch in mix if mix.source == 1]
        for batch, expected in zip(got, loader, strict=True):
            assert_same(batch, expected)


def test_absent_arrays_of_a_codec_are_masked_and_ragged_ones_none(tmp_path):
    ragged = np.empty(5, object)
    ragged[:] = [np.zeros((i, 2), np.int16) for i in range(5)]
    schema = penstock.Unischema(
        "S",
        [
            penstock.UnischemaField("id", np.int64, (), None, False),
            penstock.UnischemaField("image", np.uint8, (2, 3), penstock.codecs.NdarrayCodec(), False),
            penstock.UnischemaField("ragged", np.int16, (None, 2), penstock.codecs.NdarrayCodec(), False),
        ],
    )
    rows = [{"id": i, "image": np.full((2, 3), i, np.uint8), "ragged": ragged[i]} for i in range(5)]
    penstock.write(rows, tmp_path / "1", schema=schema)
    one, two = penstock.open(tmp_path / "1"), parquet(tmp_path / "2", id=np.arange(3))
    with make([one, two], missing="null", stop="all") as mix:
        batch = next(batch for batch in mix if mix.source == 1)
    assert (batch["image"].shape, batch["image"].dtype) == ((3, 2, 3), np.uint8)
    assert batch["image"].mask.all()
    assert batch["ragged"] == [None] * 3
    with make([one, two], missing="null", stop="all", each=({"pad": -1}, {})) as mix:
        batch = next(batch for batch in mix if mix.source == 1)
    assert (batch["ragged"].shape, batch["ragged"].dtype) == ((3, 0, 2), np.int16)


def test_rows_of_a_loader_that_does_not_pad_are_valid(sets):
    each = ({"remainder": "pad"}, {"remainder": "drop"})
    with pytest.raises(SchemaError, match="remainder='pad' or none"):
        make(sets[:2], each=each)
    with make(sets[:2], each=each, missing="null", stop="all", batch_size=5) as mix:
        for batch in mix:
            assert batch["_valid"].dtype == np.bool_
            assert len(batch["_valid"]) == len(batch["id"])
            assert mix.source == 0 or batch["_valid"].all()


def add_column(batch):
    return {**batch, "extra": np.stack([batch["half"]] * 2, axis=1), "words": ["x"] * len(batch["id"])}


def test_the_columns_of_a_transform_are_found_out_when_the_mix_is_made(sets):
    each = ({}, {"transform": add_column})
    with pytest.raises(SchemaError, match="loader 0 lacks 'extra', 'words'"):
        make(sets[:2], each=each)
    with make(sets[:2], each=each, missing="null", stop="all") as mix:
        for batch in mix:
            assert batch["extra"].shape == (len(batch["id"]), 2)
            assert batch["extra"].dtype == np.float32
            hidden = np.ma.getmaskarray(batch["extra"])
            assert hidden.all() if mix.source == 0 else not hidden.any()
            assert batch["words"] == [None if mix.source == 0 else "x"] * len(batch["id"])


def test_a_transform_may_take_rng_and_positions(sets):
    def jitter(batch, rng, positions):
        return {**batch, "half": batch["half"] + rng.random(len(positions), np.float32)}

    with make(sets[:2], each=({}, {"transform": jitter}), stop="all") as mix:
        assert mix.columns == ("id", "half")
        assert len(run(mix)) == 11


def test_a_transform_that_fails_says_which_loader(sets):
    with pytest.raises(SchemaError, match=r"loader 1 of the mix has a transform.* division by zero"):
        make(sets[:2], each=({}, {"transform": lambda batch: 1 / 0 if batch else {}}))


def test_a_transform_whose_columns_change_is_an_error(sets):
    def odd(batch):
        return batch if 1000 in batch["id"] else {**batch, "surprise": batch["id"]}

    with make(sets[:2], each=({}, {"transform": odd}), stop="all") as mix, pytest.raises(SchemaError, match="surprise"):
        run(mix)


def test_a_column_without_nulls_is_refused_by_name(sets):
    class Tensor:
        def __init__(self, values):
            self.values = values

        def __len__(self):
            return len(self.values)

    each = ({}, {"transform": lambda batch: {**batch, "t": Tensor(batch["id"])}})
    with (
        make(sets[:2], each=each, missing="null", stop="all") as mix,
        pytest.raises(SchemaError, match="'t' is a Tensor"),
    ):
        run(mix)


def test_dtypes_may_differ_between_loaders(tmp_path):
    one = parquet(tmp_path / "1", x=np.arange(3, dtype=np.int32))
    two = parquet(tmp_path / "2", x=np.arange(3, dtype=np.float64))
    with make([one, two], stop="all") as mix:
        assert {(mix.source, batch["x"].dtype.str) for batch in mix} == {(0, "<i4"), (1, "<f8")}


# -- one type in every batch ------------------------------------------------------------------------------------------


def noise(folder, values):
    table = {"x": pa.array(range(40))} | ({} if values is None else {"noise": pa.array(values, pa.float64())})
    return penstock.open(make_parquet(folder, [(40,)], columns=lambda rows: table))


def test_a_column_is_masked_in_every_batch_of_a_mix_or_in_none(tmp_path):
    full, nulls, bare = (
        noise(tmp_path / name, values)
        for name, values in (("full", [0.5] * 40), ("nulls", [None, 1.0] * 20), ("bare", None))
    )
    double = {"transform": lambda batch: {**batch, "x": batch["x"] * 2}}
    options = {"missing": "null", "stop": "all", "batch_size": 8}
    for sets, expected in (
        ((full, full), np.ndarray),
        ((full, nulls), np.ma.MaskedArray),
        ((full, bare), np.ma.MaskedArray),
    ):
        for each in (({}, {}), (double, {}), (double, double)):
            with make(list(sets), each=each, **options) as mix:
                batches = list(mix)
            assert {type(batch["noise"]) for batch in batches} == {expected}
            assert {type(batch["x"]) for batch in batches} == {np.ndarray}
            values = [value for batch in batches for value in batch["noise"].tolist()]
            assert (values.count(0.5), values.count(None)) == (
                sum(one is full for one in sets) * 40,
                {nulls: 20, bare: 40}.get(sets[1], 0),
            )


def test_a_mix_inside_a_mix_masks_the_same_columns(tmp_path):
    full, nulls = noise(tmp_path / "full", [0.5] * 40), noise(tmp_path / "nulls", [None, 1.0] * 20)
    inner = penstock.mix([(ds.loader(batch_size=8), 1.0) for ds in (full, nulls)], stop="all")
    with penstock.mix([(inner, 1.0), (full.loader(batch_size=8), 1.0)], stop="all") as mix:
        assert {type(batch["noise"]) for batch in mix} == {np.ma.MaskedArray}
