"""Store the place of a run as small JSON, the same on every rank, and refuse what belongs to another run.

A loader fills a State from the plan's cursor and the dataset's digests; loading gives back the order and the cursor.
Holds counts of items of the global order, never data or options of the run; a rank only where ranks have parted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import PlanError, StateMismatch
from penstock.plan.order import Cursor, Kind, Order, Share

VERSION = 1
_ORDERS: dict[str, Kind] = {"natural-1": "natural", "groups-1": "groups", "lanes-1": "lanes", "lanes-2": "lanes"}
"""The kind of each order, by the name that states keep (`Order.name`)."""


@dataclass(frozen=True, slots=True)
class State:
    """Everything that a run needs to resume exactly where it was."""

    order: Order
    """Kind, seed, lanes and block: these come from the state, never from the options of the run that resumes."""
    cursor: Cursor
    """What the consumer has received, in items of the global order."""
    dataset: str
    """Digest of relative paths, sizes and rows per chunk."""
    rows: str
    """Digest of the selection."""
    predicate: str | None = None
    """Digest of the predicate that leaves rows out on delivery; None where there is none, and in older states."""
    content: str | None = None
    """Digest of what the footers say about the column chunks; None in states that were saved before there was one."""

    def to_json(self) -> dict[str, Any]:
        """Return the state as a dict of JSON values."""
        head = {"version": VERSION, "order": self.order.name, "dataset": self.dataset, "rows": self.rows}
        head |= {"seed": self.order.seed, "epoch": self.cursor.epoch}
        if self.cursor.owner is not None:
            head |= {"rank": self.cursor.owner[0], "world": self.cursor.owner[1]}
        if self.predicate is not None:
            head |= {"predicate": self.predicate}
        if self.cursor.left is not None:
            head |= {"left": [list(interval) for interval in self.cursor.left]}
        else:
            head |= {"position": self.cursor.position, "lanes": self.order.lanes, "block": self.order.block}
        if self.order.scanned:
            head |= {"scanned": True}
        return head if self.content is None else head | {"content": self.content}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> State:
        """Return the state that `to_json` gave; StateMismatch naming the entry that is missing or not understood."""
        if not isinstance(value, Mapping):
            hint = "; json.loads gives it back" if isinstance(value, str | bytes) else ""
            raise StateMismatch(f"a state is the dict that state_dict() gave; got {type(value).__name__}{hint}")
        if _entry(value, "version", int) != VERSION:
            raise StateMismatch(f"state has version {value['version']}, this Penstock knows {VERSION}; update Penstock")
        if "loaders" in value:
            raise StateMismatch("this is the state of a mix; load it into a mix of the same loaders")
        name = _entry(value, "order", str)
        if name not in _ORDERS:
            raise StateMismatch(f"state has order {name!r}, this Penstock knows {', '.join(_ORDERS)}; update Penstock")
        try:
            order, cursor = _place(value, _ORDERS[name], parts=name == "lanes-2")
        except PlanError as error:
            raise StateMismatch(f"damaged state: {error}") from error
        predicate = _entry(value, "predicate", str) if "predicate" in value else None
        content = _entry(value, "content", str) if "content" in value else None
        return cls(order, cursor, _entry(value, "dataset", str), _entry(value, "rows", str), predicate, content)


def check(  # noqa: PLR0913 -- the parts of a state
    state: State, *, dataset: str, content: str | None, rows: str, seed: int, kind: Kind
) -> None:
    """Raise StateMismatch saying which part differs, unless the state belongs to this dataset, selection and order.

    `content` is compared where both sides have one.
    """
    if state.dataset != dataset:
        raise _differs("dataset", state.dataset, dataset, "files, their sizes or rows per chunk are not the same")
    if None not in (state.content, content) and state.content != content:
        raise _differs(
            "content",
            state.content,
            content,
            "files of the same names, sizes and rows were written again: sizes or statistics of their columns differ",
        )
    if state.rows != rows:
        raise _differs(
            "rows", state.rows, rows, "other rows are selected; open with the filters of the interrupted run"
        )
    if state.order.kind != kind:
        raise _differs("order", state.order.kind, kind, f"pass {SHUFFLE_OF[state.order.kind]}")
    if state.order.seed != seed:
        raise _differs("seed", state.order.seed, seed, f"pass seed={state.order.seed} to resume")


def check_predicate(state: State, predicate: str | None) -> None:
    """Raise StateMismatch where rows were left out on delivery by another predicate; `predicate` is this loader's."""
    if state.predicate not in (None, predicate):
        raise _differs(
            "predicate",
            state.predicate,
            predicate,
            "where(..., exact=False) has another filter; use the one of the interrupted run",
        )


def check_owner(state: State, share: Share) -> None:
    """Raise StateMismatch unless this rank may resume from a state: one that names a rank is for that rank only."""
    owner = state.cursor.owner
    if owner is None or (owner == (share.rank, share.world) and share.remainder == "uneven"):
        return
    raise StateMismatch(
        f"cannot resume: the state belongs to rank {owner[0]} of {owner[1]} only, this loader is rank {share.rank} of "
        f"{share.world} with remainder={share.remainder!r}; under remainder='uneven' ranks may have unequal numbers of "
        "batches, and from the second epoch of a pass on each is at a place of its own: load on each rank its own "
        "state, save at the end of a pass, or use epochs=1"
    )


SHUFFLE_OF = {"natural": "shuffle=False", "groups": 'shuffle="groups"', "lanes": "shuffle=True"}


def _differs(part: str, theirs: object, ours: object, hint: str) -> StateMismatch:
    return StateMismatch(f"cannot resume: {part} of the state is {theirs!r}, of this loader {ours!r}; {hint}")


def _entry(value: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return an entry of the given type; bool is no int."""
    found = value.get(name)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise StateMismatch(f"damaged state: entry {name!r} must be {kind.__name__}, got {found!r}")
    return found


def _place(value: Mapping[str, Any], kind: Kind, *, parts: bool) -> tuple[Order, Cursor]:
    seed, epoch = _entry(value, "seed", int), _entry(value, "epoch", int)
    owner = (_entry(value, "rank", int), _entry(value, "world", int)) if "rank" in value or "world" in value else None
    if kind != "lanes":
        left = _entry(value, "left", list)
        for pair in left:
            if not (isinstance(pair, list | tuple) and len(pair) == 2 and all(type(bound) is int for bound in pair)):
                raise StateMismatch(f"damaged state: 'left' must hold pairs of numbers, got {pair!r}")
        return Order(kind, seed), Cursor(epoch, left=tuple((first, last) for first, last in left), owner=owner)
    scanned = value.get("scanned", False)
    if not isinstance(scanned, bool):
        raise StateMismatch(f"damaged state: entry 'scanned' must be bool, got {scanned!r}")
    order = Order(kind, seed, _entry(value, "lanes", int), _entry(value, "block", int), parts, scanned)
    return order, Cursor(epoch, position=_entry(value, "position", int), owner=owner)
