"""`Batches`: an IterableDataset for those who keep `torch.utils.data.DataLoader` and its worker processes.

Each worker process runs a loader of its own over its turns (`turns`); the dataset travels as facts. Without
workers it is `penstock.torch.loader`. No thread is alive in the process that holds it but while it iterates there.

Which pass the workers go through is found out in a `cell` that they share, so that the next `for` over the DataLoader,
whose workers are new processes, gets the next pass.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import os
import pickle
import sys
import uuid
import warnings
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast

from torch.utils.data import IterableDataset, default_collate, get_worker_info

from penstock.api import dataset_and_options, load
from penstock.engine import host
from penstock.errors import BudgetError, DecodeError, PenstockWarning, PlanError, StateMismatch, users_level
from penstock.options import FrameworkKeywords, show_keywords
from penstock.torch.cell import Begun, Cell
from penstock.torch.dealing import check_dealt_once
from penstock.torch.hand_over import Loader
from penstock.torch.post import Parcel, Receiver, Sender
from penstock.torch.process_group import with_group
from penstock.torch.tensors import converter
from penstock.torch.turns import Turns, start_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.api import Loader as NativeLoader
    from penstock.engine.build import Built

_OWNER = "penstock.torch.Batches"
_OF_LOADER = ("device", "pin_memory", "device_transform", "prefetch", "decode")
"""What `penstock.torch.loader` can do beside."""
_here: weakref.WeakValueDictionary[str, Batches] = weakref.WeakValueDictionary()
"""What batches that arrive in this process belong to."""


class Batches(IterableDataset):  # type: ignore[misc]
    """Batches as dicts of tensors for ``DataLoader(Batches(...), batch_size=None, num_workers=N)``.

    The DataLoader gives exactly the batches of `penstock.torch.loader`, in its order, for any N. Every `for` over it is
    one pass, and the next one is the next pass. The state is saved and restored by torchdata's `StatefulDataLoader`; or
    give any state, of another number of workers too, to `load_state_dict`: the next `for` begins there.

    Takes all keywords of `penstock.Dataset.loader` besides those of `penstock.torch.loader` that do not concern a
    device. `workers` are the threads of each worker process (default: its share of the cores) and `memory_bytes` is for
    each of them; `skip_limit` is for a pass of all of them together. What a loader says about itself (`stats`,
    `report`, `skipped`) stays in the worker processes. A batch of the shuffled order draws from the whole window, so
    each worker process holds a window and reads what it needs of all row groups: few of them, or none, are better than
    many.
    """

    @show_keywords(FrameworkKeywords)
    def __init__(
        self,
        dataset_or_url: Any,
        *,
        batch_size: int,
        group: Any = None,
        nulls: str | Iterable[str] = "mask",
        **options: Unpack[FrameworkKeywords],
    ) -> None:
        super().__init__()
        for name in _OF_LOADER:
            if name in options:
                raise TypeError(
                    f"{_OWNER}() has no {name}=: its batches come out of a DataLoader, in memory; use "
                    f"penstock.torch.loader(..., {name}=...), which needs no DataLoader"
                )
        dataset, given = dataset_and_options(
            dataset_or_url, batch_size, options, function=Batches.__init__, owner=_OWNER
        )
        self._dataset = dataset
        self._convert = converter(nulls, dataset.columns if given.transform is None else None, owner=_OWNER)
        self._options = with_group(given, group)
        native = load(self._dataset, self._options)
        self._found = self._options.rank is None and self._options.world is None
        """Whether rank and world were found out, not given."""
        # Worker processes know nothing of torch.distributed.
        self._options = replace(self._options, rank=native.rank, world=native.world)
        self._token = uuid.uuid4().hex
        self._at: dict[str, Any] = native.state_dict()
        self._loader: Loader | None = Loader(native, self._convert)
        self._pid = os.getpid()
        self._turns: Turns | None = None
        self._cell = Cell()
        self._orders = 0
        """How many orders were given when this process was started, or began a pass; see `Cell`."""
        self._num_begun = 0
        """Passes that this worker process has begun."""
        self._post: Sender | Receiver | None = None
        """The memory that batches travel in, at this end."""
        _here[self._token] = self

    # -- other processes ------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        stays = {"_loader": None, "_turns": None, "_post": None, "_num_begun": 0}
        if multiprocessing.context.get_spawning_popen() is None:  # a copy, which has workers of its own
            return {**vars(self), **stays, "_at": self._place(), "_cell": None, "_orders": 0}
        if get_worker_info() is None:
            self._check_rank()
            self._own()
        return {**vars(self), **stays, "_at": self._next_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._cell is None or self._pid == os.getpid():
            self._token, self._cell = uuid.uuid4().hex, Cell()
        self._pid = os.getpid()
        _here[self._token] = self

    def _next_state(self) -> dict[str, Any]:
        """Return where workers begin that are the first ones after the last order."""
        return self._at if self._loader is None else self._loader.next_state()

    def _place(self) -> dict[str, Any]:
        """Return where the next iteration begins, as far as workers have got."""
        state, begun = self._next_state(), self._begun()
        if begun is None:
            return state
        native = self._main().native
        return start_of(native, state, (begun.in_pass + 1) * (native._options.epochs or 1))

    def _begun(self) -> Begun | None:
        """Return the last iteration of workers of this process since the last order."""
        latest = self._cell.latest() if self._cell.owner == os.getpid() else None
        return None if latest is None or latest.orders != self._orders else latest

    def _own(self) -> None:
        """Have a cell that is this process's own: one that came along belongs to another process and its workers."""
        if self._cell.owner != os.getpid():
            self._cell, self._orders = Cell(), 0

    def _arrive_here(self) -> None:
        """After a fork: let go of what belongs to the other process, connections and locks above all."""
        if os.getpid() == self._pid:
            return
        self._at, self._loader, self._turns, self._post = self._next_state(), None, None, None
        self._dataset = pickle.loads(pickle.dumps(self._dataset))
        self._pid = os.getpid()

    # -- without workers ------------------------------------------------------------------------------------------

    def _main(self) -> Loader:
        """Return the loader of this process."""
        self._arrive_here()
        self._own()
        if self._loader is None:
            native = load(self._dataset, self._options)
            self._loader = Loader(native, self._convert)
            self._loader.native.load_state_dict(self._at)
        return self._loader

    def _caught_up(self) -> Loader:
        """Return the loader of this process, where the workers have got to."""
        main, begun = self._main(), self._begun()
        if begun is not None:
            main._go_to(self._place())
        return main

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        caller = sys._getframe(1).f_locals.get("self")
        _check_collation(caller, info)
        self._check_rank(caller)
        if info is None:
            main = self._caught_up()
            self._orders = self._cell.give_order(None)
            return iter(main)
        turns = self._worker(info)
        number = self._enter(turns, info)
        in_pass, batches = turns.begin()
        if not isinstance(self._post, Sender):
            self._post = Sender()
        origin = _Origin(self._token, in_pass, self._post, counted=number > 0)
        return _Sending(self, origin, _Turn(number, info.id, turns, batches))

    def _check_rank(self, caller: Any = None) -> None:
        """Refuse to give rows that other ranks get too, or that somebody else would share out again."""
        rank, world = cast("tuple[int, int]", (self._options.rank, self._options.world))
        check_dealt_once(self, rank, world, caller)
        spawned = get_worker_info() is not None and self._pid == os.getpid()
        if self._found and not spawned:  # a spawned process sees the launcher's variables, not torch.distributed
            host.check_still(rank, world)

    def __len__(self) -> int:
        """Return the batches of a whole pass, wherever in it this is: what a DataLoader's `len` means."""
        whole = self._main()._whole
        if whole is None:
            raise TypeError("Batches with epochs=None has no length")
        return whole

    @property
    def pass_number(self) -> int:
        """The pass, counted from 0, that the next `for` over the DataLoader gives, or goes on with after a state.

        Workers run ahead of the consumer, so inside the loop it is already the next one.
        """
        main = self._main()
        return int(self._place()["epoch"]) // (main.native._options.epochs or 1)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of pass `epoch` with the next iteration over the DataLoader; see `Loader.set_epoch`.

        Never needed, but where a `StatefulDataLoader` with workers goes on from the end of an epoch: it tells its
        dataset nothing.
        """
        self._check_rank()  # Accelerate calls this before it starts workers, on every rank
        main = self._caught_up()
        main.set_epoch(epoch)
        self._orders = self._cell.give_order(main.next_state())

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this process: of the consumer, or inside a worker of that worker's next batch."""
        info = get_worker_info()
        if info is not None:
            return self._worker(info).state_dict()
        main = self._main()
        if self._begun() is not None:
            raise PlanError(
                "the batches come from worker processes, and only the DataLoader knows how many you have received; use "
                "torchdata's StatefulDataLoader and its state_dict(), or penstock.torch.loader"
            )
        return main.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state with the next iteration over the DataLoader, of workers that stay as well.

        Takes a state of any loader of Penstock, or of a `StatefulDataLoader` with any number of workers.
        """
        info = get_worker_info()
        if info is not None:
            self._worker(info).load_state_dict(state)
            return
        main = self._main()
        main.load_state_dict(state)
        self._orders = self._cell.give_order(main.next_state())

    # -- inside a worker ------------------------------------------------------------------------------------------

    def _worker(self, info: Any) -> Turns:
        self._arrive_here()
        if self._turns is None:
            self._turns = Turns(self._worker_loader(info.num_workers), self._at, info.id, info.num_workers)
        return self._turns

    def _enter(self, turns: Turns, info: Any) -> int:
        """Go to where this iteration of the DataLoader begins; return its number, 0 where there is no cell to ask."""
        parent, cell = multiprocessing.parent_process(), self._cell
        if parent is None or parent.pid != cell.owner:
            return 0
        if self._num_begun and cell.orders != self._orders:  # the first time it was started with the last ones
            self._obey(turns)
        # All workers have the seed of their DataLoader's iteration plus their index.
        who = hash((info.seed - info.id, self._num_begun))
        in_pass = None if turns.is_fresh else turns.next_pass
        begun = cell.begin(who, info.id, self._orders, in_pass, turns.next_pass)
        self._num_begun += 1
        if begun.in_pass != turns.next_pass:
            turns.go_to_pass(begun.in_pass)
        return begun.number

    def _obey(self, turns: Turns) -> None:
        """Go where the process that holds the dataset has gone since this worker began its last pass."""
        self._orders = self._cell.orders
        try:
            state = self._cell.order()
        except ValueError as error:
            raise StateMismatch(
                f"{error}, too many to tell workers that run already; make a new DataLoader after load_state_dict"
            ) from None
        if state is not None:
            turns.load_state_dict(state)

    def _worker_loader(self, count: int) -> NativeLoader:
        """Return the loader of one of `count` worker processes: with a share of the cores and of the memory."""
        dataset, options = self._dataset, self._options
        if options.pool == "process" and multiprocessing.current_process().daemon:
            raise PlanError("a worker of a DataLoader cannot start processes; use pool='thread', or num_workers=0")
        if options.workers is None:
            options = replace(options, workers=max(1, host.default_workers() // count))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PenstockWarning)  # said already where the dataset was made
            if options.memory_bytes is not None:
                return load(dataset, options)
            try:
                loader = load(dataset, replace(options, memory_bytes=host.default_memory() // count))
            except BudgetError as error:  # the shuffle buffer is the same for any number of workers
                loader = load(dataset, replace(options, memory_bytes=error.least))
            loader.is_bound = False
            return loader

    def _receive(self, parcel: Parcel, number: int, *, counted: bool) -> dict[str, Any]:
        """Return a batch of a pass that has arrived from a worker."""
        if not counted:  # nobody else says so: the next iteration is the next pass
            main = self._main()
            state, length = main.state_dict(), main.native._options.epochs or 1
            if state["epoch"] != (number + 1) * length:
                main._go_to(start_of(main.native, state, (number + 1) * length))
        if not isinstance(self._post, Receiver):
            self._post = Receiver()
        return self._post.unpack(parcel, number)

    def _check_skipped(self, built: Built, number: int, worker: int) -> None:
        """Raise DecodeError where all workers together have left out more rows in this pass than is allowed."""
        limit = self._options.skip_limit
        total = self._cell.skip(number, worker, len(built.skipped)) if number and limit is not None else 0
        if limit is not None and total > limit:
            last = built.skipped[-1]
            raise DecodeError(
                f"{total} rows skipped by all workers in this pass, more than skip_limit={limit}; the last one in "
                f"{last.path}, row group {last.row_group}, row {last.row}, column {last.column!r}: {last.reason}",
                path=last.path, row_group=last.row_group, row=last.row, column=last.column,
            )  # fmt: skip


def _check_collation(fetcher: Any, info: Any) -> None:
    """Warn who has forgotten batch_size=None: torch would make batches of batches."""
    collates = getattr(fetcher, "auto_collation", False) and getattr(fetcher, "collate_fn", None) is default_collate
    if collates and (info is None or info.id == 0):
        warnings.warn(
            "the DataLoader makes batches of batches, which gives every column another axis; pass batch_size=None: "
            "DataLoader(Batches(...), batch_size=None)",
            PenstockWarning,
            stacklevel=users_level(),
        )


class _Origin(NamedTuple):
    """Where a batch comes from: which `Batches`, which pass, the memory it travels in, and whether the cell knows."""

    token: str
    number: int
    sender: Sender
    counted: bool


class _Turn(NamedTuple):
    """One pass of a worker."""

    number: int
    """Of the iteration over the DataLoader; 0 where it is not known."""
    worker: int
    turns: Turns
    batches: Any


class _Sending:
    """The iterator of a worker."""

    def __init__(self, owner: Batches, origin: _Origin, turn: _Turn) -> None:
        self._owner, self._origin, self._turn = owner, origin, turn
        self._take = getattr(turn.batches, "take", turn.batches.__next__)  # a worker may have nothing to take

    def __iter__(self) -> _Sending:
        return self

    def __next__(self) -> _Sent:
        built = self._take()
        if built.skipped:
            self._owner._check_skipped(built, self._turn.number, self._turn.worker)
        batch = _Sent(self._owner._convert(built.batch))
        batch.origin = self._origin
        self._turn.turns.delivered()
        return batch


class _Sent(dict[str, Any]):
    """A batch on its way to another process, where it arrives as a plain dict."""

    origin: _Origin

    def __copy__(self) -> _Sent:
        copy = _Sent(self)
        copy.origin = self.origin
        return copy

    def __reduce__(self) -> Any:
        token, number, sender, counted = self.origin
        return _arrived, (tuple(sender.pack(dict(self))), token, number, counted)


def _arrived(packed: tuple[Any, ...], token: str, number: int, counted: bool) -> dict[str, Any]:
    """Return a batch in the process that gets it."""
    parcel, owner = Parcel(*packed), _here.get(token)
    if owner is None:
        return Receiver().unpack(parcel, number)
    return owner._receive(parcel, number, counted=counted)
