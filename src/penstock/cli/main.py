"""Parse the command line, run one command, turn errors into one line.

The commands are imported only when one runs, so `--help` and mistakes are answered at once. Opens no dataset.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import InternalError, PenstockError, PenstockWarning, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_ERROR, EXIT_INTERRUPTED = 1, 130

_SHUFFLES = ("rows", "groups", "no")
_UNITS = {"": 0, "B": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; `arguments` defaults to `sys.argv`."""
    options = _parser().parse_args(_current(sys.argv[1:] if arguments is None else arguments))
    try:
        from penstock.cli.commands import run

        with warnings.catch_warnings():
            warnings.simplefilter("default", PenstockWarning)
            warnings.showwarning = _show_warning
            text, status = run(options)
            print(printable(text, lines=True), flush=True)
            return status
    except BrokenPipeError:  # `penstock head URL | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if options.debug:
            raise
        print(f"penstock: {_as_options(_one_line(error), options)}", file=sys.stderr)
        return EXIT_ERROR
    return 0


def _current(arguments: Sequence[str]) -> list[str]:
    """Return the arguments as the parser expects them.

    A `--shuffle` of plan or bench without a value becomes ``--shuffle=rows``: argparse would take the following URL for
    its value. A renamed option gets its new name, with a note.
    """
    made = list(arguments)
    for index, argument in enumerate(made):
        if argument == "--shuffle" and made[0] in ("plan", "bench"):
            has_value = index + 1 < len(made) and made[index + 1] in _SHUFFLES
            made[index] = argument if has_value else "--shuffle=rows"
        if argument.partition("=")[0] == "--window-bytes":
            made[index] = argument.replace("--window", "--shuffle", 1)
            print("penstock: note: --window-bytes is now --shuffle-bytes", file=sys.stderr)
    return made


def size(text: str) -> int:
    """Return bytes from a number with an optional unit: 1073741824, 512M, 1GiB (units are powers of 1024)."""
    letters = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = letters[-1:] if letters[-1:].isalpha() else ""
    number = letters.removesuffix(unit)
    try:
        return int(float(number) * 1024 ** _UNITS[unit])
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 512M, 1GiB or a number of bytes") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="Look at Parquet datasets as a training run sees them, and write them again in a better layout.",
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (summary, options) in _COMMANDS.items():
        verb = {"rewrite": "Write", "bench": "Measure", "index": "Store"}.get(name, "Print")
        command = commands.add_parser(name, help=summary, description=f"{verb} {summary}.")
        for flag, keywords in (_URL | options | _STORE).items():
            command.add_argument(*flag.split(), **keywords)
    return parser


