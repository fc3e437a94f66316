"""The process pool: decoding and the transform in other processes, for Python that holds the GIL.

A thread of the run gathers a batch (still encoded) into unnamed shared memory, its process decodes and transforms it
into another block, and the thread hands that memory out as the batch: nothing large is pickled. Each thread owns one
process and has one job with it at a time. A process that dies shows as a closed pipe and becomes `WorkerDied`; a parent
that dies shows the same way and ends the process. Blocks are used again once the user has dropped the batch.

Shared blocks have no name in any file system, so nothing is left behind if a process dies. Linux: memfd; other
POSIX systems: a temporary file that is unlinked at once; Windows: a mapping whose name is random and which the system
removes with its last handle.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import traceback
import uuid
from collections import deque
from multiprocessing import connection as mp_connection
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from penstock.codecs import Cells
from penstock.engine.gather import BlockPool, Gathered
from penstock.engine.randomness import seed_globals
from penstock.engine.stages import Batch, BatchOrigin, Lost, Stage, run_stages
from penstock.errors import PlanError, WorkerDied

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    Description = tuple[str | np.dtype[Any], tuple[int, ...], int]
    """Type, shape and place of a packed array; the type by name if that is unambiguous (not for bfloat16)."""

_WINDOWS = sys.platform == "win32"


class SharedBlock:
    """Bytes seen by two processes; freed when neither maps them any more."""

    __slots__ = ("_fd", "_map", "_name", "memory")

    def __init__(self, num_bytes: int, *, fd: int | None = None, name: str | None = None) -> None:
        self._fd, self._name = fd, name
        if _WINDOWS:
            self._name = name or f"penstock-{uuid.uuid4().hex}"
            self._map = mmap.mmap(-1, num_bytes, tagname=self._name)  # type: ignore[call-arg, unused-ignore]
        else:
            if fd is None:
                if hasattr(os, "memfd_create"):
                    fd = os.memfd_create("penstock", os.MFD_CLOEXEC)
                else:
                    with tempfile.TemporaryFile() as file:
                        fd = os.dup(file.fileno())
                self._fd = fd
                os.ftruncate(fd, num_bytes)
            self._map = mmap.mmap(fd, num_bytes)
        self.memory: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def __len__(self) -> int:
        return len(self.memory)

    def send(self, connection: Connection, pid: int) -> None:
        """Hand the block to the process at the other end, which calls `receive`."""
        connection.send((len(self), self._name))
        if self._fd is not None:
            from multiprocessing.reduction import send_handle

            send_handle(connection, self._fd, pid)
            self._forget()

    @classmethod
    def receive(cls, connection: Connection) -> SharedBlock:
        """Take the block that the other end sends."""
        num_bytes, name = connection.recv()
        if _WINDOWS:
            return cls(num_bytes, name=name)
        from multiprocessing.reduction import recv_handle

        block = cls(num_bytes, fd=recv_handle(connection))
        block._forget()
        return block

    def _forget(self) -> None:
        """Close the descriptor: the mapping stays."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            self._forget()


class Packer:
    """Lays arrays and bytes one after another into a block, and describes where they are."""

    def __init__(self) -> None:
        self._todo: list[tuple[int, NDArray[np.uint8]]] = []
        self.num_bytes = 0

    def add(self, array: NDArray[Any]) -> Description:
        """Note an array to be packed; returns its description."""
        array = np.ascontiguousarray(array)
        at = self.num_bytes
        self._todo.append((at, array.reshape(-1).view(np.uint8)))
        self.num_bytes = (at + array.nbytes + 63) & -64
        dtype, name = array.dtype, array.dtype.str
        return name if np.dtype(name) == dtype else dtype, array.shape, at

    def pack(self, memory: NDArray[np.uint8]) -> None:
        """Copy everything into place."""
        for at, data in self._todo:
            memory[at : at + len(data)] = data


def unpack(memory: NDArray[np.uint8], description: Description) -> NDArray[Any]:
    """Return an array that lies in the block, without copying."""
    dtype, shape, at = description
    return np.ndarray(shape, np.dtype(dtype), memory, at)


_GROW = 1.25
"""A block that was too small is replaced by one this much larger than needed."""
_MOST_BLOCKS = 16
"""A process whose batches take more blocks has a user who keeps batches: from here on they are copied out of shared
memory, since a process may only have 65,530 mappings, and shared blocks are never given back."""
_LOOK_S = 5.0
"""How often an idle process checks that its parent is alive; usually the closed pipe shows it at once."""


