"""Ends the commands of this package with one line instead of a traceback when an operation fails.

Wraps the work of a `main`. What a user can mend (no such dataset, a wrong URL or schema, a missing library, a folder
that is there already) goes to stderr in one line with exit status 1; wrong arguments are argparse's, with status 2.
Anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import InternalError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ERROR, INTERRUPTED = 1, 130


class Main(Protocol):
    """The function that a command calls; None stands for the arguments of the process."""

    def __call__(self, args: Sequence[str] | None = None) -> None:
        """Run the command."""


def command(name: str) -> Callable[[Main], Main]:
    """Make a `main` end in one line where it raises an error that is the user's to mend."""

    def wrap(main: Main) -> Main:
        @functools.wraps(main)
        def run(args: Sequence[str] | None = None) -> None:
            try:
                main(args)
            except KeyboardInterrupt:
                raise SystemExit(INTERRUPTED) from None
            except Exception as error:
                if isinstance(error, InternalError) or not isinstance(error, _of_users()):
                    raise
                sys.stderr.write(f"{name}: {_one_line(error)}\n")
                raise SystemExit(ERROR) from error

        return run

    return wrap


def _of_users() -> tuple[type[BaseException], ...]:
    """Return the classes of such errors; Spark's word for a wrong request, if Spark is in use."""
    spark: Any = getattr(sys.modules.get("pyspark.errors"), "AnalysisException", None)
    return (PenstockError, OSError, ValueError, ImportError, *([spark] if isinstance(spark, type) else []))


def _one_line(error: Exception) -> str:
    text = str(error).partition("\nJVM stacktrace")[0]
    return " ".join(text.split()) or type(error).__name__
