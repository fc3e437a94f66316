"""The command line: what it prints, how it fails, and that it fails in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.cli import main
from penstock.cli.main import size

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Two folders, 100 rows, 20 row groups: numbers, strings with a null, ragged lists."""
    for part in range(2):
        folder = tmp_path / "data" / f"part={part}"
        folder.mkdir(parents=True)
        rows = [{"id": i, "x": i / 7, "name": None if i == 1 else f"row {i}", "list": [i] * (i % 3)} for i in range(50)]
        pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet", row_group_size=5)
    return str(tmp_path / "data")


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_info_shows_schema_sizes_partitions_and_advice(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "info", table)
    assert text.splitlines()[0].split() == ["column", "type", "shape", "null", "codec"]
    for part in (
        "rows         100",
        "files        2, ",
        "row groups   20 of 5 rows",
        "partitions   part (2)",
        "advice",
    ):
        assert part in text
    assert penstock.open(table).fingerprint in text


def test_head_shortens_values(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "head", table, "-n", "2", "--columns", "id,name,x")
    assert [line.split() for line in text.splitlines()] == [
        ["row", "id", "name", "x"],
        ["0", "0", "'row", "0'", "0"],
        ["1", "1", "null", "0.142857"],
    ]


def test_head_of_a_wide_dataset_is_a_block_for_each_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"column_number_{i}" for i in range(30)]
    pq.write_table(pa.Table.from_pylist([{name: i for i, name in enumerate(names)}]), tmp_path / "a.parquet")
    lines = output(capsys, "head", str(tmp_path)).splitlines()
    assert lines[0] == "row 0"
    assert len(lines) == 31


def test_head_shows_arrays_as_dtype_shape_and_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = np.arange(2 * 8 * 8, dtype=np.uint8).reshape(2, 8, 8)
    penstock.write({"image": images, "pair": np.array([[1.5, np.nan], [2, 3]])}, tmp_path / "d")
    text = output(capsys, "head", str(tmp_path / "d"))
    assert "uint8 8x8 0..63" in text
    assert "[1.5, nan]" in text


def test_head_of_nothing(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "head", table, "-n", "0") == "no rows\n"


def test_plan_prints_the_plan_of_the_dataset(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "plan", table, "--batch-size", "8", "--world", "2", "--shuffle", "--shuffle-bytes", "2KiB")
    want = penstock.open(table).plan(batch_size=8, world=2, shuffle=True, shuffle_bytes=2048)
    assert text == f"{want}\n"


def test_info_and_plan_know_the_parts_of_large_row_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [np.random.default_rng(0).bytes(1 << 20)] * 80
    for name, index in (("indexed", True), ("plain", False)):
        (tmp_path / name).mkdir()
        pq.write_table(
            pa.table({"cell": cells}), tmp_path / name / "a.parquet", write_page_index=index, write_batch_size=1,
            data_page_size=1, use_dictionary=False,
        )  # fmt: skip
    several = tmp_path / "several"
    several.mkdir()
    pq.write_table(
        pa.table({"cell": cells}), several / "a.parquet", row_group_size=20, write_page_index=True, write_batch_size=1,
        data_page_size=1, use_dictionary=False,
    )  # fmt: skip
    advice = output(capsys, "info", str(several)).splitlines()[-1]
    assert re.search(r"row groups of 20.0 MiB on disk are shuffled in \d\d parts", advice), "few row groups, many parts"
    indexed, plain = str(tmp_path / "indexed"), str(tmp_path / "plain")
    assert re.search(
        r"advice .* on disk are shuffled in \d+ parts of [\d.]+ MiB on disk", output(capsys, "info", indexed)
    )
    assert re.search(
        r"advice .* shuffled in \d+ parts once `penstock index --beside URL` has found their pages, or with parts=True",
        output(capsys, "info", plain),
    )
    assert re.search(r"rows +80 in \d+ parts of 1 row group,", output(capsys, "plan", indexed, "--shuffle"))
    assert "rows     80 in 1 row group\n" in output(capsys, "plan", indexed, "--shuffle", "--parts", "no")
    assert "rows     80 in 1 row group\n" in output(capsys, "plan", plain, "--shuffle")
    assert re.search(
        r"rows +80 in \d+ parts of 1 row group,", output(capsys, "plan", plain, "--shuffle", "--parts=yes")
    )


