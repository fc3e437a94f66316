"""The doctor: each thing that can be wrong is found, with the size of its effect; a good layout passes."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.cli import main
from penstock.dataset import divide, parts
from penstock.doctor import DoctorReport, examine, index_pages
from penstock.errors import ColumnNotFound, DatasetNotFound, PlanError

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 40_000
SMALL: dict[str, Any] = {"row_group_bytes": 1 << 14, "shuffle_bytes": 1 << 17}
"""Everything 1,000 times smaller than in life: row groups of 16 KiB (1,024 rows), a window of 128 KiB."""


def make(folder: Path, group_rows: int, *, labels: str = "mixed", files: int = 1, **options: Any) -> Path:
    folder.mkdir()
    label = np.arange(ROWS) * 20 // ROWS if labels == "sorted" else np.arange(ROWS) * 7919 % 20
    table = pa.table({"id": np.arange(ROWS), "label": label})
    for index in range(files):
        part = table.slice(ROWS * index // files, ROWS // files)
        pq.write_table(part, folder / f"{index:05d}.parquet", row_group_size=group_rows, **options)
    return folder


def codes(report: DoctorReport) -> dict[str, str]:
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
    assert few.what == "only 5 row groups for 16 ranks"
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


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts as much smaller as everything else here."""
    monkeypatch.setattr(parts, "TARGET_BYTES", 20_000)
    monkeypatch.setattr(parts, "LEAST_BYTES", 10_000)


