"""A pickle reader that never calls anything: it returns plain values and inert `Made` objects.

Petastorm stores its schema as a pickle. Python's unpickler would import and call whatever the pickle names. This one
builds dicts, lists, tuples, sets, strings and numbers by itself, and passes every name, call and state to a resolver,
which looks them up in a fixed table. Reads protocols 0 to 5.
"""

from __future__ import annotations

import codecs as text_codecs
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from penstock.errors import MetadataError

_MAX_INT_BYTES = 1024
_CONTAINER_STEPS = 4
"""What a container counts as: it takes up to 216 bytes, a number or an entry of the memo 30 to 100."""
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_KEYS = (str, bytes, int, float, bool, Decimal, type(None))


@dataclass(slots=True)
class Made:
    """An object that the pickle described; never a live one."""

    module: str
    """Module of its class, or of the function that was to make it."""
    name: str
    """Name of its class or of that function."""
    args: tuple[Any, ...] = ()
    """What it was to be made from."""
    state: dict[str, Any] | tuple[Any, ...] = field(default_factory=dict)
    """What it was to hold."""


@dataclass(frozen=True, slots=True)
class Name:
    """A class or function that the pickle named."""

    module: str
    """Module, as written in the pickle."""
    name: str
    """Name in it; never dotted."""


Resolve = Callable[[str, str], Any]
"""(module, name) to a value, or to a `Name` that stays one; raises MetadataError where it is not allowed."""
Call = Callable[[Name, tuple[Any, ...]], Any]
"""(what, args) to the value of a call or of a new object; raises MetadataError where it is not allowed."""

_MARK = object()


@dataclass(frozen=True, slots=True)
class PickleLimits:
    """How much a pickle may ask for: a few bytes may build any number of objects."""

    num_bytes: int
    """Longest pickle that is read."""
    num_steps: int
    """Opcodes that are run, and values that calls are given; 100 bytes of memory each at most."""


class SafeReader:
    """Reads one pickle; see the module. One use."""

    def __init__(self, data: bytes, limits: PickleLimits, *, resolve: Resolve, call: Call, new: Call) -> None:
        if len(data) > limits.num_bytes:
            raise MetadataError(f"a pickle of {len(data)} bytes is longer than the {limits.num_bytes} that are read")
        self._limits = limits
        self._left = limits.num_steps
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._resolve, self._call, self._new = resolve, call, new

    def load(self) -> Any:
        """Return the value; MetadataError where the pickle is damaged or asks for what is not allowed."""
        try:
            while (opcode := self._take(1)) != b".":
                self._spend(_CONTAINER_STEPS if opcode in _CONTAINERS else 1)
                if opcode in _CONSTANTS:
                    self._stack.append(_CONSTANTS[opcode])
                elif opcode in _PUSH:
                    self._stack.append(_PUSH[opcode](self))
                elif opcode in _DO:
                    _DO[opcode](self)
                else:
                    raise MetadataError(
                        f"the pickle uses opcode {opcode!r} at byte {self._at - 1}, which is not allowed"
                    )
            return self._pop()
        except MetadataError:
            raise
        except (IndexError, KeyError, ValueError, TypeError, OverflowError, struct.error) as exc:
            raise MetadataError(f"damaged pickle at byte {self._at}: {exc!r:.200}") from exc

    def _spend(self, num_steps: int) -> None:
        self._left -= num_steps
        if self._left < 0:
            raise MetadataError(f"a pickle of more than {self._limits.num_steps} steps is not read")

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise MetadataError("the pickle ends too early")
        self._at += size
        return taken

    def _counted(self, width: int) -> bytes:
        return self._take(int.from_bytes(self._take(width), "little"))

    def _line(self) -> bytes:
        end = self._data.index(b"\n", self._at)
        line = self._data[self._at : end]
        self._at = end + 1
        return line

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise MetadataError("damaged pickle: a mark where a value should be")
        return value

    def _to_mark(self) -> list[Any]:
        items: list[Any] = []
        while (value := self._stack.pop()) is not _MARK:
            items.append(value)
        return items[::-1]

    def _last(self, kind: type) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise MetadataError(f"damaged pickle: expected a {kind.__name__}, found {type(self._stack[-1]).__name__}")
        return self._stack[-1]

    def _memoise(self, key: int) -> None:
        if self._stack[-1] is _MARK:
            raise MetadataError("damaged pickle: a mark in the memo")
        self._memo[key] = self._stack[-1]

    def _named(self, module: Any, name: Any) -> Any:
        if not isinstance(module, str) or not isinstance(name, str):
            raise MetadataError("damaged pickle: a name that is not text")
        if not _MODULE.fullmatch(module) or not name.isidentifier():
            raise MetadataError(f"the pickle names {module!r:.100} {name!r:.100}, which is not allowed")
        return self._resolve(module, name)

    def _put_items(self, items: Sequence[Any]) -> None:
        self._last(dict).update(_pairs(items))

    def _apply(self, how: Call) -> None:
        args, what = self._pop(), self._pop()
        if not isinstance(what, Name) or not isinstance(args, tuple):
            raise MetadataError(f"the pickle calls a {type(what).__name__}, which is not allowed")
        self._spend(sum(len(arg) for arg in args if isinstance(arg, list | tuple | set | dict | str | bytes)))
        self._stack.append(how(what, args))

    def _build(self) -> None:
        state, target = self._pop(), self._last(Made)
        if not isinstance(state, dict | tuple):
            raise MetadataError(f"damaged pickle: {target.name} gets a state of {type(state).__name__}")
        target.state = state

    def _get(self, key: int) -> Any:
        if key not in self._memo:
            raise MetadataError(f"damaged pickle: nothing was kept under {key}")
        return self._memo[key]

    def _tuple(self, size: int) -> tuple[Any, ...]:
        return tuple([self._pop() for _ in range(size)][::-1])

    def _add_to_set(self, items: Sequence[Any]) -> None:
        self._last(set).update(checked_key(item) for item in items)

    def _extend(self, items: Sequence[Any]) -> None:
        self._last(list).extend(items)

    def _new_with_keywords(self) -> None:
        if self._pop() != {}:
            raise MetadataError("the pickle makes an object from keywords, which is not allowed")
        self._apply(self._new)