@pytest.mark.parametrize(
    ("given", "shuffle"),
    [
        (["--shuffle", "URL"], True),
        (["URL", "--shuffle"], True),
        (["--shuffle", "rows", "URL"], True),
        (["--shuffle=groups", "URL"], "groups"),
        (["--shuffle", "groups", "URL"], "groups"),
        (["--shuffle", "--seed", "0", "URL"], True),
        (["URL", "--shuffle", "no"], False),
        (["URL"], False),
    ],
)
def test_shuffle_may_come_before_the_url(
    given: list[str], shuffle: Any, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output(capsys, "plan", *[table if one == "URL" else one for one in given], "--batch-size", "8")
    assert text == f"{penstock.open(table).plan(batch_size=8, shuffle=shuffle)}\n"


def test_an_option_with_a_new_name_works_and_says_so(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", table, "--batch-size", "8", "--shuffle", "--window-bytes", "2KiB"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{penstock.open(table).plan(batch_size=8, shuffle=True, shuffle_bytes=2048)}\n"
    assert "--window-bytes is now --shuffle-bytes" in printed.err


def test_bench_measures_a_dataset(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--batch-size", "8", "--batches", "3", "--warm-up", "0", "--rounds", "1", "--workers", "1"]
    text = output(capsys, "bench", "--shuffle", table, *quick)
    assert "batches of 8, shuffled" in text
    for part in ("rows/s", "MB/s", "limit, by hand", "ratio", "bottleneck"):
        assert part in text
    found = json.loads(output(capsys, "bench", table, "--json", "--shuffle=no", *quick))
    assert found["rows_per_s"] > 0
    assert found["mb_per_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["info", "nowhere"], "nowhere"),
        (["head", "TABLE", "--columns", "nmae"], "did you mean 'name'"),
        (["plan", "TABLE", "--seed", "-1"], "seed"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], part: str, table: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    places = {"TABLE": table, "nowhere": str(tmp_path / "nowhere")}
    assert main([places.get(a, a) for a in arguments]) == 1
    err = capsys.readouterr().err
    assert part in err
    assert err.startswith("penstock: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["rewrite", "TABLE", "THERE"],
            "THERE already exists; write somewhere else, or pass --overwrite",
        ),
        (["rewrite", "TABLE", "OUT", "--seed", "3"], "--seed 3 is for a shuffle.* without --shuffle; pass --shuffle"),
        (["rewrite", "TABLE", "OUT", "--memory-bytes", "1K"], "--memory-bytes 1024 is for a shuffle"),
        (["rewrite", "TABLE", "OUT", "--temp-folder", "x"], "--temp-folder x is for a shuffle"),
        (["rewrite", "TABLE", "OUT", "--row-group-bytes", "0"], "--row-group-bytes must be a whole number"),
        (["rewrite", "TABLE", "OUT", "--partition-by", "row_group_bytes=1"], "no column 'row_group_bytes=1'"),
        (["rewrite", "BAD", "OUT"], "--skip-bad-files"),
        (["plan", "TABLE", "--lanes", "3"], "--lanes 3 needs --shuffle"),
        (["info", "overwrite=True"], "nothing at '.*/overwrite=True'"),
    ],
)
def test_errors_name_the_options_of_the_command(
    arguments: list[str], message: str, table: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    penstock.write({"x": np.arange(3)}, tmp_path / "there")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.parquet").write_bytes(b"PAR1 truncated")
    names = {"TABLE": table, "THERE": "there", "OUT": "out", "BAD": "bad"}
    assert main([str(tmp_path / names.get(a, a)) if a in names else a for a in arguments]) == 1
    err = capsys.readouterr().err
    assert re.search(message.replace("THERE", str(tmp_path / "there")), err), err
    assert re.search(r"\w_\w+=(?!1')", err) is None, err


def test_debug_shows_the_error_itself(tmp_path: Path) -> None:
    with pytest.raises(penstock.errors.DatasetNotFound):
        main(["info", str(tmp_path / "nowhere"), "--debug"])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["info"],
        ["plan", "x", "--batch-size", "0"],
        ["head", "x", "-n", "-1"],
        ["info", "x", "--storage-option", "y"],
    ],
)
def test_a_wrong_command_line_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: penstock" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "number"), [("17", 17), ("1K", 1024), ("1.5MiB", 3 << 19), ("2gb", 2 << 30), ("8B", 8)]
)
def test_sizes(text: str, number: int) -> None:
    assert size(text) == number


def test_the_module_runs_as_a_program(table: str) -> None:
    command = [sys.executable, "-m", "penstock.cli"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"penstock {penstock.__version__}\n"
    failed = subprocess.run([*command, "info", table + "x"], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr


def test_a_reader_that_closes_early_is_no_error(table: str) -> None:
    command = f"'{sys.executable}' -m penstock.cli head '{table}' -n 100 | head -c 10; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
