"""Codecs by name: what a dataset stores of a codec, and how it comes back.

A stored codec is a name and JSON state. A name is looked up among registered classes, then among the entry points of
the group `penstock.codecs` of installed packages, and never imported as a path: what is in neither comes back as
`UnknownCodec`, which lets the other columns be read and prints the line to write.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar, cast

from penstock.codecs.base import JSON, Cells, Codec, DataframeColumnCodec, FieldLike, plain_state, rebuild
from penstock.codecs.image import CompressedImageCodec
from penstock.codecs.ndarray import CompressedNdarrayCodec, NdarrayCodec
from penstock.codecs.scalar import ScalarCodec
from penstock.errors import CodecError
from penstock.plugins import find_installed

if TYPE_CHECKING:
    from numpy.typing import NDArray

_T = TypeVar("_T", bound=type[DataframeColumnCodec])
_BUILT_IN = (ScalarCodec, NdarrayCodec, CompressedNdarrayCodec, CompressedImageCodec)
_classes: dict[str, type[DataframeColumnCodec]] = {}
ENTRY_POINTS = "penstock.codecs"
"""Entry point group of packages that add codecs: the name is the `codec_id`, the object the class."""


class UnknownCodec(Codec):
    """Stands for a codec that is not registered; reading its column raises CodecError with the cure."""

    def __init__(self, name: str, state: dict[str, Any]) -> None:
        self.name = name
        self.state = state

    def config(self) -> dict[str, JSON]:
        """Return the state as it was stored."""
        return dict(self.state)

    def encode(self, unischema_field: FieldLike, value: Any) -> Any:  # noqa: ARG002 - Petastorm's signature
        """Raise CodecError: nothing is known of the format."""
        raise CodecError(self._cure(unischema_field))

    def decode(self, unischema_field: FieldLike, value: Any) -> Any:  # noqa: ARG002 - Petastorm's signature
        """Raise CodecError: nothing is known of the format."""
        raise CodecError(self._cure(unischema_field))

    def decode_column(self, field: FieldLike, cells: Cells, out: NDArray[Any]) -> None:  # noqa: ARG002 - the contract
        """Raise CodecError at once: the column as a whole cannot be read."""
        raise CodecError(self._cure(field))

    def decode_list(self, field: FieldLike, cells: Cells) -> list[Any]:  # noqa: ARG002 - the contract
        """Raise CodecError at once: the column as a whole cannot be read."""
        raise CodecError(self._cure(field))

    def _cure(self, field: FieldLike) -> str:
        module, _, cls = self.name.rpartition(".")
        get = f"from {module} import {cls}; " if module not in ("", "__main__") else ""
        return (
            f"column {field.name!r} is stored with the codec {self.name!r}, which is not registered (classes named "
            f"in a dataset are never imported); before opening write: {get}penstock.register_codec({cls}); "
            "or leave the column out with columns=[...]"
        )

    def __repr__(self) -> str:
        return f"UnknownCodec({self.name!r})"


def register_codec(cls: _T) -> _T:
    """Let datasets that name this codec class use it; returns the class, so that it serves as a decorator.

    The class is found by its own `codec_id` (where it has one), by its name and by `module.name`. Registering a class
    again, as a notebook cell does, replaces it; taking another class's name is an error.
    """
    if not (isinstance(cls, type) and issubclass(cls, DataframeColumnCodec)):
        raise CodecError(f"register_codec takes a subclass of DataframeColumnCodec or Codec, got {cls!r}")
    for name in _names(cls):
        there = _classes.get(name)
        if there is not None and there is not cls and _full_name(there) != _full_name(cls):
            raise CodecError(
                f"the codec name {name!r} belongs to {_full_name(there)}; "
                f"give {_full_name(cls)} another name or codec_id"
            )
    _classes.update(dict.fromkeys(_names(cls), cls))
    return cls


def codec_to_json(codec: DataframeColumnCodec | None) -> dict[str, JSON] | None:
    """Return what a dataset stores of a codec; CodecError if its class is not registered or its state is not JSON."""
    if codec is None:
        return None
    if isinstance(codec, UnknownCodec):
        return {"codec": codec.name, "class": codec.name, "config": codec.config()}
    cls, name = type(codec), _stored_name(type(codec))
    if name not in _classes and find_installed(ENTRY_POINTS, name) is cls:
        register_codec(cls)
    if _classes.get(name) is not cls:
        raise CodecError(f"codec {_full_name(cls)} is not registered; write: penstock.register_codec({cls.__name__})")
    config = codec.config() if isinstance(codec, Codec) else plain_state(codec)
    try:
        same = json.loads(json.dumps(config)) == config
    except (TypeError, ValueError):
        same = False
    if not same:
        raise CodecError(
            f"the state of {codec!r} must be plain JSON (text, numbers, lists, dicts) to be stored; "
            "hold only such attributes, or subclass penstock.codecs.Codec with config() and from_config()"
        )
    stored: dict[str, JSON] = {"codec": name, "config": config}
    return stored if cls in _BUILT_IN else stored | {"class": _full_name(cls)}


def codec_from_json(stored: dict[str, JSON] | None) -> DataframeColumnCodec | None:
    """Rebuild a codec from what `codec_to_json` gave; a name that is not registered gives `UnknownCodec`."""
    if stored is None:
        return None
    name, config = stored.get("codec"), stored.get("config", {})
    if not isinstance(name, str) or not isinstance(config, dict):
        raise CodecError(f"stored codec {stored!r:.200} is damaged: it needs a name and a config")
    cls = _classes.get(name)
    if cls is None:
        found: type[DataframeColumnCodec] | None = find_installed(ENTRY_POINTS, name)
        if found is not None and name not in _names(register_codec(found)):
            raise CodecError(
                f"the entry point {name!r} of {ENTRY_POINTS} is {_full_name(found)}, whose codec_id is "
                f"{_stored_name(found)!r}; name the entry point like the codec"
            )
        cls = found
    if cls is None:
        return UnknownCodec(str(stored.get("class", name)), config)
    try:
        return cls.from_config(config) if issubclass(cls, Codec) else rebuild(cls, config)
    except (TypeError, KeyError, ValueError) as exc:
        raise CodecError(f"codec {name!r} does not understand its stored state {config!r:.200}: {exc}") from exc


def codec_from_state(module: str, name: str, state: dict[str, Any]) -> DataframeColumnCodec:
    """Rebuild the codec that a pickle names, if `module.name` or `name` is registered, else `UnknownCodec`."""
    cls = _classes.get(f"{module}.{name}") or _classes.get(name)
    if cls is None or cls in _BUILT_IN:
        return UnknownCodec(f"{module}.{name}", state)
    return cast("DataframeColumnCodec", rebuild(cls, state))


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _names(cls: type[DataframeColumnCodec]) -> set[str]:
    return {_stored_name(cls), cls.__name__, f"{cls.__module__}.{cls.__name__}"}


def _stored_name(cls: type[DataframeColumnCodec]) -> str:
    return str(cls.__dict__.get("codec_id") or cls.__name__)  # an inherited codec_id names the parent


for _cls in _BUILT_IN:
    register_codec(_cls)
