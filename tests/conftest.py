"""What all tests stand on: Ctrl-C does what it does in a terminal; and a clock for tests of stores that fail.

A shell starts jobs in the background, and some CI systems start everything, with SIGINT ignored; programs that tests
start would inherit that and never see the Ctrl-C they are sent.
"""

from __future__ import annotations

import signal

import pytest

from penstock.storage import faults

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """Let attempts at a store follow each other at once; the pauses that were due are listed here, in seconds."""
    due: list[float] = []

    def skip(seconds: float) -> bool:
        due.append(seconds)
        return False

    monkeypatch.setattr(faults, "pause", skip)
    return due