class _Version(argparse.Action):
    """Prints the version; looked up only when it is requested."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import penstock

        print(f"penstock {penstock.__version__}")
        parser.exit()


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return key, value


def _whole(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
    return int(text)


_count, _positive = partial(_whole, 0), partial(_whole, 1)
_URL: dict[str, dict[str, Any]] = {
    "url": {"nargs": "+", "metavar": "URL", "help": "folder, file or pattern: a path or any URL that fsspec knows"},
}
_COLUMNS: dict[str, dict[str, Any]] = {
    "--columns": {"type": _names, "metavar": "A,B", "help": "only these columns; regular expressions allowed"},
}
_STORE: dict[str, dict[str, Any]] = {
    "--storage-option": {
        "type": _pair, "action": "append", "default": [], "metavar": "KEY=VALUE", "help": "for the URL's filesystem",
    },
    "--debug": {"action": "store_true", "help": "show the traceback of an error"},
}  # fmt: skip


def _order(shuffle: str) -> dict[str, dict[str, Any]]:
    """Return the options that plan and bench share; `shuffle` is the default of `--shuffle`."""
    return {
        "--batch-size": {"type": _positive, "default": 256, "help": "rows of a batch on each rank (default 256)"},
        "--shuffle": {
            "nargs": "?", "const": "rows", "choices": _SHUFFLES, "default": shuffle,
            "help": f"rows: all rows, through a buffer; groups: row groups only (default {shuffle}, without a value: "
            "rows)",
        },
        "--seed": {"type": int, "default": 0, "help": "selects the order (default 0)"},
        "--lanes": {"type": _positive, "help": "lanes of the shuffled order (default: chosen)"},
        "--parts": {
            "choices": ["yes", "no"], "help": "shuffle parts of row groups (default: of files with an offset index)",
        },
        "--shuffle-bytes": {
            "type": size, "metavar": "SIZE", "help": "shuffle buffer of the whole job (default 1GiB)",
        },
    }  # fmt: skip


_COMMANDS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "info": ("schema, rows, files, row groups and sizes", _COLUMNS),
    "head": (
        "the first rows, arrays in short",
        _COLUMNS | {"-n --rows": {"type": _count, "default": 5, "help": "how many rows (default 5)"}},
    ),
    "plan": (
        "what a loader would do: steps, lanes, memory, bytes read",
        _COLUMNS | _order("no") | {
            "--world": {"type": _positive, "default": 1, "help": "number of ranks (default 1)"},
            "--rank": {"type": _count, "default": 0, "help": "which part (default 0)"},
            "--remainder": {
                "choices": ["drop", "pad", "uneven"], "default": "drop",
                "help": "rows that do not divide among the ranks",
            },
            "--drop-last": {"action": "store_true", "help": "leave out a last batch that is not full"},
        },
    ),
    "bench": (
        "how fast a loader reads a dataset, and where the time goes",
        _COLUMNS | _order("rows") | {
            "--framework": {
                "choices": ["numpy", "torch", "tensorflow", "jax"], "default": "numpy", "help": "default: numpy",
            },
            "--device": {"help": "with torch: where tensors go, e.g. cuda"},
            "--workers": {"type": _positive, "help": "threads or processes (default: the cores)"},
            "--pool": {"choices": ["thread", "process", "serial"], "help": "default: thread"},
            "--memory-bytes": {"type": size, "metavar": "SIZE", "help": "e.g. 2GiB (default 3GiB)"},
            "--seconds": {"type": float, "default": 3.0, "help": "of each timed interval (default 3)"},
            "--batches": {"type": _positive, "help": "of each timed interval, instead of --seconds"},
            "--warm-up": {
                "type": float, "default": 1.0, "metavar": "SECONDS", "help": "before a loader is timed (default 1)",
            },
            "--rounds": {"type": int, "default": 3, "help": "turns of loader and limit (default 3)"},
            "--json": {"action": "store_true", "help": "print the figures as one line of JSON"},
        },
    ),
    "doctor": (
        "what is wrong with a dataset for training",
        {
            "--label": {
                "metavar": "COLUMN",
                "help": "column by which rows should be mixed (default: one with a usual name)",
            },
            "--world": {"type": _positive, "help": "ranks of the run (default 8)"},
            "--batch-size": {"type": _positive, "help": "rows of a batch on each rank (default 256)"},
            "--row-group-bytes": {
                "type": size, "metavar": "SIZE", "help": "size of row groups to aim at (default 16MiB)",
            },
            "--shuffle-bytes": {"type": size, "metavar": "SIZE", "help": "shuffle buffer of the run (default 1GiB)"},
            "--json": {
                "action": "store_true",
                "help": "print JSON; the exit status is 3 where there is a problem, either way",
            },
        },
    ),
    "rewrite": (
        "a dataset again, in another layout",
        {
            "out": {"metavar": "OUT", "help": "where to write: a folder that is not there yet"},
            "--row-group-bytes": {
                "type": size, "metavar": "SIZE", "help": "most encoded bytes of a row group (default 16MiB)",
            },
            "--rows-per-file": {"type": _positive, "metavar": "ROWS", "help": "default: files of about 512 MiB"},
            "--shuffle": {"action": "store_true", "help": "permute all rows, uniformly, in bounded memory"},
            "--seed": {"type": int, "help": "selects the permutation (default 0)"},
            "--compression": {"metavar": "CODEC", "help": "snappy, zstd, lz4, gzip, none (default: auto)"},
            "--partition-by": {
                "type": _names, "metavar": "A,B",
                "help": "columns that become folders; '' for none (default: as they are)",
            },
            "--skip-bad-files": {"action": "store_true", "help": "leave out files that cannot be read"},
            "--overwrite": {"action": "store_true", "help": "replace the dataset at OUT"},
            "--memory-bytes": {"type": size, "metavar": "SIZE", "help": "rows that a shuffle may hold (default 1GiB)"},
            "--temp-folder": {
                "metavar": "FOLDER", "help": "where a shuffle keeps the rows that it cannot hold",
            },
        },
    ),
    "index": (
        "where pages begin in files without an offset index, so that shuffling can read them in parts",
        {
            "--beside": {
                "action": "store_true",
                "help": "in the dataset's own folder, where every run finds it (default: in the cache of this user, "
                "for parts=True on this host)",
            },
        },
    ),
}  # fmt: skip
"""Summary and options of every command."""


def _one_line(error: Exception) -> str:
    """Return the message of an error in one line; other classes than ours are named, and an internal error asks to
    report it.

    TensorFlow puts the name of a node before our message, and the traceback behind it.
    """
    text = re.sub(r"^\{\{.*?\}\}", "", str(error).split("\nTraceback")[0])
    message = printable(" ".join(text.split()))
    if isinstance(error, PenstockError) and not isinstance(error, InternalError):
        return message or type(error).__name__
    return f"{type(error).__name__}: {message} (--debug shows the traceback)"


def _as_options(message: str, options: argparse.Namespace) -> str:
    """Return a message in which keywords of Python are replaced by the options of this command.

    `overwrite=True` becomes `--overwrite`, `seed=3` `--seed 3`, and `memory_bytes must` `--memory-bytes must`; text in
    quotes, such as file names, and keywords that are not options of the command are unchanged.
    """
    names = {name: f"--{name.replace('_', '-')}" for name in vars(options) if name not in ("command", "url", "out")}
    known = "|".join(map(re.escape, names))
    if "skip_bad_files" in names:
        message = re.sub(r"(open with )?on_error=(['\"])skip\2", "pass --skip-bad-files", message)
    parts = re.split(r"('[^']*'|\"[^\"]*\")", message)
    for index in range(0, len(parts), 2):
        text = re.sub(rf"\b({known})=True\b", lambda found: names[found[1]], parts[index])
        text = re.sub(rf"\b({known})=(?=[^\s,;])", lambda found: f"{names[found[1]]} ", text)
        text = re.sub(rf"\b({known})=", lambda found: names[found[1]], text)
        text = re.sub(rf"(?<!-)\b({known})(?= must\b|: no column|\b out$)", lambda found: names[found[1]], text)
        parts[index] = text
    return "".join(parts)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, PenstockWarning):
        print(f"penstock: note: {message}", file=sys.stderr)
