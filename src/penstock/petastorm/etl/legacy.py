"""What Petastorm pickled into datasets, from its first version on, read without running it.

Petastorm's own reader rewrote old package names in the bytes and trusted whole packages; here the names are aliases in
an allow-list and nothing is ever called. See `penstock.schema.petastorm_pickle`.
"""

from __future__ import annotations

from typing import IO, Any

from penstock.errors import MetadataError
from penstock.schema.petastorm_pickle import load_index, load_unischema

__all__ = ["RestrictedUnpickler", "depickle_legacy_package_name_compatible", "restricted_loads"]


class RestrictedUnpickler:
    """Reads one pickled schema or row-group index from a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def load(self) -> Any:
        """Return the schema or the indexes; see `restricted_loads`."""
        return restricted_loads(self._file.read())


def restricted_loads(s: bytes) -> Any:
    """Return what a stored pickle holds: a `Unischema`, or row-group indexes by name.

    Raises:
        MetadataError: It is damaged, or names anything but the parts of these two.
    """
    try:
        return load_unischema(s)
    except MetadataError as not_a_schema:
        try:
            return load_index(s)
        except MetadataError:
            raise not_a_schema from None


def depickle_legacy_package_name_compatible(pickled_string: bytes) -> Any:
    """Return what a stored pickle holds, under any name that Petastorm's package has had."""
    return restricted_loads(pickled_string)
