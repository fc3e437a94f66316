"""`map_files` on this machine: results, failures, retries, killed workers, killed jobs, stores, commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import psutil
import pytest

import penstock
from penstock.errors import JobFailed, PlanError
from penstock.testing import RecordingFileSystem
from tests.jobs import work

COUNT = 6


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    for i in range(COUNT):
        (folder / f"{i}.txt").write_text(f"file {i}\n")
    return folder


def assert_doubled(out: Path, numbers: range | list[int] = range(COUNT)) -> None:
    """Every output is there and correct, and nothing else: no hidden leftover either."""
    assert sorted(p.name for p in out.iterdir()) == sorted(f"{i}.txt" for i in numbers)
    for i in numbers:
        assert (out / f"{i}.txt").read_text() == f"file {i}\n" * 2


@pytest.mark.parametrize("executor", ["local", "serial"])
def test_every_output_is_made_once(raw: Path, tmp_path: Path, executor: str) -> None:
    report = penstock.map_files(work.double, f"{raw}/*.txt", tmp_path / "out", executor=executor, workers=2)
    assert_doubled(tmp_path / "out")
    assert report.done == tuple(f"{tmp_path}/out/{i}.txt" for i in range(COUNT))
    assert (report.skipped, report.failed_attempts) == ((), ())
    assert str(report) == "6 done, 0 skipped, 0 failed"


def test_the_form_of_pairs_and_an_executor_of_ones_own(raw: Path, tmp_path: Path) -> None:
    pairs = [(raw / f"{i}.txt", tmp_path / "out" / f"{i}.txt") for i in range(COUNT)]
    with ThreadPoolExecutor(2) as pool:
        report = penstock.map_files(work.double, pairs, executor=pool)
    assert len(report.done) == COUNT
    assert_doubled(tmp_path / "out")


def test_what_is_there_is_skipped_or_made_again(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "2.txt").write_text("mine")
    report = penstock.map_files(work.double, raw, out, executor="serial")
    assert report.skipped == (f"{out}/2.txt",)
    assert len(report.done) == COUNT - 1
    assert (out / "2.txt").read_text() == "mine"
    report = penstock.map_files(work.double, raw, out, executor="serial", skip_existing=False)
    assert (len(report.done), report.skipped) == (COUNT, ())
    assert_doubled(out)


def test_failures_are_tried_again_and_all_reported_at_the_end(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(JobFailed) as caught:
        penstock.map_files(work.refuse_odd, raw, tmp_path / "out", retries=1, workers=2)
    assert_doubled(tmp_path / "out", [0, 2, 4])  # what failed half-way is not there, the others are
    report = caught.value.report
    assert [Path(one.input).name for one in sorted(report.failed, key=lambda one: one.input)] == [
        "1.txt", "3.txt", "5.txt",
    ]  # fmt: skip
    assert sorted(one.attempt for one in report.failed_attempts) == [1, 1, 1, 2, 2, 2]
    assert all("refuse_odd" in one.traceback for one in report.failed_attempts)
    message = str(caught.value)
    assert message.startswith("3 of 6 files failed; the other outputs are complete")
    assert f"{raw}/1.txt -> {tmp_path}/out/1.txt, attempt 2: ValueError: 1.txt is odd and that is that" in message


def test_what_to_do_about_failures_is_true_where_outputs_are_made_again(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "1.txt").write_text("of an earlier run")
    options = {"executor": "serial", "retries": 0, "skip_existing": False}
    with pytest.raises(JobFailed) as caught:
        penstock.map_files(work.refuse_odd, raw, out, **options)
    message = str(caught.value)
    assert "tries only the ones that are missing" not in message
    assert "the same call makes all files again" in message
    assert (out / "1.txt").read_text() == "of an earlier run"
    again = [(one.input, one.output) for one in caught.value.report.failed]
    assert "[(one.input, one.output) for one in error.report.failed]" in message
    assert len(penstock.map_files(work.double, again, **options).done) == 3
    assert_doubled(out)


def test_files_made_beside_the_output_go_with_the_run(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    mine = ["notes.log", ".penstock-of-mine", ".penstock-0123456789ab.other.txt"]  # none of this job's
    for name in mine:
        (out / name).write_text("mine")
    report = penstock.map_files(work.with_extras, raw, out, workers=2, retries=1, on_error="skip")
    assert len(report.failed) == 3
    assert sorted(p.name for p in out.iterdir()) == sorted([*mine, "0.txt", "2.txt", "4.txt"])


def test_what_a_killed_run_left_goes_and_what_another_job_makes_stays(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    token, alone, live = "0123456789ab", "ba9876543210", "00112233aabb"
    for name in (f"{token}.0.txt", f"{token}.0.txt.log", f"{alone}.1.txt.log", f"{live}.1.txt.gz"):
        (out / f".penstock-{name}").write_text("half")
    two_days_ago = time.time() - 2 * 86400
    os.utime(out / f".penstock-{alone}.1.txt.log", (two_days_ago, two_days_ago))
    penstock.map_files(work.double, raw, out, executor="serial")
    assert [p.name for p in out.glob(".penstock-*")] == [f".penstock-{live}.1.txt.gz"]


def test_no_input_is_overwritten_through_a_link(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(raw)
    with pytest.raises(PlanError, match="is input and output at once"):
        penstock.map_files(work.double, f"{raw}/*.txt", tmp_path / "link", executor="serial", skip_existing=False)
    assert [(raw / f"{i}.txt").read_text() for i in range(COUNT)] == [f"file {i}\n" for i in range(COUNT)]


def test_failures_may_be_left_to_the_report(raw: Path, tmp_path: Path) -> None:
    report = penstock.map_files(work.refuse_odd, raw, tmp_path / "out", retries=0, executor="serial", on_error="skip")
    assert str(report) == "3 done, 0 skipped, 3 failed"


def test_what_passes_is_made_up_for(raw: Path, tmp_path: Path) -> None:
    report = penstock.map_files(work.fail_once, f"{raw}/*.txt", tmp_path / "out", executor="serial")
    assert_doubled(tmp_path / "out")
    assert len(report.failed_attempts) == COUNT
    assert not report.failed
    assert str(report) == "6 done, 0 skipped, 0 failed (6 failed attempts made up for)"


def test_a_worker_that_is_killed_loses_nothing(raw: Path, tmp_path: Path) -> None:
    report = penstock.map_files(work.die_once, f"{raw}/*.txt", tmp_path / "out", workers=2)
    assert_doubled(tmp_path / "out")
    [lost] = report.failed_attempts
    assert (Path(lost.input).name, lost.attempt, lost.final) == ("3.txt", 1, False)
    assert "was killed by SIGKILL" in lost.cause


@pytest.mark.parametrize("executor", ["local", "serial"])
def test_a_function_that_ends_its_process_is_a_failure_of_its_file(raw: Path, tmp_path: Path, executor: str) -> None:
    report = penstock.map_files(
        work.leave_odd, raw, tmp_path / "out", executor=executor, workers=2, retries=0, on_error="skip"
    )
    assert_doubled(tmp_path / "out", [0, 2, 4])
    assert [one.cause for one in report.failed] == ["SystemExit: 3"] * 3


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (work.raise_interrupt, "KeyboardInterrupt: from the function"),
        (work.end_at_once, r"WorkerDied: the worker process \(pid \d+\) ended with exit code 1"),
    ],
)
def test_a_worker_that_its_function_ends_gets_no_hint_about_the_script(
    raw: Path, tmp_path: Path, function: object, cause: str
) -> None:
    report = penstock.map_files(function, [raw / "0.txt"], tmp_path / "out", workers=1, retries=0, on_error="skip")
    assert re.fullmatch(cause, report.failed[0].cause)


def test_a_script_without_a_guard_that_needs_one_is_told(raw: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import shutil, sys\n"
        "sys.modules['cloudpickle'] = None\n"
        "import penstock\n"
        "def copy(a, b):\n"
        "    shutil.copy(a, b)\n"
        "penstock.map_files(copy, [sys.argv[1]], sys.argv[2], workers=1, retries=0)\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script), str(raw / "0.txt"), str(tmp_path / "out")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "exit code 1 before it began; see its traceback above: a script" in ran.stderr, ran.stderr


def test_a_job_that_is_killed_is_run_again(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job and its workers end, what is done stays, and the second run makes the rest and removes the leftovers."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    code = (
        "import sys, penstock; from tests.jobs import work; "
        "penstock.map_files(work.wait_to_be_killed, sys.argv[1] + '/*.txt', sys.argv[2], workers=1)"
    )
    out, mark = tmp_path / "out", raw / "3.pid"
    job = subprocess.Popen([sys.executable, "-c", code, str(raw), str(out)])
    while not mark.exists():
        assert job.poll() is None
        time.sleep(0.02)
    worker = psutil.Process(int(mark.read_text()))
    job.send_signal(signal.SIGKILL)
    job.wait()
    worker.wait(30)  # it sees that its parent is gone
    assert sorted(p.name for p in out.glob("[0-9]*")) == ["0.txt", "1.txt", "2.txt"]
    assert sorted(re.sub("[0-9a-f]{12}", "", p.name) for p in out.glob(".*")) == [
        ".penstock--lock.3.txt",
        ".penstock-.3.txt",
    ]
    assert len(list(temporary.glob("penstock-*"))) == 1
    report = penstock.map_files(work.wait_to_be_killed, f"{raw}/*.txt", out, workers=2)
    assert (len(report.done), len(report.skipped)) == (3, 3)
    assert_doubled(out)
    assert list(temporary.glob("penstock-*")) == []


def test_a_run_leaves_alone_what_another_one_makes_of_the_same_file(raw: Path, tmp_path: Path) -> None:
    code = (
        "import sys, penstock; from tests.jobs import work; "
        "penstock.map_files(work.wait_to_go_on, sys.argv[1], sys.argv[2], workers=1, retries=0, skip_existing=False)"
    )
    out = tmp_path / "out"
    slow = subprocess.Popen([sys.executable, "-c", code, str(raw / "3.txt"), f"{out}/"])
    while not (raw / "3.begun").exists():
        assert slow.poll() is None
        time.sleep(0.02)
    penstock.map_files(work.double, f"{raw}/*.txt", out, workers=1)
    assert len(list(out.glob(".penstock-*"))) == 3  # output, log and lock of the other run
    (raw / "3.go").touch()
    assert slow.wait(60) == 0
    assert_doubled(out)


def test_on_a_store_what_another_run_left_is_removed_when_it_is_old(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    fresh, old = out / ".penstock-0123456789ab.1.txt", out / ".penstock-ba9876543210.2.txt"
    for path in (fresh, old):
        path.write_text("half")
    two_days_ago = time.time() - 2 * 86400
    os.utime(old, (two_days_ago, two_days_ago))
    penstock.map_files(work.double, f"{raw}/*.txt", f"{out}/", executor="serial", filesystem=RecordingFileSystem())
    assert (fresh.exists(), old.exists()) == (True, False)


def test_folders_that_are_replaced_leave_nothing(raw: Path, tmp_path: Path) -> None:
    for _ in range(2):
        penstock.map_files(work.folder, f"{raw}/*.txt", tmp_path / "out", executor="serial", skip_existing=False)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(f"{i}.txt" for i in range(COUNT))


def test_ctrl_c_ends_the_workers_and_leaves_no_temporary_file(raw: Path, tmp_path: Path) -> None:
    code = (
        "import sys, penstock; from tests.jobs import work\n"
        "penstock.map_files(work.wait_to_be_killed, sys.argv[1] + '/3.txt', sys.argv[2], workers=1)"
    )
    out, mark = tmp_path / "out.txt", raw / "3.pid"
    job = subprocess.Popen([sys.executable, "-c", code, str(raw), str(out)], stderr=subprocess.PIPE)
    while not mark.exists():
        time.sleep(0.02)
    worker = psutil.Process(int(mark.read_text()))
    job.send_signal(signal.SIGINT)
    _, stderr = job.communicate(timeout=60)
    assert b"KeyboardInterrupt" in stderr
    worker.wait(30)
    assert [p.name for p in tmp_path.iterdir()] == ["raw"]


def test_a_script_without_a_guard_may_use_a_lambda(raw: Path, tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    script = tmp_path / "script.py"
    script.write_text(
        "import shutil, sys, penstock\n"
        "print(penstock.map_files(lambda a, b: shutil.copy(a, b), sys.argv[1], sys.argv[2], workers=2))\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script), str(raw), str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert ran.stdout == "6 done, 0 skipped, 0 failed\n", ran.stderr


def test_a_function_may_start_processes_of_its_own(raw: Path, tmp_path: Path) -> None:
    penstock.map_files(work.in_processes, raw / "0.txt", tmp_path / "sum.txt", workers=1)
    assert (tmp_path / "sum.txt").read_text() == "6"


def test_a_function_that_makes_nothing_is_an_error(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"made nothing for .* second argument"):
        penstock.map_files(work.nothing, raw / "0.txt", tmp_path / "x.txt", executor="serial", retries=0)


def test_a_folder_may_be_an_output(raw: Path, tmp_path: Path) -> None:
    for _ in range(2):  # the second time it replaces the first one
        penstock.map_files(work.folder, {raw / "0.txt": tmp_path / "made"}, executor="serial", skip_existing=False)
        assert sorted(p.name for p in (tmp_path / "made").iterdir()) == ["0.txt", "more"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["made", "raw"]


@pytest.fixture
def memory(raw: Path) -> fsspec.AbstractFileSystem:
    fs = fsspec.filesystem("memory")
    fs.rm("/jobs", recursive=True) if fs.exists("/jobs") else None
    for path in raw.glob("*.txt"):
        fs.pipe(f"/jobs/raw/{path.name}", path.read_bytes())
    return fs


@pytest.mark.parametrize("existing", [False, True])
def test_a_store_is_read_and_written_through_local_files(memory: fsspec.AbstractFileSystem, existing: bool) -> None:
    if existing:
        memory.pipe("/jobs/out/2.txt", b"old")
    inputs, outputs = "memory://jobs/raw/*.txt", "memory://jobs/out"
    report = penstock.map_files(work.double, inputs, outputs, executor="serial", skip_existing=False)
    assert len(report.done) == COUNT
    assert sorted(memory.ls("/jobs/out", detail=False)) == [f"/jobs/out/{i}.txt" for i in range(COUNT)]
    for i in range(COUNT):
        assert memory.cat(f"/jobs/out/{i}.txt") == f"file {i}\n".encode() * 2
    again = penstock.map_files(work.double, inputs, outputs, executor="serial")
    assert len(again.skipped) == COUNT


def test_a_failure_leaves_nothing_on_the_store(memory: fsspec.AbstractFileSystem) -> None:
    report = penstock.map_files(
        work.refuse_odd, "memory://jobs/raw/*.txt", "memory://jobs/out", executor="serial", retries=0, on_error="skip"
    )
    assert len(report.failed) == 3
    assert sorted(memory.ls("/jobs/out", detail=False)) == ["/jobs/out/0.txt", "/jobs/out/2.txt", "/jobs/out/4.txt"]


def url_double(source: str, target: str) -> None:
    fs = fsspec.filesystem("memory")
    assert source.startswith("memory://")
    fs.pipe(target, fs.cat(source) * 2)


def test_a_function_may_take_urls(memory: fsspec.AbstractFileSystem) -> None:
    penstock.map_files(url_double, "memory://jobs/raw", "memory://jobs/out/", executor="serial", stage=False)
    assert {p: memory.cat(p) for p in memory.ls("/jobs/out", detail=False)} == {
        f"/jobs/out/{i}.txt": f"file {i}\n".encode() * 2 for i in range(COUNT)
    }


def test_a_program_in_place_of_a_function(raw: Path, tmp_path: Path) -> None:
    code = "import sys, shutil; shutil.copy(sys.argv[1], sys.argv[2])"
    named = [sys.executable, "-c", code, "{input}", "{output}"]
    penstock.map_files(named, raw, tmp_path / "named", executor="serial")
    piped = [sys.executable, "-c", "import sys; sys.stdout.write(sys.stdin.read())"]
    penstock.map_files(piped, raw, tmp_path / "piped", executor="serial")
    for folder in ("named", "piped"):
        assert [(tmp_path / folder / f"{i}.txt").read_text() for i in range(COUNT)] == [
            f"file {i}\n" for i in range(COUNT)
        ]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([sys.executable, "-c", "import sys; sys.exit('no such codec')"], "ended with status 1: no such codec"),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], "was killed by SIGKILL: it wrote nothing"),
        (["no-such-program-here"], "no program 'no-such-program-here'"),
    ],
)
def test_a_program_that_fails_says_why(raw: Path, tmp_path: Path, command: list[str], message: str) -> None:
    with pytest.raises(JobFailed, match=message):
        penstock.map_files(command, raw / "0.txt", tmp_path / "out.txt", executor="serial", retries=0)
    assert not (tmp_path / "out.txt").exists()
    assert not list(tmp_path.glob(".penstock-*"))


@pytest.mark.parametrize(
    ("fn", "options", "message"),
    [
        ("gzip -c", {}, r"pass a program as a list of words, \['gzip', '-c'\]"),
        (["cp", "{input}", "{ouput}"], {}, r"contains \{ouput\}; did you mean \{output\}"),
        ([], {}, "the command is empty"),
        (["head", 3], {}, "a list of words; got 3"),
        (3, {}, "a function of"),
        (work.double, {"executor": "dask"}, "executor must be one of 'local'"),
        (work.double, {"executor_options": {"num_cpus": 1}}, "the keywords of ray.remote"),
        (work.double, {"retries": -1}, "retries must be a whole number of at least 0; got -1"),
        (work.double, {"workers": 0}, "workers must be a whole number of at least 1; got 0"),
        (work.double, {"on_error": "ignore"}, "on_error must be one of"),
    ],
)
def test_what_cannot_be_run_is_refused_at_once(
    raw: Path, tmp_path: Path, fn: object, options: dict, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        penstock.map_files(fn, raw, tmp_path / "out", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_function_that_cannot_travel_is_refused(raw: Path, tmp_path: Path) -> None:
    pipe = os.popen("true")  # holds a file
    with pipe, pytest.raises(PlanError, match="cannot be sent to other processes"):
        penstock.map_files(lambda _a, _b, pipe=pipe: pipe, raw, tmp_path / "out")


def test_nothing_to_do_starts_nothing(tmp_path: Path) -> None:
    assert str(penstock.map_files(work.double, [], tmp_path / "out")) == "0 done, 0 skipped, 0 failed"
