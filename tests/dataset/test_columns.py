"""Names, fields and expressions pick columns in the user's order."""

from types import SimpleNamespace

import pytest

from penstock.dataset.columns import pick_columns
from penstock.errors import ColumnNotFound

NAMES = ["id", "image", "image.*", "s.a", "s.b.c", "label_1", "label_2"]


def field(name):
    return SimpleNamespace(name=name, numpy_dtype=int)


@pytest.mark.parametrize(
    ("columns", "picked"),
    [
        (None, NAMES),
        ([], []),
        (["label_2", "id"], ["label_2", "id"]),
        (["image.*"], ["image.*"]),
        (["label_.*", "id"], ["label_1", "label_2", "id"]),
        (["label_2", "label_.*"], ["label_2", "label_1"]),
        (["id", "id"], ["id"]),
        ("id", ["id"]),
        (field("id"), ["id"]),
        ([field("id"), "image"], ["id", "image"]),
        (["s"], ["s.a", "s.b.c"]),
        (["s.b"], ["s.b.c"]),
        (("i.*",), ["id", "image", "image.*"]),
        ((name for name in ("id", "image")), ["id", "image"]),
    ],
)
def test_picks(columns, picked):
    assert pick_columns(NAMES, columns) == picked


@pytest.mark.parametrize("wrong", ["labl_1", "d", "(", "LABEL_1"])
def test_a_miss_lists_near_names(wrong):
    with pytest.raises(ColumnNotFound, match=r"did you mean|there are"):
        pick_columns(NAMES, [wrong])
    with pytest.raises(ColumnNotFound, match="did you mean 'label_1'"):
        pick_columns(NAMES, ["labl_1"])


def test_a_field_is_no_expression():
    with pytest.raises(ColumnNotFound):
        pick_columns(NAMES, [field("label_.*")])


def test_other_things_are_refused():
    with pytest.raises(ColumnNotFound, match="got 3"):
        pick_columns(NAMES, [3])