class _SharedLease:
    """Tells the pool that a block may be used again once no array refers to it."""

    __slots__ = ("__array_interface__", "_block", "_free", "_number")

    def __init__(self, block: SharedBlock, number: int, free: deque[int]) -> None:
        self._block, self._number, self._free = block, number, free
        self.__array_interface__ = block.memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._number)


class ProcessStages:
    """A process that runs stages for one thread of the engine, which waits for its answer."""

    def __init__(self, payload: Payload, start_method: str | None) -> None:
        self._payload = payload
        self._context: Any = multiprocessing.get_context(start_method)
        self._process: Any = None
        self._pipe: Connection | None = None
        self._input: SharedBlock | None = None
        self._blocks: dict[int, SharedBlock] = {}
        self._free: deque[int] = deque()
        self._closed = False
        self._answered = False

    def start(self) -> None:
        """Start the process; returns at once, the process gets ready on its own."""
        # The whole script would run in each process that is started while the script is still imported.
        if self._payload.needs_script and getattr(multiprocessing.current_process(), "_inheriting", False):
            raise RuntimeError(
                'a loader with pool="process" is iterated while a process of the pool imports the script; '
                "put what the script does below `if __name__ == '__main__':`"
            )
        self._pipe, theirs = self._context.Pipe(duplex=True)
        keep = self._pipe if self._context.get_start_method() == "fork" else None
        self._process = self._context.Process(
            target=_serve, args=(theirs, self._payload.pickled, keep), name="penstock-worker", daemon=True
        )
        # A process that is still importing would print a traceback at Ctrl-C.
        hidden = contextlib.nullcontext() if self._payload.needs_script else main_left_alone()
        with choice_left_open(), ctrl_c_later(self._context.get_start_method()), hidden:
            self._process.start()
        theirs.close()
        # multiprocessing's own exit function would end our process from a forked child of the user's as well; ours ends
        # with the run, or when it sees this process gone.
        getattr(multiprocessing.process, "_children", set()).discard(self._process)
        if self._closed:  # by another thread, which has not seen the process
            self._end()

    def run(self, gathered: Sequence[Gathered], origin: BatchOrigin, pool: BlockPool) -> tuple[Batch, list[Lost]]:
        """Have the process finish a batch; same contract as `run_stages`."""
        del pool  # the batch lies in shared memory instead
        try:
            pipe = cast("Connection", self._pipe)
            packer = Packer()
            columns = [_pack_gathered(packer, one) for one in gathered]
            fresh = self._input is None or len(self._input) < packer.num_bytes
            if fresh:
                self._input = SharedBlock(max(4096, int(packer.num_bytes * _GROW)))
            block = cast("SharedBlock", self._input)
            packer.pack(block.memory)
            freed = [self._free.popleft() for _ in range(len(self._free))]
            pipe.send((columns, origin, freed, fresh))
            if fresh:
                block.send(pipe, self._process.pid)
            ready = mp_connection.wait([pipe, self._process.sentinel])
            if pipe not in ready and not pipe.poll():
                raise EOFError
            kind, value = pipe.recv()
            if kind == "error":
                raise _revive(*value)
            number, is_fresh, num_bytes, forms, lost = value
            self._answered = True
            if is_fresh:
                self._blocks[number] = SharedBlock.receive(pipe)
            if len(self._blocks) > _MOST_BLOCKS:
                memory = self._blocks[number].memory[:num_bytes].copy()
                self._free.append(number)
            else:
                memory = np.asarray(_SharedLease(self._blocks[number], number, self._free))
            return {name: _unpack_value(memory, form) for name, form in forms}, lost
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise self._died() from error

    def _died(self) -> WorkerDied:
        self._process.join(1)
        code = self._process.exitcode
        how = f"ended with exit code {code}" if code is None or code >= 0 else f"was killed by {signal_name(-code)}"
        hint = '; pool="serial" runs the same in this process, which may show more'
        if code == -9:
            hint = "; the system kills processes when memory runs out: lower memory_bytes or workers"
        elif code == 1 and not self._answered:
            hint = "; see its traceback above: a script that starts processes needs `if __name__ == '__main__':`"
        return WorkerDied(f"a process of the pool (pid {self._process.pid}) {how} while it built a batch{hint}")

    def close(self) -> None:
        """End the process, whatever it is doing; the pipe goes with the last reference to this object."""
        closed, self._closed = self._closed, True
        if not closed and self._process is not None and self._process.pid is not None:
            self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.join()


class Payload(NamedTuple):
    """What a process gets at its start."""

    pickled: bytes
    needs_script: bool
    """Whether the process must import the user's script to make sense of it."""


