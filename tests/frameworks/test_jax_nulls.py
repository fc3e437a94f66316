"""`penstock.jax`: what becomes of nulls, names that are not there, and a batch that cannot be handed over."""

from __future__ import annotations

import json

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

import penstock  # noqa: E402
from penstock.errors import ColumnNotFound, LoaderClosed, PlanError, SchemaError, TransformError  # noqa: E402
from penstock.jax import loader  # noqa: E402
from penstock.schema.transform import TransformSpec  # noqa: E402
from tests.frameworks.test_jax import run  # noqa: E402


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Two files; rows 0 and 2 of the first have nulls, the second has none."""
    where = tmp_path_factory.mktemp("jax") / "nulls"
    where.mkdir()
    for number in range(2):
        holes = number == 0
        table = {
            "id": pa.array(range(8 * number, 8 * number + 8), pa.int32()),
            "ni": pa.array([None if holes and row in (0, 2) else row for row in range(8)], pa.int32()),
            "full": pa.array(range(8), pa.int32()),
            "when": pa.array([None if holes and row == 0 else row for row in range(8)], pa.timestamp("us")),
            "text": pa.array([None if holes and row == 1 else f"t{row}" for row in range(8)]),
            "numbers": pa.array([[1, None] if holes and row == 3 else [row] for row in range(8)]),
            "words": pa.array([["a", None] if holes and row == 3 else ["b"] for row in range(8)]),
            "pairs": pa.array([[[1], None] if holes and row == 3 else [[2]] for row in range(8)]),
        }
        pq.write_table(pa.table(table), where / f"{number}.parquet")
    return str(where)


def only(url, **options):
    with loader(url, batch_size=16, **options) as ours:
        [batch] = list(ours)
    return batch


# -- several processes ------------------------------------------------------------------------------------------------


def static(url, **options):
    """Choose the masks as for arrays that span processes."""
    from penstock.jax._convert import choose

    dataset = penstock.open(url)
    nulls = options.pop("nulls", "mask")
    return choose(nulls, dataset.loader(batch_size=4, **options), same=True)


def test_processes_that_form_one_array_have_the_same_columns(url):
    masks = static(url)
    assert masks.always == {"ni", "when"}  # by the footers; lists and texts are on the host, where None says it
    assert masks.refuse
    assert static(url, nulls="error").always == frozenset()
    assert static(url, nulls=["full"]).always == {"full"}


def test_a_transform_keeps_the_masks_of_columns_that_may_be_null(url):
    def fill(batch):
        return {"ni": batch["ni"].filled(0), "new": batch["id"]}

    assert "ni" in static(url, transform=fill).always
    spec = TransformSpec(
        lambda row: row, edit_fields=[("new", np.int32, (), True)], selected_fields=["id", "ni", "full", "new"]
    )
    assert static(url, transform=spec).always == {"ni", "new"}


def test_padded_columns_have_no_mask(tmp_path):
    pq.write_table(pa.table({"x": pa.array([[1], None]), "y": pa.array([1, None])}), tmp_path / "a.parquet")
    assert static(tmp_path, pad=0).always == {"y"}


def test_the_columns_of_a_batch_do_not_depend_on_its_rows(url):
    from penstock.jax._convert import Convert, Layout

    convert = Convert(Layout.of(None), static(url))
    with penstock.open(url).loader(batch_size=4) as plain:
        names = {tuple(convert(batch)) for batch in plain}
    assert len(names) == 1
    assert {"ni_valid", "when_valid"} <= set(*names)
    with pytest.raises(SchemaError, match=r"(?s)column 'other' has nulls.*same columns in every process"):
        convert({"other": np.ma.masked_array([1, 2], [True, False])})


def test_two_processes_compute_with_columns_that_hold_nulls(url):
    code = """
        rows = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d"))
        total = jax.jit(lambda batch: sum((v * 1).sum() for v in batch.values()))
        options = dict(batch_size=4, drop_last=True, columns=["id", "ni"])
        with loader(folder, sharding=rows, **options) as ours:
            found = [(list(batch), int(total(batch))) for batch in ours]
        with loader(folder, sharding={"id": rows, "ni": rows}, **options) as ours:
            spans = {name: len(v.sharding.device_set) for name, v in next(iter(ours)).items()}
        print(json.dumps([found, spans]))
    """
    results = run(code, devices=2, processes=2, argument=url)
    ids = [sum([*range(4), *range(8, 12)]), sum([*range(4, 8), *range(12, 16)])]
    values = [1 + 3 + sum(range(4)), 2 * sum(range(4, 8))]
    valid = [6, 8]
    for found, spans in results:
        assert [names for names, _ in found] == [["id", "ni", "ni_valid"]] * 2
        assert [total for _, total in found] == [sum(parts) for parts in zip(ids, values, valid, strict=True)]
        assert spans == {"id": 4, "ni": 4, "ni_valid": 4}  # a mask lies where its column does


# -- nulls= -----------------------------------------------------------------------------------------------------------


def test_names_that_are_not_there_are_told(url):
    with pytest.raises(ColumnNotFound, match=r"nulls= names 'nii', which is no column; did you mean 'ni'"):
        loader(url, batch_size=4, nulls=["nii"])
    with pytest.raises(ColumnNotFound, match=r"sharding= names the column 'idd'; did you mean 'id'"):
        loader(url, batch_size=4, sharding={"idd": jax.devices()[0]})
    with pytest.raises(PlanError, match="'mask', 'error' or a list of columns; got None"):
        loader(url, batch_size=4, nulls=None)


def test_names_that_a_transform_does_not_give_are_told_with_its_first_batch(url):
    def rename(batch):
        return {"other": batch["id"]}

    for options in ({"nulls": ["othr"]}, {"sharding": {"othr": jax.devices()[0]}}):
        with (
            loader(url, batch_size=4, transform=rename, **options) as ours,
            pytest.raises(ColumnNotFound, match=r"'othr'; did you mean 'other'"),
        ):
            next(iter(ours))
    place = {"other": jax.devices()[0]}
    assert list(only(url, transform=rename, nulls=["other"], sharding=place)) == ["other", "other_valid"]


def test_a_mask_may_be_named_in_a_sharding(url):
    place = dict.fromkeys(["ni", "ni_valid", "_valid"], jax.devices()[0])
    assert list(only(url, columns=["ni"], sharding=place)) == ["ni", "ni_valid"]


@pytest.mark.parametrize("column", ["ni", "when", "text", "numbers", "words", "pairs"])
@pytest.mark.parametrize("nulls", ["error", ["full"]])
def test_any_null_is_an_error_where_nulls_are_refused(url, column, nulls):
    with pytest.raises(SchemaError, match=f"column '{column}' has nulls"):
        only(url, columns=[column, "full"], nulls=nulls)
    assert only(url, columns=[column, "full"], nulls=nulls, filters=[("id", ">=", 8)]).keys() >= {column}


@pytest.mark.parametrize("column", ["ni", "when", "text", "numbers", "full"])
def test_a_named_column_has_its_mask_in_every_batch(url, column):
    with loader(url, batch_size=8, columns=[column], nulls=[column]) as ours:
        first, second = list(ours)
    assert list(first) == list(second) == [column, f"{column}_valid"]
    assert isinstance(first[f"{column}_valid"], jax.Array)
    assert second[f"{column}_valid"].tolist() == [True] * 8
    rows = {"ni": [0, 2], "when": [0], "text": [1]}.get(column, [])  # of a list: whether there is one
    assert np.flatnonzero(~np.asarray(first[f"{column}_valid"])).tolist() == rows


def test_below_the_mask_of_a_transform_is_what_ours_have(url):
    def masks(batch):
        hide = np.arange(16) < 2
        return {"a": np.ma.masked_array(batch["id"], hide), "b": np.ma.masked_array(batch["id"], hide, fill_value=-1)}

    batch = only(url, transform=masks)
    assert batch["a"].tolist()[:3] == [0, 0, 2]
    assert batch["b"].tolist()[:3] == [-1, -1, 2]


def test_a_big_endian_array_of_a_transform_is_converted(url):
    def swap(batch):
        return {"a": batch["id"].astype(">i4"), "b": batch["id"].astype(">f8"), "c": batch["ni"].astype(">i2")}

    batch = only(url, transform=swap)
    assert [str(batch[name].dtype) for name in "abc"] == ["int32", "float32", "int16"]
    assert batch["a"].tolist() == batch["b"].tolist() == list(range(16))
    assert batch["c"].tolist() == [0, 1, 0, *range(3, 8), *range(8)]


# -- a batch that cannot be handed over -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    where = tmp_path_factory.mktemp("jax") / "big"
    penstock.write({"id": np.arange(100) + (np.arange(100) >= 50) * 2**40}, where)
    return str(where)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_batch_that_was_not_handed_out_does_not_count(big, prefetch, shuffle):
    with (
        penstock.open(big).loader(batch_size=10, shuffle=shuffle) as plain,
        loader(big, batch_size=10, prefetch=prefetch, shuffle=shuffle) as ours,
    ):
        iterator, beside = iter(ours), iter(plain)
        before = ours.state_dict()
        with pytest.raises(SchemaError, match="jax_enable_x64"):  # noqa: PT012 -- the pass up to the error
            while True:
                next(iterator)
                next(beside)
                before = plain.state_dict()
        assert ours.state_dict() == before
        with pytest.raises(LoaderClosed, match="failed"):
            next(iterator)
        assert ours.state_dict() == before


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_resumed_pass_that_fails_at_once_may_be_tried_again(big, prefetch):
    with loader(big, batch_size=10, prefetch=prefetch) as ours:
        state = {**ours.state_dict(), "left": [[50, 100]]}
        ours.load_state_dict(json.loads(json.dumps(state)))
        for _ in range(2):
            with pytest.raises(SchemaError):
                next(iter(ours))
            assert ours.state_dict() == state
            assert len(ours) == 5


def test_ctrl_c_while_a_batch_is_prefetched_gives_back_the_one_before(big, monkeypatch):
    from penstock.jax import _Prefetching

    def interrupted(*_):
        raise KeyboardInterrupt

    with loader(big, batch_size=10) as ours:
        iterator = iter(ours)
        next(iterator)
        state = ours.state_dict()
        monkeypatch.setattr(_Prefetching, "_fill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert ours.state_dict() == state


def test_an_error_of_a_transform_leaves_the_place(big):
    def fail(batch):
        raise ValueError("no")

    with loader(big, batch_size=10, transform=fail) as ours:
        state = ours.state_dict()
        with pytest.raises(TransformError):
            next(iter(ours))
        assert ours.state_dict() == state
