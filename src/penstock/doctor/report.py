"""What the doctor found: values to print, to count and to store as JSON.

Made by `examine`; read by people and by the command line. Knows nothing of datasets.
"""

from __future__ import annotations

import shlex
import textwrap
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.display import count_text, size_text
from penstock.errors import printable

Severity = Literal["problem", "advice"]
WIDTH = 110
_IN_JSON = ("code", "severity", "what", "effect", "cure", "numbers")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that could be better."""

    code: str
    """A short name that does not change: "large-row-groups"."""
    severity: Severity
    """"problem": training suffers; "advice": it works, and could be better."""
    what: str
    """The fact."""
    effect: str
    """What it costs, in numbers."""
    cure: str
    """What to do."""
    numbers: dict[str, float]
    """The numbers of the effect, by name."""
    flags: tuple[str, ...] | None = None
    """Options of `penstock rewrite` that fix it without side effects; None if rewriting does not help, or something
    simpler does."""
    index: bool = False
    """Whether `penstock index --beside` fixes it."""

    def __str__(self) -> str:
        lines = [f"{self.severity:8} {printable(self.what)}"]
        for word, text in (("effect", self.effect), ("cure", self.cure)):
            lines += textwrap.wrap(
                f"{word:8} {printable(text)}", WIDTH, initial_indent="  ", subsequent_indent=" " * 11
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The state of a dataset for a training run."""

    url: str
    rows: int
    files: int
    row_groups: int
    bytes: int
    """Total size of the files."""
    open_s: float
    """Seconds that opening it took."""
    findings: tuple[Finding, ...]
    """Problems first, then advice."""
    notes: tuple[str, ...] = field(default=())
    """Other hints: what was not checked, how to start the run."""
    sources: tuple[str, ...] = field(default=())
    """What was examined, name by name; `url` has them in one text."""

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that training suffers from."""
        return tuple(finding for finding in self.findings if finding.severity == "problem")

    @property
    def ok(self) -> bool:
        """Whether there is no problem; advice does not count."""
        return not self.problems

    @property
    def rewrite_command(self) -> str | None:
        """The command that fixes what rewriting can fix; None if there is nothing."""
        curable = [finding.flags for finding in self.findings if finding.flags is not None]
        flags = dict.fromkeys(flag for flags in curable for flag in flags)
        names = map(shlex.quote, self.sources or (self.url,))
        return " ".join(["penstock rewrite", *names, "OUT", *flags]) if curable else None

    @property
    def index_command(self) -> str | None:
        """The command that fixes what an index of pages can fix; None if there is nothing."""
        names = map(shlex.quote, self.sources or (self.url,))
        found = any(finding.index for finding in self.findings)
        return " ".join(["penstock index --beside", *names]) if found else None

    def __str__(self) -> str:
        counts = [(self.rows, "row"), (self.files, "file"), (self.row_groups, "row group")]
        held = ", ".join(count_text(number, word) for number, word in counts)
        lines = [
            f"{printable(self.url)}: {held}, {size_text(self.bytes)}; opened in {self.open_s:.2f} s",
            *map(str, self.findings),
            *(f"note     {printable(note)}" for note in self.notes),
        ]
        problems, others = len(self.problems), len(self.findings) - len(self.problems)
        found = f"{count_text(problems, 'problem')}, {others:,} of advice" if self.findings else "nothing is wrong"
        lines.append(f"result   {found}")
        commands = (self.index_command, self.rewrite_command)
        lines += [f"cure     {printable(command)}" for command in commands if command is not None]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values; keys are only ever added."""
        return {
            "version": 1,
            "url": self.url,
            "ok": self.ok,
            "rows": self.rows,
            "files": self.files,
            "row_groups": self.row_groups,
            "bytes": self.bytes,
            "open_s": self.open_s,
            "findings": [{name: getattr(finding, name) for name in _IN_JSON} for finding in self.findings],
            "notes": list(self.notes),
            "index_command": self.index_command,
            "rewrite_command": self.rewrite_command,
        }