def payload_of(stages: tuple[Stage, ...]) -> Payload:
    """Pickle what a process needs; a function that cannot be pickled is refused with the cure."""
    try:
        plain = Payload(pickle.dumps(stages, pickle.HIGHEST_PROTOCOL), needs_script=False)
    except Exception as error:  # noqa: BLE001 -- a user's object may raise anything when pickled
        return cast("Payload", _taken_along(stages, error))
    if b"_main__" not in plain.pickled:  # `__main__`, or `__mp_main__` in a process that has imported the script
        return plain
    return _taken_along(stages, None) or Payload(plain.pickled, needs_script=True)


def _taken_along(stages: tuple[Stage, ...], failure: Exception | None) -> Payload | None:
    """Pickle functions by value where cloudpickle is installed, so that processes need not run the script to find them.

    None where it is not, unless pickle has failed too.
    """
    try:
        import cloudpickle

        return Payload(cloudpickle.dumps(stages), needs_script=False)
    except ImportError:
        pass
    except Exception as error:  # noqa: BLE001 -- as above
        failure = error
    if failure is None:
        return None
    raise PlanError(
        f'pool="process" sends transforms, predicates and codecs to other processes; they cannot be pickled: '
        f"{failure}; "
        'define them at the top level of a module, pip install cloudpickle, or use pool="thread"'
    ) from failure


def start_method() -> str | None:
    """Return how processes are started: as the user has set it, else spawn, which is safe beside threads."""
    return multiprocessing.get_start_method(allow_none=True) or "spawn"


# -- the other process --------------------------------------------------------------------------------------------


def _serve(pipe: Connection, payload: bytes, inherited: Connection | None) -> None:
    """Finish batches until the pipe closes; runs in the process."""
    if inherited is not None:
        inherited.close()  # a forked child would keep its own pipe open and never see the parent's end
    # Leave Ctrl-C to the parent, and do not run a forked parent's handlers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent, parent_pid = multiprocessing.parent_process(), os.getppid()
    server = _Server(pipe, payload)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            ready = mp_connection.wait([pipe] if parent is None else [pipe, parent.sentinel], _LOOK_S)
            if pipe in ready or pipe.poll():
                server.serve(pipe.recv())
                sys.stdout.flush()  # what a transform prints comes out, however this process ends
            elif ready or os.getppid() != parent_pid:
                break
    sys.stderr.flush()
    os._exit(0)  # no finalizers of a forked parent's objects


@contextlib.contextmanager
def choice_left_open() -> Iterator[None]:
    """Keep the start method open: multiprocessing fixes its default for good when a process is spawned.

    Otherwise the next loader would take that default (fork, on Linux) for the user's choice, and a user could not set
    one any more.
    """
    default = getattr(multiprocessing.context, "_default_context", None)
    chosen = multiprocessing.get_start_method(allow_none=True) is not None
    try:
        yield
    finally:
        if not chosen and hasattr(default, "_actual_context"):
            cast("Any", default)._actual_context = None


@contextlib.contextmanager
def main_left_alone() -> Iterator[None]:
    """Start a process that does not import the user's script: it needs nothing of it.

    A script without `if __name__ == "__main__":` works then, and one that imports a framework is not imported again.
    """
    main = sys.modules.get("__main__")
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    try:
        if main is not None:
            main.__spec__ = None
            if file is not None:
                del main.__file__
        yield
    finally:
        if main is not None:
            main.__spec__ = spec
            if file is not None:
                main.__file__ = file


@contextlib.contextmanager
def ctrl_c_later(method: str) -> Iterator[None]:
    """Hold Ctrl-C back, here and in processes started here, which let it through once they are ready for it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    if method != "fork":
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # would be started on the way, and lets Ctrl-C through when it has been
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _handled_later():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _handled_later() -> Iterator[None]:
    """Call the handler of Ctrl-C at the end: another thread, of a library, may have caught it in spite of our mask."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *args: came.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[-1])


