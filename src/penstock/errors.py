"""The errors and warnings that Penstock raises, and nothing else.

Every module may import this one; it imports none. Each error also inherits the built-in that people already catch,
and says what was wanted, what came, where, and what to do. Names of files and columns may hold anything: the text of
errors and warnings has control characters escaped (`printable`), attributes such as `.path` hold the real names.

PenstockError (Exception)
  SchemaError (ValueError)          a schema, a column or a value that does not fit
    ColumnNotFound (KeyError)       a column that the dataset does not have; lists near matches
    UnsupportedType (TypeError)     an Arrow type without a row in docs/types.md
  CodecError (ValueError)           a codec that is not registered, or whose stored state is not understood
  MetadataError (ValueError)        stored metadata that is damaged or asks for what is not allowed
  DatasetNotFound (FileNotFoundError)
    DatasetIncomplete               its writing has begun and not ended; says how to resume or discard it
  DatasetExists (FileExistsError)
  UnsupportedFormat (ValueError)    a Delta, Iceberg or Hudi table; names the reader to use
  StoreError (OSError)              the store did not give the bytes; says nothing about the data; never skipped
    StoreUnavailable (ConnectionError) a store that does not answer, after several attempts; carries .url .attempts
    StoreRefused (PermissionError)  access denied, or no valid credentials; carries .url
  BadFile (OSError)                 a file, row group or page that cannot be read; carries .path .row_group .column
    FileChanged                     a file is not the one that was opened; on_error="skip" does not skip it
  SourceError (RuntimeError)        a source returned other rows or columns than it was asked for; never skipped
  DecodeError (ValueError)          a cell that cannot be decoded; carries .path .row_group .row .column
  TransformError (RuntimeError)     the user's transform failed or broke its contract
  PlanError (ValueError)            options that cannot be planned
    BudgetError                     too few bytes of memory; carries .least
    NotSorted (NotImplementedError) timestamps of windows that go back or are missing; carries .row .chunk
  StateMismatch (ValueError)        a state that belongs to another dataset, selection or seed
  LoaderClosed (RuntimeError)       a loader used after close() or in a forked child
  WorkerDied (RuntimeError)         a process of the pool ended by itself
  JobFailed (RuntimeError)          files of a job could not be made; carries .report
  InternalError (RuntimeError)      a bug of ours; please report
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


_ACTS_ON_TERMINALS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, *, lines: bool = False) -> str:
    """Return text that a terminal only shows: control characters, line breaks and changes of direction escaped.

    Surrogates, which stand for bytes that are not UTF-8 and cannot be printed, are escaped too; other characters stay.
    With `lines` line feeds stay, for text of several lines whose parts are known.
    """

    def escaped(found: re.Match[str]) -> str:
        return "\n" if lines and found[0] == "\n" else found[0].encode("unicode_escape").decode()

    return _ACTS_ON_TERMINALS.sub(escaped, text)


class PenstockError(Exception):
    """Base of all errors raised by Penstock."""

    def __str__(self) -> str:
        return printable(Exception.__str__(self))  # not super(): KeyError would print the repr of the message

    def __reduce__(self) -> Any:
        # The default calls the class with its message alone, which fails where `path=` or `least=` is required, and a
        # process pool breaks on an error that it cannot unpickle.
        return _unpickled, (type(self), self.args), self.__dict__


def _unpickled(kind: type[PenstockError], args: tuple[Any, ...]) -> PenstockError:
    error = kind.__new__(kind)
    error.args = args
    return error


class SchemaError(PenstockError, ValueError):
    """A schema, a column or a value does not fit."""


class ColumnNotFound(SchemaError, KeyError):
    """The dataset has no column of that name."""


class UnsupportedType(SchemaError, TypeError):
    """An Arrow type that has no stated mapping; see docs/types.md."""


class CodecError(PenstockError, ValueError):
    """A codec is not registered, or its stored state is not understood."""


class MetadataError(PenstockError, ValueError):
    """Stored metadata is damaged or asks for something that is not allowed."""


class DatasetNotFound(PenstockError, FileNotFoundError):
    """Nothing to read at that place."""


class DatasetIncomplete(DatasetNotFound):
    """A dataset is still being written, or its writer died before the end."""


class DatasetExists(PenstockError, FileExistsError):
    """A dataset is there already and overwriting was not asked for."""


class UnsupportedFormat(PenstockError, ValueError):
    """A table of Delta, Iceberg or Hudi, which read as plain Parquet would give rows that it has deleted."""


class StoreError(PenstockError, OSError):
    """A store did not give what was requested, for a reason that lies in the store, the network or this machine.

    Whether the data is there and intact is not known, so `on_error="skip"` never leaves anything out because of it.
    """

    def __init__(self, message: str, *, url: str) -> None:
        super().__init__(message)
        self.url = url


class StoreUnavailable(StoreError, ConnectionError):
    """A store does not answer: time-out, lost connection, server error, throttling, or no resources on this machine.

    Raised after `attempts` attempts.
    """

    def __init__(self, message: str, *, url: str, attempts: int) -> None:
        super().__init__(message, url=url)
        self.attempts = attempts


class StoreRefused(StoreError, PermissionError):
    """A store or filesystem denies access, or there are no valid credentials. Raised at once, without another try."""


class BadFile(PenstockError, OSError):
    """A file, row group or page cannot be read."""

    def __init__(self, message: str, *, path: str, row_group: int | None = None, column: str | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.row_group = row_group
        self.column = column


class FileChanged(BadFile):
    """A file was written again since the dataset was opened; its rows are never skipped."""


class SourceError(PenstockError, RuntimeError):
    """A source broke its contract: it returned other rows or columns than were requested."""


class DecodeError(PenstockError, ValueError, RuntimeError):
    """A cell cannot be decoded; a RuntimeError too, which users of Petastorm catch."""

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        row_group: int | None = None,
        row: int | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.row_group = row_group
        self.row = row
        self.column = column


class TransformError(PenstockError, RuntimeError):
    """The user's transform failed, or gave back something other than a batch of the same rows."""


