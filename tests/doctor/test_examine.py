"""The doctor: each thing that can be wrong is found, with the size of its effect; a good layout passes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.cli import main
from penstock.doctor import Report, examine
from penstock.errors import ColumnNotFound, DatasetNotFound, PlanError

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 40_000
SMALL: dict[str, Any] = {"row_group_bytes": 1 << 14, "window_bytes": 1 << 17}
"""Everything 1,000 times smaller than in life: row groups of 16 KiB (1,024 rows), a window of 128 KiB."""


def make(folder: Path, group_rows: int, *, labels: str = "mixed", files: int = 1, **options: Any) -> Path:
    folder.mkdir()
    label = np.arange(ROWS) * 20 // ROWS if labels == "sorted" else np.arange(ROWS) * 7919 % 20
    table = pa.table({"id": np.arange(ROWS), "label": label})
    for index in range(files):
        part = table.slice(ROWS * index // files, ROWS // files)
        pq.write_table(part, folder / f"{index:05d}.parquet", row_group_size=group_rows, **options)
    return folder


def codes(report: Report) -> dict[str, str]:
    return {finding.code: finding.severity for finding in report.findings}


def test_a_good_layout_has_no_findings(tmp_path: Path) -> None:
    report = examine(make(tmp_path / "d", 1000), world=2, **SMALL)
    assert report.findings == ()
    assert report.ok
    assert report.rewrite_command is None
    assert "nothing is wrong" in str(report)
    assert (report.rows, report.files, report.row_groups) == (ROWS, 1, 40)


def test_row_groups_that_are_too_large(tmp_path: Path) -> None:
    report = examine(make(tmp_path / "d", 20_000), world=1, **SMALL)
    assert codes(report) == {"large-row-groups": "problem"}
    [finding] = report.findings
    assert finding.numbers["row_group_bytes"] == pytest.approx(20_000 * 16, rel=0.05)
    assert finding.numbers["chunks_per_batch"] < 3 < finding.numbers["chunks_per_batch_rewritten"]
    assert report.rewrite_command == f"penstock rewrite {tmp_path}/d OUT --row-group-bytes 16KiB"


def test_row_groups_that_are_too_small(tmp_path: Path) -> None:
    report = examine(make(tmp_path / "d", 40), world=1, **SMALL)
    assert codes(report) == {"small-row-groups": "advice"}
    numbers = report.findings[0].numbers
    assert (numbers["reads"], numbers["reads_rewritten"]) == (1000, pytest.approx(40, abs=2))
    assert numbers["store_wait_s"] == pytest.approx(1000 * 0.03 / 32)


def test_too_few_row_groups_for_the_ranks(tmp_path: Path) -> None:
    report = examine(make(tmp_path / "d", 8_000), world=16, **SMALL)
    found = {finding.code: finding for finding in report.findings}
    few = found["few-row-groups"]
    assert few.severity == "problem"
    assert few.numbers["read_factor"] > 4 > 1.3 > few.numbers["read_factor_rewritten"]
    assert report.rewrite_command == f"penstock rewrite {tmp_path}/d OUT --row-group-bytes 4KiB"
    assert "lanes=16" in few.cure
    assert "few-row-groups" not in codes(examine(tmp_path / "d", world=1, **SMALL))
    [one] = examine(make(tmp_path / "one", ROWS), world=4, row_group_bytes=1 << 14).problems  # all fits the window
    assert (one.code, round(one.numbers["read_factor"])) == ("few-row-groups", 4)


def test_lanes_that_fit_the_ranks_are_a_note(tmp_path: Path) -> None:
    report = examine(make(tmp_path / "d", 1000), world=8, row_group_bytes=1 << 14)  # all fits the window: one lane
    assert report.ok
    assert "with lanes=8" in report.notes[0]
    assert "instead of 8.00 times" in report.notes[0]


def test_sorted_by_label(tmp_path: Path) -> None:
    make(tmp_path / "d", 1000, labels="sorted")
    report = examine(tmp_path / "d", world=1, **SMALL)
    [finding] = [finding for finding in report.findings if finding.code == "sorted-by-label"]
    assert finding.numbers["stored"] < 2
    assert finding.numbers["random"] == pytest.approx(20, abs=0.5)
    assert finding.numbers["stored"] < finding.numbers["shuffled"]
    assert "--shuffle" in (report.rewrite_command or "")
    penstock.doctor.rewrite(tmp_path / "d", tmp_path / "cured", shuffle=True, row_group_bytes=1 << 14)
    assert examine(tmp_path / "cured", world=1, **SMALL).findings == ()


def test_what_the_shuffle_cannot_mend_is_a_problem(tmp_path: Path) -> None:
    make(tmp_path / "d", 8_000, labels="sorted")
    assert codes(examine(tmp_path / "d", world=1, **SMALL))["sorted-by-label"] == "problem"


def test_the_label_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    table = pa.table({"kind": pa.array([["a", "b", None][i // 10_000] for i in range(30_000)]), "x": np.zeros(30_000)})
    pq.write_table(table, tmp_path / "d" / "a.parquet", row_group_size=500)
    report = examine(tmp_path / "d", **SMALL, world=1)
    assert "sorted-by-label" not in codes(report)
    assert "--label" in report.notes[0]
    finding = examine(tmp_path / "d", **SMALL, world=1, label="kind").findings[0]
    assert (finding.code, finding.numbers["labels"]) == ("sorted-by-label", 3)
    with pytest.raises(ColumnNotFound, match="did you mean 'kind'"):
        examine(tmp_path / "d", label="kid")


def test_tiny_files(tmp_path: Path) -> None:
    report = examine(make(tmp_path / "d", 500, files=80), world=1, **SMALL)
    assert codes(report) == {"tiny-files": "advice"}
    assert report.findings[0].numbers["files"] == 80
    assert "80 footers" in report.findings[0].effect


def test_no_statistics(tmp_path: Path) -> None:
    report = examine(make(tmp_path / "d", 1000, write_statistics=["label"]), world=1, **SMALL)
    assert codes(report) == {"no-statistics": "advice"}
    assert "'id'" in report.findings[0].what
    assert report.findings[0].numbers["columns"] == 1
    penstock.doctor.rewrite(tmp_path / "d", tmp_path / "cured", row_group_bytes=1 << 14)
    assert examine(tmp_path / "cured", world=1, **SMALL).findings == ()


def test_schemas_that_differ(tmp_path: Path) -> None:
    make(tmp_path / "d", 1000)
    table = pa.table({"id": np.arange(10), "label": pa.array(np.arange(10), pa.int64())})
    pq.write_table(table.cast(pa.schema([pa.field("id", pa.int64(), nullable=False), ("label", pa.int64())])),
                   tmp_path / "d" / "x.parquet")  # fmt: skip
    report = examine(tmp_path / "d", world=1, **SMALL)
    assert codes(report) == {"mixed-schemas": "advice"}
    assert "1 file of 2 differ" in report.findings[0].what
    assert "column 'id' is not nullable there" in report.findings[0].what
    pq.write_table(pa.table({"id": ["text"], "label": [1]}), tmp_path / "d" / "y.parquet")
    report = examine(tmp_path / "d", world=1, **SMALL)
    assert codes(report) == {"mixed-schemas": "problem"}
    assert "the files disagree: column 'id'" in report.findings[0].effect
    assert not report.ok


def test_missing_and_stale_metadata(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    table = pa.table({"image": pa.array([b"\xff\xd8"] * 10), "id": np.arange(10)})
    pq.write_table(table, tmp_path / "d" / "a.parquet")
    report = examine(tmp_path / "d")
    assert codes(report) == {"no-schema": "advice"}
    assert "1 binary column ('image')" in report.findings[0].effect
    pq.write_metadata(table.schema, tmp_path / "d" / "_metadata")
    assert codes(examine(tmp_path / "d")) == {"no-schema": "advice", "stale-summary": "advice"}
    penstock.write({"x": np.arange(5)}, tmp_path / "ours")
    assert examine(tmp_path / "ours").findings == ()
    (tmp_path / "ours" / "_common_metadata").unlink()
    assert codes(examine(tmp_path / "ours")) == {"no-common-metadata": "advice"}


def test_bad_files_and_no_rows(tmp_path: Path) -> None:
    make(tmp_path / "d", 1000)
    (tmp_path / "d" / "x.parquet").write_bytes(b"PAR1 truncated")
    report = examine(tmp_path / "d", world=1, **SMALL)
    assert codes(report) == {"bad-files": "problem"}
    assert "x.parquet" in report.findings[0].effect
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.parquet").write_bytes(b"PAR1 truncated")
    assert codes(examine(tmp_path / "bad")) == {"bad-files": "problem"}
    penstock.write({"x": np.arange(0)}, tmp_path / "none")
    assert codes(examine(tmp_path / "none")) == {"no-rows": "problem"}


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFound):
        examine(tmp_path / "nowhere")
    with pytest.raises(PlanError, match="world must be at least 1; got 0"):
        examine(make(tmp_path / "d", 1000), world=0)


# --- the commands -----------------------------------------------------------------------------------------------------


def test_the_command_prints_text_or_json_and_tells_by_its_status(tmp_path: Path, capsys: Any) -> None:
    good, bad = str(make(tmp_path / "good", 1000)), str(make(tmp_path / "bad", 20_000))
    sizes = ["--row-group-bytes", "16KiB", "--window-bytes", "128KiB", "--world", "1"]
    assert main(["doctor", good, *sizes]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert main(["doctor", bad, *sizes]) == 3
    text = capsys.readouterr().out
    assert "problem  row groups of" in text
    assert f"penstock rewrite {bad} OUT --row-group-bytes 16KiB" in text
    assert main(["doctor", bad, *sizes, "--json"]) == 3
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["findings"][0]["code"]) == (False, "large-row-groups")
    assert main(["doctor", str(tmp_path / "nowhere")]) == 1


def test_the_cure_that_is_printed_works_as_it_is(tmp_path: Path, capsys: Any) -> None:
    bad = make(tmp_path / "bad", 20_000, labels="sorted")
    command = examine(bad, world=1, **SMALL).rewrite_command or ""
    words = command.replace("OUT", str(tmp_path / "out")).split()
    assert main(words[1:]) == 0
    assert "40,000 rows" in capsys.readouterr().out
    assert examine(tmp_path / "out", world=1, **SMALL).findings == ()


def test_rewrite_takes_its_options(tmp_path: Path, capsys: Any) -> None:
    source = make(tmp_path / "d", 1000)
    options = [
        "--rows-per-file",
        "15000",
        "--shuffle",
        "--seed",
        "3",
        "--compression",
        "none",
        "--memory-bytes",
        "100K",
    ]
    out = tmp_path / "out"
    assert main(["rewrite", str(source), str(out), *options, "--temp-folder", str(tmp_path), "--partition-by", ""]) == 0
    assert len(list(out.glob("*.parquet"))) == 3
    assert pq.ParquetFile(out / "part-000000.parquet").metadata.row_group(0).column(0).compression == "UNCOMPRESSED"
    assert main(["rewrite", str(source), str(out)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["rewrite", str(source), str(out), "--overwrite", "--partition-by", "label"]) == 0
    assert (out / "label=3").is_dir()