def signal_name(number: int) -> str:
    """Return the name of a signal, as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"


class _Server:
    def __init__(self, pipe: Connection, payload: bytes) -> None:
        self._pipe = pipe
        self._stages: tuple[Stage, ...] | None = None
        self._payload = payload
        self._input: SharedBlock | None = None
        self._blocks: dict[int, SharedBlock] = {}
        self._idle: list[int] = []
        self._pool = BlockPool(keep=2)

    def serve(self, message: Any) -> None:
        columns, origin, freed, fresh = message
        self._idle.extend(freed)
        if fresh:
            self._input = SharedBlock.receive(self._pipe)
        try:
            if self._stages is None:
                self._stages = cast("tuple[Stage, ...]", pickle.loads(self._payload))
            if any(stage.calls_user for stage in self._stages):
                seed_globals((origin.seed, origin.epoch), origin.first)
            gathered = [_unpack_gathered(cast("SharedBlock", self._input).memory, one) for one in columns]
            batch, lost = run_stages(self._stages, gathered, origin, self._pool)
            packer = Packer()
            forms = [(name, _pack_value(packer, values)) for name, values in batch.items()]
        except BaseException as error:  # noqa: BLE001 -- raised again in the parent
            self._pipe.send(("error", _freeze(error)))
            return
        number, made = self._block(packer.num_bytes)
        packer.pack(self._blocks[number].memory)
        self._pipe.send(("ok", (number, made, packer.num_bytes, forms, lost)))
        if made:
            self._blocks[number].send(self._pipe, cast("Any", multiprocessing.parent_process()).pid)

    def _block(self, num_bytes: int) -> tuple[int, bool]:
        """Return the number of a block that is large enough, and whether it is new to the parent."""
        for number in self._idle:
            if len(self._blocks[number]) >= num_bytes:
                self._idle.remove(number)
                return number, False
        # Where blocks are idle they are all too small: one of them makes room.
        number = self._idle.pop() if self._idle else len(self._blocks)
        self._blocks[number] = SharedBlock(max(4096, int(num_bytes * _GROW)))
        return number, True


# -- columns in shared memory -------------------------------------------------------------------------------------


def _pack_gathered(packer: Packer, one: Gathered) -> tuple[Any, ...]:
    valid = None if one.valid is None else packer.add(one.valid)
    if one.values is not None:
        return ("values", packer.add(one.values), valid)
    if one.rows is not None:
        return ("rows", packer.add(_pickled(one.rows)), None)
    cells = cast("Cells", one.cells)
    sizes = cells.stop - cells.start
    sizes = sizes if cells.valid is None else np.where(cells.valid, sizes, 0)
    stop = np.cumsum(sizes)
    data = np.empty(int(stop[-1]) if len(stop) else 0, np.uint8)
    for cell, end in zip(cells, stop.tolist(), strict=True):  # cells lie anywhere: each is copied separately
        if cell is not None:
            data[end - len(cell) : end] = cell
    return ("cells", (packer.add(data), packer.add(stop - sizes), packer.add(stop)), valid)


def _unpack_gathered(memory: NDArray[np.uint8], form: tuple[Any, ...]) -> Gathered:
    kind, what, mask = form
    valid = None if mask is None else unpack(memory, mask)
    if kind == "values":
        return Gathered(unpack(memory, what), valid)
    if kind == "rows":
        return Gathered(rows=pickle.loads(unpack(memory, what).data))
    data, start, stop = (unpack(memory, one) for one in what)
    return Gathered(valid=valid, cells=Cells([data], None, start, stop, valid))


def _pack_value(packer: Packer, values: Any) -> tuple[Any, ...]:
    if isinstance(values, np.ma.MaskedArray) and not values.dtype.hasobject:
        return ("masked", packer.add(values.data), packer.add(np.ma.getmaskarray(values)), values.fill_value)
    if type(values) is np.ndarray and not values.dtype.hasobject:
        return ("array", packer.add(values))
    return ("object", packer.add(_pickled(values)))


def _unpack_value(memory: NDArray[np.uint8], form: tuple[Any, ...]) -> Any:
    kind, *where = form
    if kind == "array":
        return unpack(memory, where[0])
    if kind == "masked":
        values, mask, fill_value = where
        return np.ma.MaskedArray(unpack(memory, values), unpack(memory, mask), fill_value=fill_value)
    return pickle.loads(unpack(memory, where[0]).data)


def _pickled(value: Any) -> NDArray[np.uint8]:
    try:
        found = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError):  # of a class of the user's script, which was taken along
        import cloudpickle

        found = cloudpickle.dumps(value)
    return np.frombuffer(found, np.uint8)


def _freeze(error: BaseException) -> tuple[Any, ...]:
    """Prepare an exception for the pipe: itself if it can travel, and always its text; then its cause."""
    text = "".join(traceback.format_exception(error))
    cause = None if error.__cause__ is None else _freeze(error.__cause__)
    frozen: bytes | None = None
    try:
        frozen = pickle.dumps(error)
        pickle.loads(frozen)
    except Exception:  # noqa: BLE001 -- a user's exception may do anything when pickled
        frozen = None
    return frozen, f"{type(error).__name__}: {error}", text, cause


def _revive(frozen: bytes | None, message: str, text: str, cause: tuple[Any, ...] | None) -> BaseException:
    error: BaseException = RuntimeError(message)
    if frozen is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(frozen)
    if cause is not None:
        error.__cause__ = _revive(*cause)
    else:
        error.add_note(f"in a process of the pool:\n{text}")
    return error