def checked_key(key: Any) -> Any:
    """Return a dict key or set member that is a plain scalar; anything else is refused (hashing it may never end)."""
    if isinstance(key, _KEYS) or getattr(key, "ndim", None) == 0:
        return key
    raise MetadataError(f"damaged pickle: a key of {type(key).__name__}")


def _pairs(items: Sequence[Any]) -> dict[Any, Any]:
    return {checked_key(key): value for key, value in zip(items[::2], items[1::2], strict=True)}


def _short(digits: bytes) -> bytes:
    if len(digits) > _MAX_INT_BYTES:
        raise MetadataError("damaged pickle: a number of too many digits")
    return digits


def _decimal_int(line: bytes) -> int:
    return int(_short(line.rstrip(b"L")))


def _quoted(line: bytes) -> str:
    if len(line) < 2 or line[:1] not in b"'\"" or line[-1] != line[0]:
        raise MetadataError("damaged pickle: a string without quotes")
    return text_codecs.escape_decode(line[1:-1])[0].decode("latin1")


def _utf8(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _frame(reader: SafeReader) -> None:
    if int.from_bytes(reader._take(8), "little") > len(reader._data) - reader._at:
        raise MetadataError("the pickle ends too early")


def _protocol(reader: SafeReader) -> None:
    if reader._take(1)[0] > 5:
        raise MetadataError("a pickle of a protocol later than 5 is not read")


_CONTAINERS = frozenset(
    [b"]", b"}", b"\x8f", b"l", b"t", b"d", b"\x85", b"\x86", b"\x87", b"\x91", b"R", b"\x81", b"\x92"]
)
_CONSTANTS: dict[bytes, Any] = {b"(": _MARK, b"N": None, b"\x88": True, b"\x89": False, b")": ()}
_PUSH: dict[bytes, Callable[[SafeReader], Any]] = {
    b"I": lambda r: line == b"01" if (line := r._line()) in (b"00", b"01") else _decimal_int(line),
    b"L": lambda r: _decimal_int(r._line()),
    b"F": lambda r: float(r._line()),
    b"J": lambda r: int.from_bytes(r._take(4), "little", signed=True),
    b"K": lambda r: r._take(1)[0],
    b"M": lambda r: int.from_bytes(r._take(2), "little"),
    b"\x8a": lambda r: int.from_bytes(_short(r._counted(1)), "little", signed=True),
    b"\x8b": lambda r: int.from_bytes(_short(r._counted(4)), "little", signed=True),
    b"G": lambda r: struct.unpack(">d", r._take(8))[0],
    b"S": lambda r: _quoted(r._line()),
    b"T": lambda r: r._counted(4).decode("latin1"),
    b"U": lambda r: r._counted(1).decode("latin1"),
    b"V": lambda r: r._line().decode("raw-unicode-escape"),
    b"X": lambda r: _utf8(r._counted(4)),
    b"\x8c": lambda r: _utf8(r._counted(1)),
    b"\x8d": lambda r: _utf8(r._counted(8)),
    b"B": lambda r: r._counted(4),
    b"C": lambda r: r._counted(1),
    b"\x8e": lambda r: r._counted(8),
    b"\x96": lambda r: r._counted(8),
    b"]": lambda _: [],
    b"}": lambda _: {},
    b"\x8f": lambda _: set(),
    b"l": lambda r: r._to_mark(),
    b"t": lambda r: tuple(r._to_mark()),
    b"\x85": lambda r: r._tuple(1),
    b"\x86": lambda r: r._tuple(2),
    b"\x87": lambda r: r._tuple(3),
    b"g": lambda r: r._get(int(_short(r._line()))),
    b"h": lambda r: r._get(r._take(1)[0]),
    b"j": lambda r: r._get(int.from_bytes(r._take(4), "little")),
    b"2": lambda r: r._stack[-1],
    b"c": lambda r: r._named(_utf8(r._line()), _utf8(r._line())),
    b"\x93": lambda r: r._named(*r._tuple(2)),
    b"\x91": lambda r: {checked_key(v) for v in r._to_mark()},
    b"d": lambda r: _pairs(r._to_mark()),
}


_DO: dict[bytes, Callable[[SafeReader], object]] = {
    b"\x80": _protocol,
    b"\x95": _frame,
    b"0": lambda r: r._stack.__delitem__(-1),
    b"1": lambda r: r._to_mark(),
    b"s": lambda r: r._put_items(r._tuple(2)),
    b"u": lambda r: r._put_items(r._to_mark()),
    b"a": lambda r: r._extend(r._tuple(1)),
    b"e": lambda r: r._extend(r._to_mark()),
    b"\x90": lambda r: r._add_to_set(r._to_mark()),
    b"p": lambda r: r._memoise(int(_short(r._line()))),
    b"q": lambda r: r._memoise(r._take(1)[0]),
    b"r": lambda r: r._memoise(int.from_bytes(r._take(4), "little")),
    b"\x94": lambda r: r._memoise(len(r._memo)),
    b"R": lambda r: r._apply(r._call),
    b"\x81": lambda r: r._apply(r._new),
    b"\x92": lambda r: r._new_with_keywords(),
    b"b": lambda r: r._build(),
}
