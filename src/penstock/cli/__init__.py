"""The command line: `penstock info|head|plan|doctor|rewrite URL`.

Parses arguments, calls the public API and prints what comes back; each command is one file. Holds no knowledge of
datasets of its own. Errors go to stderr in one line (`--debug` shows the traceback); the exit status is 0, 1 for an
error, 2 for a wrong command line, 3 where the doctor found a problem, 130 for Ctrl-C.
"""

from penstock.cli.main import main

__all__ = ["main"]
