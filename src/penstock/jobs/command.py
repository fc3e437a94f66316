"""Run a program on one file: a command list instead of a Python function.

Called by `task` in the worker. No shell is involved: every word of the list is one argument, whatever it contains.
`{input}` and `{output}` stand for the two paths; if a command does not name one, its standard input or output is that
file, as in a pipe.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.engine.process import signal_name
from penstock.errors import JobFailed, PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN_BYTES = 2000
"""The last bytes that a program wrote to stderr are part of the error."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its arguments; called as `command(input_path, output_path)`."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, words: Sequence[object]) -> Command:
        """Check a list of words; a misspelt `{output}` is an error instead of being passed to the program."""
        if not words:
            raise PlanError("the command is empty; give a list such as ['gzip', '-c', '{input}']")
        texts = []
        for word in words:
            if not isinstance(word, str | os.PathLike):
                raise PlanError(f"a command is a list of words; got {word!r} in it")
            text = os.fspath(word)
            for name in re.findall(r"\{(\w+)\}", text):
                near = difflib.get_close_matches(name, ["input", "output"], n=1)
                if near and name != near[0]:
                    raise PlanError(f"the command says {{{name}}}; did you mean {{{near[0]}}}?")
            texts.append(text)
        return cls(tuple(texts))

    def __call__(self, source: str, target: str) -> None:
        """Run the program.

        Raises:
            JobFailed: it could not be started, or ended with another status than 0; with the end of its stderr.
        """
        words = [word.replace("{input}", source).replace("{output}", target) for word in self.words]
        try:
            with contextlib.ExitStack() as files:
                stdin, stdout = subprocess.DEVNULL, subprocess.DEVNULL
                if not self._names("{input}"):
                    stdin = files.enter_context(open(source, "rb")).fileno()
                if not self._names("{output}"):
                    stdout = files.enter_context(open(target, "xb")).fileno()
                done = subprocess.run(words, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, check=False)
        except FileNotFoundError as error:
            if error.filename != words[0]:
                raise
            raise JobFailed(f"no program {words[0]!r} on this machine; install it where the workers run") from error
        if done.returncode:
            status = done.returncode
            how = f"ended with status {status}" if status > 0 else f"was killed by {signal_name(-status)}"
            tail = " ".join(done.stderr[-_SHOWN_BYTES:].decode("utf-8", "replace").split())
            raise JobFailed(f"{words[0]} {how}: {tail or 'it wrote nothing to stderr'}")

    def _names(self, what: str) -> bool:
        return any(what in word for word in self.words)
