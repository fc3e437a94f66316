"""The bar shows on a terminal, after a while, and nowhere else."""

import io

import pytest

from penstock import progress as module
from penstock.progress import Progress, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_items_pass_through_in_order() -> None:
    assert list(progress(range(5), "five")) == [0, 1, 2, 3, 4]
    assert list(progress((c for c in "abc"), "letters")) == ["a", "b", "c"]


def test_nothing_is_written_where_nobody_looks(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(module, "DELAY_S", 0.0)
    with progress(10, "work") as bar:
        bar.update(10)
    list(progress([1], "one"))
    assert capsys.readouterr() == ("", "")


def test_terminal_shows_count_and_total_after_the_delay(monkeypatch) -> None:
    monkeypatch.setattr(module, "DELAY_S", 0.0)
    stream = Terminal()
    with Progress(200, "writing", unit="rows", stream=stream) as bar:
        bar.update(100)
    assert "writing: 100 of 200 rows [###############---------------]" in stream.getvalue()
    assert stream.getvalue().endswith("\n")


def test_unknown_total_shows_the_count(monkeypatch) -> None:
    monkeypatch.setattr(module, "DELAY_S", 0.0)
    stream = Terminal()
    with Progress(None, "writing", unit="rows", stream=stream) as bar:
        bar.update(1234)
    assert "writing: 1,234 rows" in stream.getvalue()


def test_short_work_stays_quiet_on_a_terminal_too() -> None:
    stream = Terminal()
    with Progress(2, "short", stream=stream) as bar:
        bar.update(2)
    assert stream.getvalue() == ""


def test_the_line_ends_when_the_work_fails(monkeypatch) -> None:
    monkeypatch.setattr(module, "DELAY_S", 0.0)
    stream = Terminal()

    def work() -> None:
        with Progress(2, "work", stream=stream) as bar:
            bar.update()
            raise OSError("disk full")

    with pytest.raises(OSError, match="full"):
        work()
    assert stream.getvalue().endswith("\n")


def test_a_closed_stream_is_no_terminal() -> None:
    stream = Terminal()
    stream.close()
    Progress(1, "x", stream=stream).update()
