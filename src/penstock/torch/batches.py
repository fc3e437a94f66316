"""`Batches`: an IterableDataset for `torch.utils.data.DataLoader` and its worker processes.

Each worker process streams every n-th batch from a loader of its own (`worker_states`) and sends them through shared
memory (`shm_transport`). Without workers it is a `penstock.torch.loader`. The process that holds a `Batches` has a
thread only while it iterates there.

Workers find out which pass to stream on a `PassBoard` that they share with that process, so that the next `for` over
the DataLoader, whose workers are new processes, gets the next pass.
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

from penstock.api import load
from penstock.engine.base_loader import BaseLoader
from penstock.engine.rank import check_still
from penstock.errors import DecodeError, PenstockWarning, PlanError, StateMismatch, users_level
from penstock.factories import dataset_and_options
from penstock.keywords import FrameworkKeywords, show_keywords
from penstock.torch.double_sharding import check_sharded_once
from penstock.torch.loader import Loader, ToMemory
from penstock.torch.pass_board import BegunPass, PassBoard
from penstock.torch.process_group import with_group
from penstock.torch.shm_transport import Parcel, Receiver, Sender
from penstock.torch.tensors import converter
from penstock.torch.worker_states import WorkerPasses

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.engine.delivery import Delivery
    from penstock.engine.locate import Skipped
    from penstock.engine.stages import Batch

_OWNER = "penstock.torch.Batches"
_OF_LOADER = ("device", "pin_memory", "device_transform", "prefetch", "decode")
"""Options of `penstock.torch.loader` only."""
_instances: weakref.WeakValueDictionary[str, Batches] = weakref.WeakValueDictionary()
"""By token: which `Batches` the batches that arrive in this process belong to."""


class Batches(IterableDataset):  # type: ignore[misc]
    """Batches as dicts of tensors for ``DataLoader(Batches(...), batch_size=None, num_workers=N)``.

    The DataLoader gives exactly the batches of `penstock.torch.loader`, in its order, for any N. Every `for` over it is
    one pass, and the next one is the next pass. torchdata's `StatefulDataLoader` saves and restores the state; or give
    any state, also of another number of workers, to `load_state_dict`: the next `for` begins there.

    Takes all keywords of `penstock.Dataset.loader`, and those of `penstock.torch.loader` that do not concern a device.
    `workers` are the threads of each worker process (default: its share of the cores), `memory_bytes` is for each of
    them, `skip_limit` for a pass of all of them together. What a loader reports (`stats`, `report`, `skipped`) stays in
    the worker processes. A batch of the shuffled order draws from the whole window, so each worker process holds a
    window and reads what it needs of all row groups: use few workers, or none.
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
        if isinstance(dataset_or_url, BaseLoader):
            raise TypeError(
                f"{_OWNER}() takes a dataset or URL: a {type(dataset_or_url).__name__} cannot be sent to worker "
                "processes; use penstock.torch.loader, which needs no DataLoader"
            )
        dataset, given = dataset_and_options(
            dataset_or_url, batch_size, options, function=Batches.__init__, owner=_OWNER
        )
        given = with_group(given, group)
        self._dataset = dataset
        native = load(dataset, given)
        self._convert = converter(nulls, native.columns, owner=_OWNER)
        self._rank_found = given.rank is None and given.world is None
        """Whether rank and world were found in the environment, not given."""
        # Worker processes know nothing of torch.distributed.
        self._options = replace(given, rank=native.rank, world=native.world)
        self._start: Any = native.place()
        """Where the loader of this process begins, before it is made."""
        self._loader: Loader | None = Loader(native, ToMemory(self._convert))
        self._passes: WorkerPasses | None = None
        """In a worker process: its passes."""
        self._pid = os.getpid()
        self._token = uuid.uuid4().hex
        self._board = PassBoard(self._options.skip_limit or 0)
        self._commands = 0
        """Commands on the board that this process has seen: when it was started, or began its last pass."""
        self._num_begun = 0
        """Passes that this worker process has begun."""
        self._transport: Sender | Receiver | None = None
        """This end of the shared memory that batches travel in."""
        _instances[self._token] = self

    # -- other processes ------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        fresh = {**vars(self), "_loader": None, "_passes": None, "_transport": None, "_num_begun": 0}
        if multiprocessing.context.get_spawning_popen() is None:  # a copy, which will have workers of its own
            return {**fresh, "_start": self._next_start(), "_board": None, "_commands": 0}
        if get_worker_info() is None:
            self._check_rank()
            self._own_board()
        return {**fresh, "_start": self._commanded_start()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._board is None or self._pid == os.getpid():
            self._token, self._board = uuid.uuid4().hex, PassBoard(self._options.skip_limit or 0)
        self._pid = os.getpid()
        _instances[self._token] = self

    def _commanded_start(self) -> Any:
        """Return where the first workers after the last command begin."""
        return self._start if self._loader is None else self._loader.native.next_start()

    def _next_start(self) -> Any:
        """Return where the next iteration begins, in workers or without."""
        begun = self._begun()
        return self._commanded_start() if begun is None else self._main().native.place_at(begun.in_pass + 1)

    def _begun(self) -> BegunPass | None:
        """Return the last iteration of workers of this process since the last command."""
        latest = self._board.latest() if self._board.owner == os.getpid() else None
        return None if latest is None or latest.commands != self._commands else latest

    def _own_board(self) -> None:
        """Replace a board that was inherited: it belongs to another process and its workers."""
        if self._board.owner != os.getpid():
            self._board, self._commands = PassBoard(self._options.skip_limit or 0), 0

    def _leave_parent(self) -> None:
        """After a fork: drop what belongs to the parent process, above all connections and locks."""
        if os.getpid() != self._pid:
            self._start, self._loader, self._passes, self._transport = self._commanded_start(), None, None, None
            self._dataset = pickle.loads(pickle.dumps(self._dataset))  # opens its own files
            self._pid = os.getpid()

    # -- without workers ------------------------------------------------------------------------------------------

    def _main(self) -> Loader:
        """Return the loader of this process."""
        self._leave_parent()
        self._own_board()
        if self._loader is None:
            native = load(self._dataset, self._options)
            native.go_to(self._start)
            self._loader = Loader(native, ToMemory(self._convert))
        return self._loader

    def _caught_up(self) -> Loader:
        """Return the loader of this process, moved behind the passes of its workers."""
        main = self._main()
        if self._begun() is not None:
            main.native.go_to(self._next_start())
        return main

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        caller = sys._getframe(1).f_locals.get("self")
        _check_collation(caller, info)
        self._check_rank(caller)
        if info is not None:
            return self._iterate_in_worker(info)
        main = self._caught_up()
        self._commands = self._board.command(None)
        return iter(main)

    def _check_rank(self, caller: Any = None) -> None:
        """Raise PlanError if other ranks get the same rows, or another framework shards the batches again."""
        rank, world = cast("tuple[int, int]", (self._options.rank, self._options.world))
        check_sharded_once(self, rank, world, caller)
        spawned = get_worker_info() is not None and self._pid == os.getpid()
        if self._rank_found and not spawned:  # a spawned process sees the launcher's variables, not torch.distributed
            check_still(rank, world)

    def __len__(self) -> int:
        """Return the batches of a whole pass, wherever in it this is: that is what `len` of a DataLoader means."""
        native = self._main().native
        whole = native.count(native.place_at(0))
        if whole is None:
            raise TypeError("Batches with epochs=None has no length")
        return whole

    @property
    def pass_number(self) -> int:
        """The pass, counted from 0, that the next `for` over the DataLoader gives, or goes on with after a state.

        Workers run ahead of the consumer, so inside the loop it is already the next one.
        """
        return self._main().native.pass_of(self._next_start())

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of pass `epoch` with the next iteration over the DataLoader; see `Loader.set_epoch`.

        Only needed where a `StatefulDataLoader` with workers goes on from the end of an epoch: it does not tell its
        dataset.
        """
        self._check_rank()  # Accelerate calls this before it starts workers, on every rank
        main = self._caught_up()
        main.set_epoch(epoch)
        self._command(main)

    def _command(self, main: Loader) -> None:
        """Tell persistent workers to go on where the loader of this process is."""
        self._commands = self._board.command(main.native.state_of(main.native.next_start()))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this process: of the consumer, or in a worker of that worker's next batch."""
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
        """Go on from a state with the next iteration over the DataLoader, also in persistent workers.

        Takes a state of any loader of Penstock, or of a `StatefulDataLoader` with any number of workers.
        """
        info = get_worker_info()
        if info is not None:
            self._worker(info).load_state_dict(state)
            return
        main = self._main()
        main.load_state_dict(state)
        self._command(main)

    # -- inside a worker ------------------------------------------------------------------------------------------

    def _worker(self, info: Any) -> WorkerPasses:
        self._leave_parent()
        if self._passes is None:
            if self._options.pool == "process" and multiprocessing.current_process().daemon:
                raise PlanError("a worker of a DataLoader cannot start processes; use pool='thread', or num_workers=0")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PenstockWarning)  # given already where the dataset was made
                native = load(self._dataset, self._options)
            native.share_host(info.num_workers)
            native.go_to(self._start)
            self._passes = WorkerPasses(native, info.id, info.num_workers)
        return self._passes

    def _iterate_in_worker(self, info: Any) -> Iterator[dict[str, Any]]:
        passes = self._worker(info)
        number = self._enter(passes, info)
        in_pass, stream = passes.next_pass, passes.begin()
        if not isinstance(self._transport, Sender):
            self._transport = Sender()
        envelope = _Envelope(self._token, in_pass, self._transport, on_board=number > 0)

        def send(delivery: Delivery[Batch]) -> dict[str, Any]:
            if delivery.skipped:
                self._check_skipped(delivery.skipped, number)
            batch = _SentBatch(self._convert(delivery.batch))
            batch.envelope = envelope
            passes.delivered()
            return batch

        return iter(()) if stream is None else iter(stream.map(send))

    def _enter(self, passes: WorkerPasses, info: Any) -> int:
        """Go to where this iteration of the DataLoader begins; return its number, 0 if there is no board to ask."""
        parent, board = multiprocessing.parent_process(), self._board
        if parent is None or parent.pid != board.owner:
            return 0
        if self._num_begun and board.commands != self._commands:  # a new worker was started with the latest ones
            self._commands = board.commands
            try:
                state = board.commanded()
            except ValueError as error:
                raise StateMismatch(
                    f"{error}, too many for workers that run already; make a new DataLoader after load_state_dict"
                ) from None
            if state is not None:
                passes.load_state_dict(state)
        # All workers have the seed of their DataLoader's iteration plus their index.
        who = hash((info.seed - info.id, self._num_begun))
        in_pass = None if passes.is_fresh else passes.next_pass
        begun = board.begin(who, info.id, self._commands, in_pass, passes.next_pass)
        self._num_begun += 1
        if begun.in_pass != passes.next_pass:
            passes.go_to_pass(begun.in_pass)
        return begun.number

    def _check_skipped(self, skipped: tuple[Skipped, ...], number: int) -> None:
        """Raise DecodeError if all workers together have skipped more rows in this pass than is allowed."""
        limit, last = self._options.skip_limit, skipped[-1]
        if not number or limit is None:
            return
        if self._board.skip(number, [(one.path, one.row_group, one.row) for one in skipped]) > limit:
            raise DecodeError(
                f"all workers together skipped more than skip_limit={limit} rows in this pass; the last one in "
                f"{last.path}, {last.part_name}, row {last.row}, column {last.column!r}: {last.reason}",
                path=last.path, row_group=last.row_group, row=last.row, column=last.column,
            )  # fmt: skip

    # -- batches that arrive --------------------------------------------------------------------------------------

    def receive(self, parcel: Parcel, in_pass: int, *, on_board: bool) -> dict[str, Any]:
        """Return a batch of a pass that has arrived from a worker; called while it is unpickled."""
        if not on_board:  # nothing else says that the next iteration is the next pass
            native = self._main().native
            if native.pass_number != in_pass + 1:
                native.go_to(native.place_at(in_pass + 1))
        if not isinstance(self._transport, Receiver):
            self._transport = Receiver()
        return self._transport.unpack(parcel, in_pass)


