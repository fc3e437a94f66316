"""Say what is wrong with a file that has no usable footer, and what to do about it.

Called by `footers` and `scan` once reading has failed. Reads the first and the last bytes of the file again.
"""

from __future__ import annotations

from penstock.dataset.catalog import MAGIC, DataFile
from penstock.errors import BadFile, StoreError
from penstock.storage.filesystem import is_utf8
from penstock.storage.store import has_file


def bad_file(file: DataFile, cause: Exception | None) -> BadFile:
    """Return the error for a file without a usable footer."""
    wrong, cure = _diagnose(file, cause)
    return BadFile(f"{file.path} cannot be read as Parquet: {wrong}; {cure}", path=file.path)


def _diagnose(file: DataFile, cause: Exception | None) -> tuple[str, str]:
    """Return what is wrong with a file and what to do about it."""
    cure = "write it again or delete it, or open with on_error='skip' to leave it out"
    if not is_utf8(file.path):
        return "its name is not UTF-8, which pyarrow cannot open", "rename it, or open with on_error='skip'"
    if isinstance(cause, FileNotFoundError) or (
        file.size == 0 and cause is None and not has_file(file.root.store, file.path)
    ):
        return "it is not there (deleted, or a link to nothing)", "fetch or write it again, or open the dataset again"
    if file.size == 0:
        return "it has 0 bytes", cure
    head, tail = _ends(file)
    found = f"{file.size} bytes, begins with {head!r} and ends with {tail!r}"
    if head != MAGIC and head[:3] != b"PAR":
        return f"{found}, where Parquet begins and ends with {MAGIC!r}", f"{cure}; other formats are not read"
    if tail == b"PARE":
        return f"{found}: its footer is encrypted", "decrypt it first"
    if tail != MAGIC:
        return f"{found}, where Parquet ends with {MAGIC!r}: it is truncated", cure
    return f"{found}, and its footer is damaged ({cause or 'too short'})", cure


def _ends(file: DataFile) -> tuple[bytes, bytes]:
    """Return the first and last four bytes, empty where they cannot be read."""
    store = file.root.store
    try:
        end = store.read_tail(file.path, 4)
        [begin] = store.read_ranges(file.path, [(0, min(4, end.size))])
        return bytes(begin), end.data
    except StoreError:
        raise
    except OSError:
        return b"", b""
