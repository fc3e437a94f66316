"""`petastorm.unischema` and `petastorm.codecs`: our own classes, under the names and with the habits users know."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock.petastorm import codecs, errors, unischema
from penstock.petastorm.unischema import Unischema, UnischemaField, insert_explicit_nulls, match_unischema_fields
from tests.test_alias import run


def test_the_classes_are_those_of_penstock() -> None:
    assert unischema.Unischema is penstock.Unischema
    assert unischema.UnischemaField is penstock.UnischemaField
    for name in codecs.__all__:
        assert getattr(codecs, name) is getattr(penstock.codecs, name)
    assert issubclass(errors.NoDataAvailableError, penstock.errors.PenstockError)


def test_defect_5_2_10_fields_chosen_by_patterns_come_in_schema_order_in_every_process() -> None:
    code = """
        import numpy as np
        from penstock.petastorm.unischema import Unischema, UnischemaField
        schema = Unischema("S", [UnischemaField(f"f{n}", np.int8, ()) for n in (3, 1, 4, 5, 9, 2, 6)])
        print(*schema.create_schema_view(["f[1-5]", "f9|f3", schema.f6]).fields)
    """
    orders = {run(code, PYTHONHASHSEED=seed) for seed in ("0", "1", "2")}
    assert orders == {"f6 f3 f1 f4 f5 f9 f2"}


def test_patterns_match_whole_names_in_order_and_say_where_they_once_matched_more() -> None:
    schema = Unischema("S", [UnischemaField(name, np.int8, ()) for name in ("b", "ab", "a", "abc")])
    assert [field.name for field in match_unischema_fields(schema, ["a.*", "b"])] == ["b", "ab", "a", "abc"]
    assert match_unischema_fields(schema, []) == match_unischema_fields(schema, None) == []
    with pytest.warns(UserWarning, match="schema_fields behavior has changed"):
        assert [field.name for field in match_unischema_fields(schema, ["a"])] == ["a"]


def test_missing_values_become_none_where_they_may() -> None:
    schema = Unischema(
        "S", [UnischemaField("a", np.int8, (), None, True), UnischemaField("b", np.int8, (), None, False)]
    )
    row = {"b": 1}
    insert_explicit_nulls(schema, row)
    assert row == {"a": None, "b": 1}
    with pytest.raises(ValueError, match="'b' is not nullable"):
        insert_explicit_nulls(schema, {"a": 1})
