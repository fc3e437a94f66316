"""A codec of a user's own: written, read in every pool, and never imported where it is not registered."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import Codec, DataframeColumnCodec, NdarrayCodec
from penstock.codecs.registry import _classes
from penstock.errors import CodecError, DecodeError
from penstock.schema.stored import SCHEMA_KEY, schema_to_json
from penstock.testing import assert_resumes_exactly, assert_same
from tests.engine.make import ids

ROOT = Path(__file__).parents[2]


class Zlib(Codec):
    """Arrays of one shape as deflated bytes."""

    codec_id = "tests.zlib"

    def __init__(self, level=6):
        self.level = level

    def encode(self, field, value):
        return zlib.compress(value.tobytes(), self.level)

    def decode(self, field, cell):
        shape = tuple(-1 if size is None else size for size in field.shape)
        return np.frombuffer(zlib.decompress(cell), field.numpy_dtype).reshape(shape)


class OldZlib(DataframeColumnCodec):
    """The same in Petastorm's manner."""

    def encode(self, unischema_field, value):
        return zlib.compress(value.tobytes())

    def decode(self, unischema_field, value):
        return np.frombuffer(zlib.decompress(value), unischema_field.numpy_dtype).reshape(unischema_field.shape)


@pytest.fixture(autouse=True)
def registered():
    before = dict(_classes)
    penstock.register_codec(Zlib)
    penstock.register_codec(OldZlib)
    penstock.register_codec(Careless)
    yield
    _classes.clear()
    _classes.update(before)


def schema_with(codec):
    return Unischema(
        "Own",
        [
            UnischemaField("id", np.int64, (), None, False),
            UnischemaField("array", np.int16, (3, 4), codec, True),
            UnischemaField("free", np.float32, (None,), Zlib(1), False),
            UnischemaField("npy", np.int16, (3, 4), NdarrayCodec(), True),
        ],
    )


def rows():
    for i in range(25):
        array = None if i % 6 == 4 else np.arange(12, dtype=np.int16).reshape(3, 4) * i
        yield {"id": np.int64(i), "array": array, "free": np.full(i % 5, i, np.float32), "npy": array}


@pytest.mark.parametrize("codec", [Zlib(9), OldZlib()], ids=["column codec", "Petastorm's kind"])
@pytest.mark.parametrize("pool", ["thread", "serial", "process"])
def test_a_codec_of_ones_own_is_written_and_read(tmp_path, codec, pool):
    penstock.write(rows(), tmp_path / "x", schema_with(codec), rows_per_file=8)
    ds = penstock.open(tmp_path / "x")
    assert repr(ds.schema.fields["array"].codec) == repr(codec)
    for shuffle in (False, True):
        with ds.loader(batch_size=4, shuffle=shuffle, pool=pool, workers=1) as loader:
            batches = list(loader)
        assert sorted(ids(batches)) == list(range(25))
        for batch in batches:
            assert_same(batch["array"], batch["npy"])
            for i, free in zip(batch["id"].tolist(), batch["free"], strict=True):
                assert free.tolist() == [i] * (i % 5)
    assert_same(ds[7]["array"], np.arange(12, dtype=np.int16).reshape(3, 4) * 7)
    assert ds[4]["array"] is None


def test_it_resumes_in_processes(tmp_path):
    penstock.write(rows(), tmp_path / "x", schema_with(Zlib()), rows_per_file=8)
    ds = penstock.open(tmp_path / "x")
    assert_resumes_exactly(lambda: ds.loader(batch_size=9, shuffle=True, pool="process", workers=1), passes=1)


@pytest.mark.parametrize("pool", ["thread", "process"])
def test_a_cell_it_cannot_decode_is_named(tmp_path, pool):
    schema = schema_with(Zlib())
    penstock.write(rows(), tmp_path / "x", schema, rows_per_file=8)
    other = Unischema("Own", [*list(schema.fields.values())[:1], UnischemaField("npy", np.int16, (3, 4), Zlib(), True)])
    loader = penstock.open(tmp_path / "x", schema=other).loader(batch_size=4, pool=pool, workers=1)
    with (
        loader,
        pytest.raises(DecodeError, match=r"column 'npy' in .*row group 0, row 0: .*incorrect header") as caught,
    ):
        list(loader)
    assert caught.value.column == "npy"


class Careless(Codec):
    """Decodes whole columns, and does not say which cell it cannot decode."""

    codec_id = "tests.careless"

    def decode_column(self, field, cells, out):
        for row, cell in enumerate(cells):
            out[row] = np.frombuffer(cell, out.dtype).reshape(out.shape[1:])

    def decode_list(self, field, cells):
        return [np.frombuffer(cell, field.numpy_dtype) for cell in cells]


