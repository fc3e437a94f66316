"""The command line: `penstock info|head|plan|doctor|rewrite|index|bench URL`.

Parses arguments, calls the public API and prints the result; what a command prints is made in `commands`. Errors go to
stderr in one line (`--debug` shows the traceback); the exit status is 0, 1 for an error, 2 for a wrong command line, 3
if the doctor found a problem, 130 for Ctrl-C.
"""

from penstock.cli.main import main

__all__ = ["main"]
