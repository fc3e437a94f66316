"""Ends the commands of this package with one line instead of a traceback when an operation fails.

Wraps the work of a `main`. Errors that a user can fix (no such dataset, a wrong URL or schema, a missing library, a
folder that exists already) go to stderr in one line, with exit status 1; argparse reports wrong arguments, with status
2. Anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import InternalError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ERROR, INTERRUPTED = 1, 130
_USERS_ERRORS = (PenstockError, OSError, ValueError, ImportError)


class Main(Protocol):
    """The function that a command calls; None stands for the arguments of the process."""

    def __call__(self, args: Sequence[str] | None = None) -> None:
        """Run the command."""


def command(name: str) -> Callable[[Main], Main]:
    """Return a decorator that makes a `main` end with one line for errors that a user can fix."""

    def wrap(main: Main) -> Main:
        @functools.wraps(main)
        def run(args: Sequence[str] | None = None) -> None:
            try:
                main(args)
            except KeyboardInterrupt:
                raise SystemExit(INTERRUPTED) from None
            except Exception as error:
                # Spark's error for a wrong request, if Spark is in use.
                spark: Any = getattr(sys.modules.get("pyspark.errors"), "AnalysisException", OSError)
                if isinstance(error, InternalError) or not isinstance(error, (*_USERS_ERRORS, spark)):
                    raise
                text = " ".join(str(error).partition("\nJVM stacktrace")[0].split())
                sys.stderr.write(f"{name}: {text or type(error).__name__}\n")
                raise SystemExit(ERROR) from error

        return run

    return wrap
