"""Importing Penstock costs little and brings no framework; pandas stays out of reading even where it is installed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = (
    "torch",
    "tensorflow",
    "jax",
    "pyspark",
    "pandas",
    "ray",
    "cv2",
    "sklearn",
    "matplotlib",
    "hypothesis",
    "pytest",
)
LATE = (
    "pyarrow.dataset",
    "pyarrow.compute",
    "imagecodecs",
    "simplejpeg",
    "multiprocessing",
    "html",
    "penstock.schema.safe_pickle",
)


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def loaded(names: tuple[str, ...]) -> str:
    return f"print(sorted(m for m in {names!r} if m in sys.modules))"


def test_import_pulls_no_framework() -> None:
    assert run(f"import penstock, sys; {loaded(HEAVY)}") == "[]"


def test_import_leaves_the_slow_halves_of_libraries_for_later() -> None:
    assert run(f"import penstock, sys; {loaded(LATE)}") == "[]"


def test_the_command_line_starts_without_opening_anything() -> None:
    assert run(f"import penstock.cli, sys; {loaded((*HEAVY, *LATE))}") == "[]"


def test_reading_a_batch_imports_no_pandas(tmp_path: Path) -> None:
    code = """
        import sys
        import pyarrow as pa, pyarrow.parquet as pq
        import penstock

        schema = pa.schema([("x", pa.int64()), ("name", pa.string())])
        buffer = pa.RecordBatch.from_pylist([{"x": i, "name": str(i)} for i in range(10)], schema=schema)
        pq.write_table(pa.Table.from_batches([buffer]), sys.argv[1])
        sys.modules.pop("pandas", None)             # writing may have brought it
        with penstock.open(sys.argv[1]).loader(batch_size=4, shuffle=True) as loader:
            assert sum(len(b["x"]) for b in loader) == 10
        print("pandas" in sys.modules)
    """
    assert run(code, str(tmp_path / "t.parquet")) == "False"