def _check_collation(fetcher: Any, info: Any) -> None:
    """Warn if batch_size=None was forgotten: torch would make batches of batches."""
    collates = getattr(fetcher, "auto_collation", False) and getattr(fetcher, "collate_fn", None) is default_collate
    if collates and (info is None or info.id == 0):
        warnings.warn(
            "the DataLoader makes batches of batches, which adds an axis to every column; pass batch_size=None: "
            "DataLoader(Batches(...), batch_size=None)",
            PenstockWarning,
            stacklevel=users_level(),
        )


class _Envelope(NamedTuple):
    """What the batches of one pass of a worker have in common."""

    token: str
    """Of the `Batches` that they belong to."""
    in_pass: int
    sender: Sender
    on_board: bool
    """Whether the pass was entered on the board."""


class _SentBatch(dict[str, Any]):
    """A batch that is pickled through shared memory, and arrives in the other process as a plain dict."""

    envelope: _Envelope

    def __copy__(self) -> _SentBatch:
        copy = _SentBatch(self)
        copy.envelope = self.envelope
        return copy

    def __reduce__(self) -> Any:
        token, in_pass, sender, on_board = self.envelope
        return _arrived, (sender.pickled(dict(self)), token, in_pass, on_board)


def _arrived(pickled: bytes, token: str, in_pass: int, on_board: bool) -> dict[str, Any]:
    """Return a batch in the process that receives it."""
    parcel, owner = Parcel(*pickle.loads(pickled)), _instances.get(token)
    return Receiver().unpack(parcel, in_pass) if owner is None else owner.receive(parcel, in_pass, on_board=on_board)
