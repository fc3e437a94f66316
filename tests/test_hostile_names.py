"""Names of files, folders and columns that would act on a terminal are shown escaped; attributes keep them."""

import io
import os
import pickle
import warnings
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock import doctor, errors
from penstock.cli import main
from penstock.errors import BadFile, ColumnNotFound, DatasetNotFound, JobFailed, PenstockWarning, SchemaError, printable
from penstock.petastorm import make_reader
from penstock.petastorm.etl.dataset_metadata import get_schema

ACTS = ["\x1b[31m", "\n", "\r", "\x07", "\x00", "\x7f", "\x9b", "\u202e", "\u2066", "\u200f", "\u2028", "\udcff"]
COLUMN = "red\x1b[31m\ncol\u202e\x9b"
FILE = "p\x1b]0;title\x07\n\u202ex.parquet"
FOLDER = "k\x1b[2J\n=v"


def acts(text):
    """Return the characters of a text that a terminal would act on, line feeds that separate its lines aside."""
    return {character for character in text if character != "\n" and printable(character) != character}


@pytest.mark.parametrize("text", ACTS)
def test_what_acts_on_a_terminal_is_escaped(text):
    shown = printable(f"a{text}b")
    assert shown == f"a{text.encode('unicode_escape').decode()}b"
    assert "\n" not in shown
    assert printable(shown) == shown
    shown.encode()


@pytest.mark.parametrize("text", ["", "plain", "Größe", "数据", "a\\b", "👩\u200d🚀", "שלום", "\u00a0", "é"])
def test_other_characters_stay(text):
    assert printable(text) == text


def test_lines_stay_where_they_are_wanted():
    assert printable("a\n\x1bb\tc", lines=True) == "a\n\\x1bb\\tc"


def every(kind):
    return [kind, *(found for child in kind.__subclasses__() for found in every(child))]


@pytest.mark.parametrize("kind", every(errors.PenstockError) + every(PenstockWarning))
def test_every_error_and_warning_is_safe_to_print(kind):
    needed = {BadFile: {"path": "/d/\x1b"}, errors.BudgetError: {"least": 1}, errors.StoreError: {"url": "s3://b/\x1b"}}
    needed[errors.StoreUnavailable] = {"attempts": 8}
    more = {name: value for base, values in needed.items() if issubclass(kind, base) for name, value in values.items()}
    error = kind("no \x1b[31m\u202e here", **more)
    assert str(error) == "no \\x1b[31m\\u202e here"
    assert error.args == ("no \x1b[31m\u202e here",)
    assert "\x1b" not in repr(error)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, vars(again)) == (kind, error.args, vars(error))


def test_newlines_of_a_job_separate_its_files():
    assert str(JobFailed("2 failed:\n  a\x1b\n  b")) == "2 failed:\n  a\\x1b\n  b"


@pytest.fixture
def root(tmp_path):
    path = tmp_path / FOLDER / FILE
    path.parent.mkdir()
    table = pa.table({COLUMN: [1, 2], "text": ["\x1b[31mred", "\u202e"], "words": [["\x1b"], ["\n"]]})
    pq.write_table(table, path)
    return tmp_path


def test_a_dataset_as_text(root):
    ds = penstock.open(root)
    assert COLUMN in ds.columns
    loader = ds.loader(batch_size=2)
    [batch] = loader
    assert COLUMN in batch
    texts = [repr(ds), ds._repr_html_(), repr(ds.schema), str(ds.schema.fields[COLUMN]), repr(loader)]
    texts += [str(loader.report()), str(ds.plan(batch_size=2)), str(doctor.examine(root))]
    for text in texts:
        assert not acts(text)
    assert "red\\x1b[31m\\ncol\\u202e\\x9b  int64" in repr(ds)
    assert len(repr(ds).splitlines()) == 1 + len(ds.columns)


@pytest.mark.parametrize("command", ["info", "head", "plan", "doctor"])
@pytest.mark.parametrize("width", ["40", "200"])
def test_the_command_line(root, command, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main([command, str(root)])
    assert status in (0, 3), err.getvalue()
    assert not acts(out.getvalue() + err.getvalue())
    if command in ("info", "head"):
        assert "red\\x1b[31m\\ncol\\u202e\\x9b" in out.getvalue()


@pytest.mark.parametrize("command", ["info", "doctor"])
def test_errors_of_the_command_line(root, command):
    next(root.rglob("*.parquet")).write_bytes(b"no Parquet at all")
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        main([command, str(root)])
    shown = out.getvalue() + err.getvalue()
    assert not acts(shown)
    assert "p\\x1b]0;title\\x07\\n\\u202ex.parquet" in shown


def test_errors_name_files_escaped_and_carry_their_real_path(root):
    path = next(root.rglob("*.parquet"))
    with pytest.raises(ColumnNotFound) as missing:
        penstock.open(root).select(["zzz"])
    path.write_bytes(b"no Parquet at all")
    with pytest.raises(BadFile) as bad:
        penstock.open(root)
    assert bad.value.path == path.as_posix()
    with pytest.raises(DatasetNotFound) as nothing:
        penstock.open(root / "x\x1by")
    with pytest.raises(SchemaError) as schema:
        penstock.write({"a\x1b\n": [object()]}, root / "out")
    for caught in (missing, bad, nothing, schema):
        assert printable(str(caught.value)) == str(caught.value)
        assert "x1b" in str(caught.value)


def test_petastorms_reader(root):
    with pytest.raises(errors.PenstockError) as caught:
        get_schema(f"file://{root.as_posix()}")
    assert printable(str(caught.value)) == str(caught.value)
    assert not acts(repr(make_reader))


def test_a_name_that_is_not_utf8_can_be_printed(tmp_path):
    pq.write_table(pa.table({"x": np.arange(3)}), tmp_path / "a.parquet")
    try:
        with open(os.fsencode(tmp_path) + b"/\xff.parquet", "wb") as stream:
            stream.write(b"x")
    except OSError:
        pytest.skip("this filesystem takes only UTF-8")
    ds = penstock.open(tmp_path, on_error="skip")
    [(path, reason)] = ds.skipped
    assert path == f"{tmp_path.as_posix()}/\udcff.parquet"
    reason.encode()


def test_warnings_are_printed_escaped():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("no \x1b[31m", PenstockWarning, stacklevel=1)
    assert str(caught[0].message) == "no \\x1b[31m"
