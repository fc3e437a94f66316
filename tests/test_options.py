"""Options of loaders are declared once, shown everywhere, and checked with messages that name the cure."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
from typing import Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
import penstock.doctor
from penstock.errors import PenstockDeprecationWarning, PlanError
from penstock.keywords import OPENING, FrameworkKeywords, LoaderKeywords, PlanKeywords, check_keywords, show_keywords
from penstock.options import LoaderOptions

DEPRECATED = {"window_bytes"}


@pytest.fixture
def ds(tmp_path):
    pq.write_table(pa.table({"id": np.arange(64)}), tmp_path / "a.parquet", row_group_size=8)
    return penstock.open(tmp_path)


def test_the_keywords_are_the_fields_of_the_options() -> None:
    fields = {field.name for field in dataclasses.fields(LoaderOptions)}
    assert set(LoaderKeywords.__annotations__) - DEPRECATED == fields - {"batch_size"}
    assert set(FrameworkKeywords.__annotations__) == set(LoaderKeywords.__annotations__) | set(OPENING)
    assert set(OPENING) <= set(inspect.signature(penstock.open).parameters)


@pytest.mark.parametrize(
    ("function", "keywords"), [(penstock.Dataset.loader, LoaderKeywords), (penstock.Dataset.plan, PlanKeywords)]
)
def test_signature_and_help_list_every_keyword_with_its_default(function, keywords) -> None:
    shown = inspect.signature(function).parameters
    assert set(shown) == {"self", "batch_size"} | set(keywords.__annotations__) - DEPRECATED
    assert shown["batch_size"].default is inspect.Parameter.empty
    defaults = {field.name: field.default for field in dataclasses.fields(LoaderOptions)}
    text = pydoc.plain(pydoc.render_doc(function))
    for name, parameter in shown.items():
        if name not in ("self", "batch_size"):
            assert parameter.default == defaults[name]
            assert f"\n        {name}: " in text, f"{name} has no entry in help()"
    assert "**options" not in text


def test_an_entry_that_a_function_has_itself_is_shown_once() -> None:
    @show_keywords(FrameworkKeywords)
    def made(*, batch_size: int, **options: Unpack[FrameworkKeywords]) -> None:
        """Make something.

        Args:
            batch_size: Rows.
            seed: A seed of its own.
            **options: More of them,
                on two lines.
        """

    assert made.__doc__.count("    seed: ") == 1
    assert "    seed: A seed of its own." in made.__doc__
    assert "    filters: Rows to keep" in made.__doc__
    assert "two lines" not in made.__doc__
    assert list(inspect.signature(made).parameters)[-len(OPENING) :] == list(OPENING)


def test_an_unknown_keyword_names_near_matches_or_what_to_use_instead(ds) -> None:
    with pytest.raises(TypeError, match=r"Dataset\.loader\(\) got .* 'shufle'; did you mean 'shuffle'"):
        ds.loader(batch_size=4, shufle=True)
    with pytest.raises(TypeError, match=r"num_workers.*workers= sets their number"):
        ds.loader(batch_size=4, num_workers=2)
    with pytest.raises(TypeError, match=r"Dataset\.plan\(\) got .* 'epochs'"):
        ds.plan(batch_size=4, epochs=2)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'batch_size'"):
        ds.loader()


def test_shuffle_bytes_has_a_deprecated_name_that_warns_at_the_line_of_the_user(ds) -> None:
    with pytest.warns(PenstockDeprecationWarning, match="window_bytes= is now shuffle_bytes=") as caught:
        plan = ds.plan(batch_size=4, shuffle=True, window_bytes=64)
    assert [warning.filename for warning in caught] == [__file__]
    assert str(plan) == str(ds.plan(batch_size=4, shuffle=True, shuffle_bytes=64))
    with pytest.warns(PenstockDeprecationWarning) as caught:
        ds.loader(batch_size=4, shuffle=True, window_bytes=1 << 20).close()
    assert [warning.filename for warning in caught] == [__file__]
    assert issubclass(PenstockDeprecationWarning, DeprecationWarning)


def test_both_names_of_an_option_are_refused(ds) -> None:
    with pytest.raises(TypeError, match="both shuffle_bytes= and window_bytes="):
        ds.loader(batch_size=4, shuffle_bytes=1, window_bytes=1)


def test_the_doctor_takes_the_deprecated_name(tmp_path, ds) -> None:
    with pytest.warns(PenstockDeprecationWarning, match="window_bytes= is now shuffle_bytes="):
        old = penstock.doctor.examine(tmp_path, window_bytes=64)
    new = penstock.doctor.examine(tmp_path, shuffle_bytes=64)
    assert [finding.title for finding in old.findings] == [finding.title for finding in new.findings]


def test_checked_keywords_are_a_new_dict() -> None:
    given = {"seed": 1}
    checked = check_keywords(given, penstock.Dataset.loader, owner="Dataset.loader")
    assert checked == given
    assert checked is not given


def test_a_window_is_a_time_window(ds) -> None:
    with pytest.raises(PlanError, match=r"window takes a penstock\.Window"):
        ds.loader(batch_size=4, window=1 << 20)


@pytest.mark.parametrize("face", ["torch", "tensorflow", "jax"])
def test_every_framework_shows_the_keywords_of_the_loader(face: str, tmp_path, ds) -> None:
    pytest.importorskip(face)
    module = __import__(f"penstock.{face}", fromlist=["loader"])
    functions = [module.loader, *([module.Batches] if face == "torch" else [])]
    for function in functions:
        shown = inspect.signature(function).parameters
        assert set(FrameworkKeywords.__annotations__) - DEPRECATED <= set(shown), function
    text = inspect.getdoc(module.loader)
    for name in inspect.signature(module.loader).parameters:
        assert text.count(f"\n    {name}: ") == 1, name
    with pytest.raises(TypeError, match=rf"penstock\.{face}\.loader\(\) .* 'shufle'; did you mean 'shuffle'"):
        module.loader(tmp_path, batch_size=4, shufle=True)
    with pytest.raises(PlanError, match="filesystem= is for opening a URL"):
        module.loader(ds, batch_size=4, filesystem=object())
    with pytest.warns(PenstockDeprecationWarning, match="shuffle_bytes"):
        module.loader(tmp_path, batch_size=4, shuffle=True, window_bytes=1 << 20).close()