@pytest.mark.parametrize(("shape", "pool"), [((2,), "thread"), ((None,), "thread"), ((2,), "process")], ids=str)
def test_whatever_it_raises_the_cell_is_named_and_can_be_skipped(tmp_path, shape, pool):
    fields = [UnischemaField("id", np.int64, (), None, False), UnischemaField("x", np.int16, shape, Careless(), False)]
    cells = [b"odd" if i == 4 else b"\x01\x00\x02\x00" for i in range(6)]
    metadata = {SCHEMA_KEY: schema_to_json(Unischema("S", fields)).encode()}
    table = pa.table({"id": range(6), "x": pa.array(cells, pa.binary())}).replace_schema_metadata(metadata)
    pq.write_table(table, tmp_path / "a.parquet")
    ds = penstock.open(tmp_path)
    with ds.loader(batch_size=3, pool=pool, workers=1) as loader, pytest.raises(DecodeError, match="'x'") as caught:
        list(loader)
    assert (caught.value.row_group, caught.value.row, caught.value.column) == (0, 4, "x")
    assert "ValueError" in str(caught.value)
    with ds.loader(batch_size=3, pool=pool, workers=1, on_error="skip") as loader:
        assert ids(loader) == [0, 1, 2, 3, 5]
        assert [(one.row, one.column) for one in loader.skipped] == [(4, "x")]


MODULE = """
import pathlib, zlib
import numpy as np
import penstock
from penstock.codecs import Codec

pathlib.Path(__file__).with_suffix(".imported").touch()


class Swirl(Codec):
    def encode(self, field, value):
        return zlib.compress(value.tobytes())

    def decode(self, field, cell):
        return np.frombuffer(zlib.decompress(cell), field.numpy_dtype).reshape(field.shape)
"""

WRITE = """
import numpy as np, penstock, swirl_codec
from penstock import Unischema, UnischemaField
penstock.register_codec(swirl_codec.Swirl)
own = UnischemaField("a", np.int8, (3,), swirl_codec.Swirl(), False)
fields = [UnischemaField("id", np.int64, (), None, False), own]
penstock.write([{"id": np.int64(i), "a": np.full(3, i, np.int8)} for i in range(9)], "data", Unischema("S", fields))
"""

READ = """
import sys, penstock
ds = penstock.open("data")
assert ds.select(["id"]).take([3, 5])["id"].tolist() == [3, 5]
with ds.select(["id"]).loader(batch_size=4, shuffle=True) as loader:
    assert sorted(i for batch in loader for i in batch["id"].tolist()) == list(range(9))
for pool in ("thread", "serial", "process"):
    if __name__ == "__main__":
        try:
            with ds.loader(batch_size=4, pool=pool, workers=1) as loader:
                list(loader)
        except penstock.errors.CodecError as error:
            assert "penstock.register_codec(Swirl)" in str(error), error
            assert "'a'" in str(error), error
        else:
            raise AssertionError("no error")
assert "swirl_codec" not in sys.modules
if __name__ == "__main__":
    import swirl_codec
    penstock.register_codec(swirl_codec.Swirl)
    assert penstock.open("data")[4]["a"].tolist() == [4, 4, 4]
"""


def run(folder, code):
    """Run a program that finds the user's module, in a fresh interpreter."""
    (folder / "program.py").write_text(textwrap.dedent(code), encoding="utf-8")
    paths = [str(folder), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "program.py"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_codec_that_is_not_registered_is_told_and_never_imported(tmp_path):
    (tmp_path / "swirl_codec.py").write_text(MODULE, encoding="utf-8")
    run(tmp_path, WRITE)
    mark = tmp_path / "swirl_codec.imported"
    mark.unlink()
    run(tmp_path, READ.split('if __name__ == "__main__":\n    import', maxsplit=1)[0])
    assert not mark.exists()
    run(tmp_path, READ)
    assert mark.exists()


def test_the_error_stays_a_codec_error_beside_a_transform_and_with_skip(tmp_path):
    penstock.write(rows(), tmp_path / "x", schema_with(Zlib()), rows_per_file=8)
    _classes.pop("tests.zlib")
    for name in [name for name, cls in _classes.items() if cls is Zlib]:
        _classes.pop(name)
    ds = penstock.open(tmp_path / "x")
    for options in ({}, {"transform": dict}, {"on_error": "skip"}):
        loader = ds.loader(batch_size=4, **options)
        with loader, pytest.raises(CodecError, match=r"'array'.*not registered.*\.parquet"):
            list(loader)
    with pytest.raises(CodecError, match="not registered"):
        ds[0]
    assert ds.select(["id", "npy"])[3]["npy"].shape == (3, 4)
