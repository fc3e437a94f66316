"""Moving over from Petastorm: run its program unchanged, change one word in it, check row for row, use what is new.

Run it as `python examples/migrate_from_petastorm.py`. It writes scikit-learn's handwritten digits as a dataset and a
small training program that knows only Petastorm; nothing is fetched, Petastorm need not be installed. The status is 0
only if every row came out the same by every way.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from penstock.petastorm import make_reader
from penstock.petastorm.ngram import NGram
from penstock.petastorm.predicates import in_pseudorandom_split

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = Unischema(
    "Digits",
    [
        UnischemaField("id", np.int64, (), ScalarCodec(), False),
        UnischemaField("label", np.uint8, (), ScalarCodec(), False),
        UnischemaField("writer", np.str_, (), ScalarCodec(), True),
        UnischemaField("image", np.uint8, (32, 32), CompressedImageCodec("png"), False),
        UnischemaField("strokes", np.float32, (8, 8), NdarrayCodec(), False),
    ],
)

# A program as it was written for Petastorm: a class mean of all pictures, the rows' digests for later.
PROGRAM = """
import hashlib, json, sys
import numpy as np
from petastorm import TransformSpec, make_reader

def ink(row):
    row["ink"] = np.float32(row["image"].mean())
    return row

if __name__ == "__main__":
    url, digests = sys.argv[1:]
    total, found = np.zeros(10), {}
    spec = TransformSpec(ink, edit_fields=[("ink", np.float32, (), False)])
    with make_reader(url, transform_spec=spec, reader_pool_type="thread", workers_count=4, seed=1) as reader:
        for row in reader:
            total[row.label] += row.ink
            cells = [np.asarray(row.image), np.asarray(row.strokes), row.label, row.writer]
            text = json.dumps([cell.tolist() if hasattr(cell, "tolist") else cell for cell in cells])
            found[int(row.id)] = hashlib.sha256(text.encode()).hexdigest()
    json.dump(found, open(digests, "w"))
    print(len(found), "rows; most ink: digit", int(total.argmax()), "by", make_reader.__module__)
"""


def main() -> int:
    """Run the tour; the status is 0 only if nothing is lost or changed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("migration-output"))
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    url = (output / "digits").resolve().as_uri()

    heading("A dataset: handwritten digits")
    penstock.write(digits(), url, SCHEMA, row_group_bytes=64 << 10, rows_per_file=600, overwrite=True)
    print(penstock.open(url))

    heading("A program for Petastorm, unchanged: python -m penstock.petastorm program.py")
    (output / "program.py").write_text(PROGRAM)
    good = run(output, ["-m", "penstock.petastorm", "program.py"], url, "unchanged.json")

    heading("The same with one word changed: from petastorm -> from penstock.petastorm")
    (output / "changed.py").write_text(PROGRAM.replace("from petastorm", "from penstock.petastorm"))
    good &= run(output, ["changed.py"], url, "changed.json")

    heading("Row for row")
    good &= compare(url, [output / "unchanged.json", output / "changed.json"])

    heading("What it never had")
    good &= show_new(url)
    return 0 if good else 1


def heading(text: str) -> None:
    """Print a line that starts a part of the report."""
    print(f"\n--- {text} {'-' * max(0, 94 - len(text))}")


def check(fact: str, holds: bool) -> bool:
    """Print a fact and whether it holds."""
    print(f"  [{'ok' if holds else 'NO'}] {fact}")
    return holds


def digits() -> Iterator[dict[str, Any]]:
    """Yield the rows: 1,797 digits, every seventh by nobody known."""
    from sklearn.datasets import load_digits

    found = load_digits()
    for row, (strokes, label) in enumerate(zip(found.images.astype(np.float32), found.target, strict=True)):
        image = np.kron(strokes * 15, np.ones((4, 4))).astype(np.uint8)
        writer = None if row % 7 == 0 else f"w{row % 43}"
        yield {"id": row, "label": np.uint8(label), "writer": writer, "image": image, "strokes": strokes}


def run(output: Path, command: list[str], url: str, digests: str) -> bool:
    """Run a program in a process of its own; tell whether it ended well."""
    path = os.pathsep.join([str(Path(penstock.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *command, url, digests],
        cwd=output,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr, sep="", end="")
    return check("it ran to its end", done.returncode == 0)


# -- row for row -----------------------------------------------------------------------------------------------------


def digest(row: dict[str, Any]) -> str:
    """Return a digest of a row's values, equal where they are; the programs above make theirs in the same way."""
    cells = [row["image"], row["strokes"], row["label"], row["writer"]]
    text = json.dumps([cell.tolist() if hasattr(cell, "tolist") else cell for cell in cells])
    return hashlib.sha256(text.encode()).hexdigest()


def compare(url: str, files: list[Path]) -> bool:
    """Compare what the programs saw with what was written, by the key column `id`; the order does not matter."""
    want = {str(row["id"]): digest(row) for row in digits()}
    good = True
    for file in files:
        got = json.loads(file.read_text())
        differ = sum(got[key] != want[key] for key in want.keys() & got.keys())
        missing, added = len(want.keys() - got.keys()), len(got.keys() - want.keys())
        fact = f"{file.name}: rows that differ: {differ}, missing: {missing}, added: {added}"
        good &= check(fact, not (differ or missing or added))
    native = penstock.open(url)
    same = all(digest(native[row]) == want[str(row)] for row in range(0, len(native), 100))
    return good & check("penstock.open gives the same values", same)


# -- what is new -----------------------------------------------------------------------------------------------------


def ids(reader: Any) -> list[int]:
    """Return what is left of a reader."""
    with reader:
        return [int(row.id) for row in reader]


def show_new(url: str) -> bool:
    """Stop and resume, share out to three shards, split into two parts, form windows across row groups."""
    fields = ["id"]
    with make_reader(url, fields, seed=1, shuffle_rows=True) as reader:
        before = [int(next(reader).id) for _ in range(1000)]
        state = json.dumps(reader.state_dict())
        good = check(f"a reader has a length: {len(reader)} rows are left after 1,000", len(reader) == 797)
    with make_reader(url, fields, seed=1, shuffle_rows=True, reader_pool_type="dummy") as reader:
        reader.load_state_dict(json.loads(state))
        after = ids(reader)
    good &= check("it resumes: no row lost or repeated", sorted(before + after) == list(range(1797)))

    shards = [ids(make_reader(url, fields, cur_shard=shard, shard_count=4)) for shard in range(4)]
    every_row = sorted(row for shard in shards for row in shard) == list(range(1797))
    good &= check(f"shards are even: {[len(shard) for shard in shards]}", every_row)

    parts = [ids(make_reader(url, fields, predicate=in_pseudorandom_split([0.8, 0.2], n, "id"))) for n in (0, 1)]
    good &= check(f"a split: {[len(part) for part in parts]}", sorted(parts[0] + parts[1]) == list(range(1797)))

    counts = []
    for span in (False, True):
        windows = NGram({0: ["id"], 1: ["label"], 2: ["id"]}, 1, "id", span_row_groups=span)
        with make_reader(url, windows) as reader:
            counts.append(len(reader))
    return good & check(f"windows of 3 rows: {counts[0]} within row groups, {counts[1]} in all", counts[1] == 1795)


if __name__ == "__main__":
    sys.exit(main())
