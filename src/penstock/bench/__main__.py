"""The command line of `python -m penstock.bench`: options to a `Workload`, a `Result` to text.

Opens the dataset and prints what `measure` gives; errors become one line. Everything else happens there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import TYPE_CHECKING, Any

from penstock.bench.measure import FRAMEWORKS, Workload, measure
from penstock.cli.main import size
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

SHUFFLE: dict[str, Any] = {"no": False, "rows": True, "groups": "groups"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line names and return the exit status."""
    args = _parser().parse_args(arguments)
    try:
        sys.stdout.write(_run(args) + "\n")
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not isinstance(error, PenstockError | ImportError) and not _is_of_framework(error):
            raise
        sys.stderr.write(f"penstock.bench: {_one_line(error)}\n")
        return 1
    return 0


def _is_of_framework(error: Exception) -> bool:
    """Tell whether an error comes out of TensorFlow or another framework, with ours in its text."""
    return type(error).__module__.split(".")[0] in ("tensorflow", "torch", "jax", "jaxlib")


def _one_line(error: Exception) -> str:
    """Return what an error says, without TensorFlow's node in front and the traceback behind."""
    text = str(error).split("\nTraceback")[0]
    return " ".join(re.sub(r"^\{\{.*?\}\}", "", text).split())


def _run(args: argparse.Namespace) -> str:
    import penstock

    sources = args.url if len(args.url) > 1 else args.url[0]
    dataset = penstock.open(sources, columns=args.columns, storage_options=dict(args.storage_option) or None)
    options: dict[str, Any] = {"batch_size": args.batch_size, "shuffle": SHUFFLE[args.shuffle], "seed": args.seed}
    given = {"workers": args.workers, "pool": args.pool, "memory_bytes": args.memory_bytes, "device": args.device}
    options |= {name: value for name, value in given.items() if value is not None}
    task = Workload(
        options=options, framework=args.framework, seconds=args.seconds, warm_up_s=args.warm_up, rounds=args.rounds
    )
    result = measure(dataset, task)
    if args.json:
        return json.dumps(result.to_json())
    shuffled = {"no": "as stored", "rows": "shuffled", "groups": "row groups permuted"}[args.shuffle]
    head = (
        f"{len(dataset):,} rows x {len(dataset.columns):,} columns in {len(dataset.chunks):,} row groups, "
        f"{dataset.num_bytes / 1e6:,.0f} MB; batches of {args.batch_size:,}, {shuffled}"
    )
    return f"{head}\n\n{result}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.bench", description="Measure a dataset of your own, beside the least work by hand."
    )
    add = parser.add_argument
    add("url", nargs="+", metavar="URL", help="what penstock.open takes: folder, file, pattern or any URL")
    add("--batch-size", type=int, default=256, help="rows of a batch (default 256)")
    add("--framework", choices=FRAMEWORKS, default="numpy", help="whose batches are made (default numpy)")
    add("--columns", type=lambda text: text.split(","), metavar="A,B", help="only these columns")
    add("--shuffle", choices=list(SHUFFLE), default="rows", help="default: rows")
    add("--seed", type=int, default=0)
    add("--workers", type=int, help="threads or processes (default: the cores)")
    add("--pool", choices=["thread", "process", "serial"], help="default: thread")
    add("--memory-bytes", type=size, metavar="SIZE", help="e.g. 2GiB")
    add("--device", help="with torch: where tensors go, e.g. cuda")
    add("--seconds", type=float, default=3.0, help="of each timed stretch (default 3)")
    add("--warm-up", type=float, default=1.0, help="seconds before a loader is timed (default 1)")
    add("--rounds", type=int, default=3, help="turns of loader and limit (default 3)")
    add("--storage-option", type=_pair, action="append", default=[], metavar="KEY=VALUE", help="for the filesystem")
    add("--json", action="store_true", help="print the figures as one line of JSON")
    return parser


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return key, value


if __name__ == "__main__":
    sys.exit(main())