def make_cells(folder: Path, *, index: bool, lists: bool = False) -> Path:
    """Write 16 row groups of 250 KB, sorted by label, in pages of 10 rows."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(4):
        cells = [rng.integers(0, 1 << 60, 64).tolist() if lists else rng.bytes(500) for _ in range(2_000)]
        table = pa.table({"label": np.repeat(np.arange(4) + 4 * number, 500), "cell": cells})
        pq.write_table(
            table, folder / f"{number}.parquet", row_group_size=500, write_page_index=index, write_batch_size=10,
            data_page_size=4_000, use_dictionary=False,
        )  # fmt: skip
    return folder


CELLS: dict[str, Any] = {"world": 1, "batch_size": 64, "row_group_bytes": 1 << 14, "shuffle_bytes": 1 << 20}


@pytest.mark.usefixtures("small_parts")
def test_large_row_groups_that_are_read_in_parts_are_not_found(tmp_path: Path) -> None:
    report = examine(make_cells(tmp_path / "d", index=True), **CELLS)
    assert codes(report) == {"sorted-by-label": "advice", "no-schema": "advice"}
    assert "smaller row groups" not in str(report)
    assert "--shuffle" in (report.rewrite_command or ""), (
        "shuffle=True mixes labels, but less than a random choice does"
    )
    better = examine(tmp_path / "d", **CELLS | {"shuffle_bytes": 3 << 20})
    [label] = [finding for finding in better.findings if finding.code == "sorted-by-label"]
    assert label.numbers["shuffled"] > 0.9 * label.numbers["random"]
    assert label.cure == "train with shuffle=True"
    assert better.rewrite_command is None
    plan = penstock.open(tmp_path / "d").plan(batch_size=64, shuffle=True, shuffle_bytes=1 << 20)
    assert plan.order.parts
    assert plan.warnings == ()


@pytest.mark.usefixtures("small_parts")
def test_large_row_groups_without_an_offset_index_lose_their_mixing_until_they_are_indexed(tmp_path: Path) -> None:
    report = examine(make_cells(tmp_path / "d", index=False), **CELLS)
    assert codes(report) == {"large-row-groups": "problem", "sorted-by-label": "problem", "no-schema": "advice"}
    found = {finding.code: finding for finding in report.findings}
    large, label = found["large-row-groups"], found["sorted-by-label"]
    now, indexed, random = (large.numbers[f"chunks_per_batch{name}"] for name in ("", "_indexed", "_permuted"))
    assert 2.5 * now < indexed <= random
    assert "no offset index" in large.effect
    assert label.numbers["shuffled"] < 0.5 * label.numbers["random"] < label.numbers["indexed"]
    for finding in (large, label):
        assert "penstock index --beside URL" in finding.cure
    assert "write_page_index=True" in large.cure
    assert report.rewrite_command is None, "an index is enough"
    assert report.to_json()["index_command"] == report.index_command == f"penstock index --beside {tmp_path}/d"
    assert str(report).splitlines()[-1] == f"cure     {report.index_command}"
    index_pages(tmp_path / "d", beside=True)
    after = examine(tmp_path / "d", **CELLS)
    assert after.index_command is None
    assert codes(after) == {"sorted-by-label": "advice", "no-schema": "advice"}
    [sorted_by_label] = [finding for finding in after.findings if finding.code == "sorted-by-label"]
    assert sorted_by_label.numbers["shuffled"] == pytest.approx(label.numbers["indexed"])


@pytest.mark.usefixtures("small_parts")
def test_row_groups_of_about_the_wanted_size_are_not_called_large(tmp_path: Path) -> None:
    report = examine(make_cells(tmp_path / "d", index=False), **CELLS | {"row_group_bytes": 240_000})
    [finding] = [finding for finding in report.findings if finding.code == "large-row-groups"]
    assert "are read whole" in finding.what
    assert "penstock index --beside URL" in finding.cure
    for text in ("smaller row groups", "rewritten", "is good"):
        assert text not in str(finding)
    assert report.rewrite_command is None


@pytest.mark.usefixtures("small_parts")
def test_row_groups_that_no_index_divides_are_to_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divide, "LARGE_BYTES", 100_000)
    report = examine(make_cells(tmp_path / "d", index=False, lists=True), **CELLS)
    [finding] = [finding for finding in report.findings if finding.code == "large-row-groups"]
    assert "column 'cell" in finding.effect
    assert "cannot be read in parts" in finding.effect
    assert finding.cure == "write smaller row groups"
    assert report.rewrite_command is not None


@pytest.mark.usefixtures("small_parts")
def test_an_index_gives_many_ranks_enough_to_read(tmp_path: Path) -> None:
    make_cells(tmp_path / "d", index=False)
    report = examine(tmp_path / "d", **CELLS | {"world": 8})
    [few] = [finding for finding in report.findings if finding.code == "few-row-groups"]
    assert few.numbers["read_factor"] > 3
    assert few.numbers["read_factor_indexed"] < 1.2
    assert "penstock index --beside URL" in few.cure
    assert few.flags is None
    index_pages(tmp_path / "d", beside=True)
    assert "few-row-groups" not in codes(examine(tmp_path / "d", **CELLS | {"world": 8}))


@pytest.mark.usefixtures("small_parts")
def test_too_few_parts_for_the_ranks_are_named_as_parts(tmp_path: Path) -> None:
    make_cells(tmp_path / "d", index=True)
    report = examine(tmp_path / "d", **CELLS | {"world": 300, "shuffle_bytes": 1 << 26})
    [finding] = [finding for finding in report.findings if finding.code == "few-row-groups"]
    assert " parts of 16 row groups for 300 ranks" in finding.what


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
    assert "nothing is cast" in report.findings[0].effect
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
    sizes = ["--row-group-bytes", "16KiB", "--shuffle-bytes", "128KiB", "--world", "1"]
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


def cured(report: DoctorReport, out: Path) -> Path:
    """Run the command that the report prints, as a shell would."""
    words = shlex.split((report.rewrite_command or "no cure").replace(" OUT", f" {shlex.quote(str(out))}"))
    assert words[:2] == ["penstock", "rewrite"]
    assert main(words[1:]) == 0
    return out


TABLES: dict[str, Any] = {
    "numbers": lambda rows: {"x": rows * 0.5},
    "short text": lambda rows: {"x": rows * 0.5, "y": [str(i % 10) for i in rows.tolist()]},
    "flags": lambda rows: {f"f{k}": rows % (k + 2) == 0 for k in range(8)},
    "empty text": lambda rows: {f"t{k}": [""] * len(rows) for k in range(8)},
    "cells": lambda rows: {"cell": [bytes([i % 251]) * (20 + i * 7919 % 61) for i in rows.tolist()]},
    "words": lambda rows: {"w": pa.array([f"word {i % 100}" for i in rows.tolist()]).dictionary_encode()},
    "lists": lambda rows: {"l": [[i] * (i % 5) for i in rows.tolist()]},
}


@pytest.mark.parametrize("group_rows", [300, 40_000])
@pytest.mark.parametrize("world", [1, 8])
@pytest.mark.parametrize("kind", TABLES)
def test_the_cure_keeps_its_promise(tmp_path: Path, kind: str, world: int, group_rows: int) -> None:
    """Statistics are missing, whatever else is wrong: after one rewrite nothing is, and ranks read what was said."""
    (tmp_path / "d").mkdir()
    rows = np.arange(ROWS)
    table = pa.table({"id": rows, **TABLES[kind](rows)})
    pq.write_table(table, tmp_path / "d" / "a.parquet", row_group_size=group_rows, write_statistics=False)
    options = {"world": world, "row_group_bytes": 1 << 14, "shuffle_bytes": 1 << 16}
    report = examine(tmp_path / "d", **options)
    assert "no-statistics" in codes(report)
    again = examine(cured(report, tmp_path / "out"), **options)
    assert again.findings == (), (str(report), str(again))


def read_factor(path: Path, world: int, lanes: int | None, shuffle_bytes: int) -> float:
    plan = penstock.open(path).plan(
        batch_size=256, world=world, shuffle=True, lanes=lanes, shuffle_bytes=shuffle_bytes, seed=0
    )
    return plan.read_factor


@pytest.mark.parametrize("shuffle_bytes", [1 << 16, 1 << 17, 1 << 30])
def test_what_ranks_read_after_the_cure_is_what_was_said(tmp_path: Path, shuffle_bytes: int) -> None:
    (tmp_path / "d").mkdir()
    table = {"id": np.arange(20_000), "x": np.arange(20_000) / 3, "y": np.arange(20_000) / 7}
    labels = np.repeat(["a", "b", "c", "d"], 5000)
    pq.write_table(pa.table({**table, "label": labels}), tmp_path / "d" / "a.parquet", row_group_size=10_000)
    report = examine(tmp_path / "d", row_group_bytes=16 << 10, shuffle_bytes=shuffle_bytes)
    [few] = [finding for finding in report.findings if finding.code == "few-row-groups"]
    lanes = 8 if "lanes=8" in few.cure else 16 if "lanes=16" in few.cure else 24 if "lanes=24" in few.cure else None
    found = read_factor(cured(report, tmp_path / "out"), 8, lanes, shuffle_bytes)
    assert found <= few.numbers["read_factor_rewritten"] * 1.05
    assert examine(tmp_path / "out", row_group_bytes=16 << 10, shuffle_bytes=shuffle_bytes).findings == ()


def test_the_default_options_make_no_dataset_worse(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    table = pa.table({"id": np.arange(4_000_000), "x": np.arange(4_000_000) / 3})
    pq.write_table(table, tmp_path / "d" / "a.parquet", row_group_size=131_072, write_statistics=False)
    report = examine(tmp_path / "d")
    assert codes(report) == {"no-statistics": "advice"}
    assert report.rewrite_command == f"penstock rewrite {tmp_path}/d OUT --row-group-bytes 2MiB"
    assert examine(cured(report, tmp_path / "out")).findings == ()


def test_tiny_files_become_good_row_groups(tmp_path: Path) -> None:
    report = examine(make(tmp_path / "d", 500, files=100), row_group_bytes=64 << 10)
    assert codes(report) == {"tiny-files": "advice"}
    assert examine(cured(report, tmp_path / "out"), row_group_bytes=64 << 10).findings == ()
    assert len(list((tmp_path / "out").glob("*.parquet"))) == report.findings[0].numbers["files_rewritten"] == 1


@pytest.mark.parametrize("rows", [200_000, 2_000])
def test_a_label_that_is_a_folder(tmp_path: Path, rows: int) -> None:
    columns = {"label": np.repeat(np.arange(4), rows // 4), "x": np.random.default_rng(0).random(rows)}
    penstock.write(columns, tmp_path / "d", partition_by=["label"], row_group_bytes=64 << 10)
    options = {"row_group_bytes": 64 << 10, "shuffle_bytes": 256 << 10}
    report = examine(tmp_path / "d", **options)
    assert "sorted-by-label" in codes(report)
    if rows == 2_000:  # all rows fit the shuffle buffer
        assert report.rewrite_command is None
        return
    assert "--partition-by '' --shuffle" in (report.rewrite_command or "")
    assert any("the rewrite removes the partition folders of 'label'" in note for note in report.notes)
    assert examine(cured(report, tmp_path / "out"), **options).findings == ()
    assert penstock.open(tmp_path / "out").take(range(rows))["label"].sum() == columns["label"].sum()


def test_folders_stay_where_they_do_no_harm_and_go_where_they_do(tmp_path: Path) -> None:
    columns = {"id": np.arange(ROWS), "x": np.arange(ROWS) / 3}
    for name, folders in (("few", 4), ("many", 200)):
        penstock.write({**columns, "k": np.arange(ROWS) * folders // ROWS}, tmp_path / name, partition_by="k")
        (tmp_path / name / "_common_metadata").unlink()  # something that a rewrite cures
    few, many = (examine(tmp_path / name, world=1, **SMALL) for name in ("few", "many"))
    assert "--partition-by" not in (few.rewrite_command or "--partition-by")
    assert {"tiny-files", "no-common-metadata"} <= set(codes(many))
    assert "--partition-by ''" in (many.rewrite_command or "")
    for report, name in ((few, "few"), (many, "many")):
        assert examine(cured(report, tmp_path / f"{name}-out"), world=1, **SMALL).findings == ()
    assert (tmp_path / "few-out" / "k=3").is_dir()


def test_the_command_is_one_for_a_shell(tmp_path: Path) -> None:
    report = examine(make(tmp_path / "sp ace 'q'", 20_000), world=1, **SMALL)
    assert examine(cured(report, tmp_path / "out put"), world=1, **SMALL).ok


def test_rows_larger_than_a_row_group_are_not_to_be_rewritten(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    table = pa.table({"id": np.arange(80), "cell": [np.random.default_rng(i).bytes(200_000) for i in range(80)]})
    pq.write_table(table, tmp_path / "d" / "a.parquet", row_group_size=1, use_dictionary=False)
    assert "large-row-groups" not in codes(examine(tmp_path / "d", world=1, **SMALL))


def test_no_rows_are_all_there_is_to_say(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    table = pa.table({"id": np.arange(0), "x": np.arange(0) / 2})
    pq.write_table(table, tmp_path / "d" / "a.parquet", write_statistics=False)
    pq.write_table(table.slice(0, 0), tmp_path / "d" / "b.parquet")
    report = examine(tmp_path / "d")
    assert (codes(report), report.rewrite_command) == ({"no-rows": "problem"}, None)


def test_columns_in_another_order_are_no_finding(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "d" / "a.parquet")
    pq.write_table(pa.table({"b": ["y"], "a": [2]}), tmp_path / "d" / "b.parquet")
    assert examine(tmp_path / "d").findings == ()
    pq.write_table(pa.table({"b": pa.array(["y"], pa.large_string()), "a": [2]}), tmp_path / "d" / "c.parquet")
    [finding] = examine(tmp_path / "d").findings
    assert (finding.code, "which are cast" in finding.effect) == ("mixed-schemas", True)
    assert "2 different schemas: 1 file of 3 differ" in finding.what


def test_nothing_but_nan_has_statistics(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    pq.write_table(pa.table({"x": [float("nan")] * 10, "n": pa.nulls(10, pa.int64())}), tmp_path / "d" / "a.parquet")
    assert examine(tmp_path / "d").findings == ()


def test_a_dataset_that_does_not_open_has_no_cure_by_rewriting(tmp_path: Path) -> None:
    make(tmp_path / "d", 1000, write_statistics=False)
    pq.write_table(pa.table({"id": ["text"], "label": [1]}), tmp_path / "d" / "x.parquet")
    (tmp_path / "d" / "y.parquet").write_bytes(b"PAR1 truncated")
    report = examine(tmp_path / "d", world=1, **SMALL)
    assert {"mixed-schemas", "bad-files"} <= set(codes(report))
    assert report.rewrite_command is None


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
    assert "already exists" in capsys.readouterr().err
    assert main(["rewrite", str(source), str(out), "--overwrite", "--partition-by", "label"]) == 0
    assert (out / "label=3").is_dir()
