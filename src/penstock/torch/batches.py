"""`Batches`: an IterableDataset for those who keep `torch.utils.data.DataLoader` and its worker processes.

Each worker process runs a loader of its own over its turns (`turns`); the dataset travels as facts (`ship`). Without
workers it is `penstock.torch.loader`. No thread is alive in the process that holds it but while it iterates there.

A worker's batch says which pass it is of when it arrives, so that the next `for` over the DataLoader, whose workers are
new processes, gets the next pass.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import uuid
import warnings
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from torch.utils.data import IterableDataset, get_worker_info

from penstock.engine import host
from penstock.errors import BudgetError, PenstockWarning, PlanError
from penstock.torch.hand_over import Loader, start_of
from penstock.torch.opened import Keywords, Opening, dataset_of, with_group
from penstock.torch.post import Parcel, Receiver, Sender
from penstock.torch.ship import Shipped
from penstock.torch.tensors import converter
from penstock.torch.turns import Turns, consumer_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.api import Loader as NativeLoader

_here: weakref.WeakValueDictionary[str, Batches] = weakref.WeakValueDictionary()
"""What batches that arrive in this process belong to."""


class Batches(IterableDataset):  # type: ignore[misc]
    """Batches as dicts of tensors for ``DataLoader(Batches(...), batch_size=None, num_workers=N)``.

    The DataLoader gives exactly the batches of `penstock.torch.loader`, in its order, for any N. Every `for` over it is
    one pass, and the next one is the next pass. The state is saved and restored by torchdata's `StatefulDataLoader`; or
    give any state, of another number of workers too, to `load_state_dict` before the DataLoader starts.

    Takes all keywords of `penstock.Dataset.loader` besides those of `penstock.torch.loader` that do not concern a
    device. `workers` are the threads of each worker process (default: its share of the cores) and `memory_bytes` is for
    each of them. A batch of the shuffled order draws from the whole window, so each worker process holds a window and
    reads what it needs of all row groups: few of them, or none, are better than many.
    """

    def __init__(  # noqa: PLR0913 -- a public factory takes flat keywords
        self,
        dataset_or_url: Any,
        *,
        batch_size: int,
        group: Any = None,
        nulls: str | Iterable[str] = "mask",
        columns: Iterable[Any] | None = None,
        filters: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: Any = None,
        **options: Unpack[Keywords],
    ) -> None:
        super().__init__()
        self._convert = converter(nulls)
        opening = Opening(columns=columns, filters=filters, storage_options=storage_options, filesystem=filesystem)
        self._shipped = Shipped(dataset_of(dataset_or_url, opening))
        self._options: dict[str, Any] = {**with_group(options, group), "batch_size": batch_size}
        native = self._shipped.dataset.loader(**self._options)
        # Worker processes know nothing of torch.distributed.
        self._options |= {"rank": native.rank, "world": native.world}
        self._token = uuid.uuid4().hex
        self._at: dict[str, Any] = native.state_dict()
        self._loader: Loader | None = Loader(native, self._convert)
        self._pid = os.getpid()
        self._turns: Turns | None = None
        self._remote = False
        """Whether batches have arrived from worker processes since a state was loaded."""
        self._post: Sender | Receiver | None = None
        """The memory that batches travel in, at this end."""
        _here[self._token] = self

    # -- other processes ------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        stays = {"_loader": None, "_turns": None, "_post": None, "_pid": -1, "_remote": False}
        return {**vars(self), **stays, "_at": self._next_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pid = os.getpid()
        _here[self._token] = self

    def _next_state(self) -> dict[str, Any]:
        return self._at if self._loader is None else self._loader.next_state()

    def _arrive_here(self) -> None:
        """After a fork: let go of what belongs to the other process, connections and locks above all."""
        if os.getpid() == self._pid:
            return
        self._at, self._loader, self._turns, self._post = self._next_state(), None, None, None
        self._shipped = pickle.loads(pickle.dumps(self._shipped))
        self._pid = os.getpid()

    # -- without workers ------------------------------------------------------------------------------------------

    def _main(self) -> Loader:
        """Return the loader of this process."""
        self._arrive_here()
        if self._loader is None:
            native = self._shipped.dataset.loader(**self._options)
            self._loader = Loader(native, self._convert)
            self._loader.native.load_state_dict(self._at)
        return self._loader

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        if info is None:
            return iter(self._main())
        turns = self._worker(info)
        number, batches = turns.begin()
        if not isinstance(self._post, Sender):
            self._post = Sender()
        return _Sending(_Origin(self._token, number, self._post), batches, turns, self._convert)

    def __len__(self) -> int:
        """Return the batches of a whole pass, wherever in it this is: what a DataLoader's `len` means."""
        whole = self._main()._whole
        if whole is None:
            raise TypeError("Batches with epochs=None has no length")
        return whole

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of pass `epoch`, for workers that start from here on; see `Loader.set_epoch`.

        Never needed, but where a `collate_fn` of yours makes something else of the batches, or a `StatefulDataLoader`
        with workers goes on from the end of an epoch: then nothing tells this process which pass is next.
        """
        self._main().set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this process: of the consumer, or inside a worker of that worker's next batch."""
        info = get_worker_info()
        if info is not None:
            return self._worker(info).state_dict()
        if self._remote:
            raise PlanError(
                "the batches come from worker processes, and only the DataLoader knows how many you have received; use "
                "torchdata's StatefulDataLoader and its state_dict(), or penstock.torch.loader"
            )
        return self._main().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: of any loader of Penstock, or of a `StatefulDataLoader` with any number of workers."""
        info = get_worker_info()
        if info is not None:
            self._worker(info).load_state_dict(state)
            return
        self._main().load_state_dict(consumer_state(state))
        self._remote = False

    # -- inside a worker ------------------------------------------------------------------------------------------

    def _worker(self, info: Any) -> Turns:
        self._arrive_here()
        if self._turns is None:
            self._turns = Turns(self._worker_loader(info.num_workers), self._at, info.id, info.num_workers)
        return self._turns

    def _worker_loader(self, count: int) -> NativeLoader:
        """Return the loader of one of `count` worker processes: with a share of the cores and of the memory."""
        options = dict(self._options)
        if options.get("pool") == "process" and multiprocessing.current_process().daemon:
            raise PlanError("a worker of a DataLoader cannot start processes; use pool='thread', or num_workers=0")
        if options.get("workers") is None:
            options["workers"] = max(1, host.default_workers() // count)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PenstockWarning)  # said already where the dataset was made
            if options.get("memory_bytes") is not None:
                return self._shipped.dataset.loader(**options)
            try:
                return self._shipped.dataset.loader(**{**options, "memory_bytes": host.default_memory() // count})
            except BudgetError as error:  # the window is the same for any number of workers
                return self._shipped.dataset.loader(**{**options, "memory_bytes": error.least})

    def _receive(self, parcel: Parcel, number: int) -> dict[str, Any]:
        """Return a batch of a pass that has arrived from a worker: the next iteration is the next pass."""
        main = self._main()
        state, length = main.state_dict(), main.native._options.epochs or 1
        self._remote = True
        if state["epoch"] != (number + 1) * length:
            main._go_to(start_of(main.native, state, (number + 1) * length))
        if not isinstance(self._post, Receiver):
            self._post = Receiver()
        return self._post.unpack(parcel, number)


class _Origin(NamedTuple):
    """Where a batch comes from: which `Batches`, which pass, and the memory it will travel in."""

    token: str
    number: int
    sender: Sender


class _Sending:
    """The iterator of a worker."""

    def __init__(self, origin: _Origin, batches: Any, turns: Turns, convert: Any) -> None:
        self._origin, self._batches, self._turns, self._convert = origin, batches, turns, convert

    def __iter__(self) -> _Sending:
        return self

    def __next__(self) -> _Sent:
        batch = _Sent(self._convert(next(self._batches)))
        batch.origin = self._origin
        self._turns.delivered()
        return batch


class _Sent(dict[str, Any]):
    """A batch on its way to another process, where it arrives as a plain dict."""

    origin: _Origin

    def __copy__(self) -> _Sent:
        copy = _Sent(self)
        copy.origin = self.origin
        return copy

    def __reduce__(self) -> Any:
        token, number, sender = self.origin
        return _arrived, (*sender.pack(dict(self)), token, number)


def _arrived(content: dict[str, Any], memory: Any, sender: tuple[int, int], token: str, number: int) -> dict[str, Any]:
    """Return a batch in the process that gets it."""
    parcel, owner = Parcel(content, memory, sender), _here.get(token)
    return Receiver().unpack(parcel, number) if owner is None else owner._receive(parcel, number)
