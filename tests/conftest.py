"""What all tests stand on: Ctrl-C does what it does in a terminal.

A shell starts jobs in the background, and some CI systems start everything, with SIGINT ignored; programs that tests
start would inherit that and never see the Ctrl-C they are sent.
"""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