class PlanError(PenstockError, ValueError):
    """Options that cannot be planned."""


class BudgetError(PlanError):
    """The memory budget cannot hold what the plan needs at once."""

    def __init__(self, message: str, *, least: int) -> None:
        super().__init__(message)
        self.least = least


class NotSorted(PlanError, NotImplementedError):
    """Timestamps go back, or one is missing, where windows over time are formed."""

    def __init__(self, message: str, *, row: int | None = None, chunk: int | None = None) -> None:
        super().__init__(message)
        self.row = row
        self.chunk = chunk


class StateMismatch(PenstockError, ValueError):
    """A state belongs to another dataset, selection, order or seed."""


class LoaderClosed(PenstockError, RuntimeError):
    """The loader was closed, or belongs to another process."""


class WorkerDied(PenstockError, RuntimeError):
    """A process of the pool ended by itself."""


class JobFailed(PenstockError, RuntimeError):
    """Files of a job could not be made; `report` says which and why, once the job is over."""

    def __init__(self, message: str, *, report: Any = None) -> None:
        super().__init__(message)
        self.report = report

    def __str__(self) -> str:
        return printable(Exception.__str__(self), lines=True)  # one line for each file


class InternalError(PenstockError, RuntimeError):
    """A bug of Penstock itself; please report it."""


class PenstockWarning(UserWarning):
    """Something works, but not as well as it could; the message names the cure."""

    def __str__(self) -> str:
        return printable(super().__str__())


class PenstockDeprecationWarning(PenstockWarning, DeprecationWarning):
    """A name that still works and will be removed; the message names the new one."""


def users_level() -> int:
    """Return the `stacklevel` with which a warning of the caller points to the first line outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "penstock":
        frame, level = frame.f_back, level + 1
    return level


def close_names(name: str, names: Iterable[str]) -> str:
    """Return the tail of an error about a missing name: near matches, else the first few names there are."""
    import difflib  # late: only errors need it

    names = list(names)
    near = difflib.get_close_matches(name, names, n=3)
    if near:
        return f"did you mean {' or '.join(repr(n) for n in near)}?"
    shown = ", ".join(names[:10]) + (f", ... ({len(names)} in all)" if len(names) > 10 else "")
    return f"there are: {shown or 'none'}"
