"""End the iterators of tf.data over our batches when the interpreter exits.

An iterator of TensorFlow that outlives Python's threads calls into Python once more, to say that it is done, and waits
forever for the interpreter's lock. So they are ended before, while the lock can still be had.
"""

from __future__ import annotations

import atexit
import gc
import threading
from functools import lru_cache
from typing import Any


def exiting() -> bool:
    """Tell whether the interpreter is on its way out, while threads of TensorFlow still ask for batches."""
    return not threading.main_thread().is_alive()


@lru_cache(maxsize=1)
def watch() -> None:
    """See to it that iterators are ended at exit; called when the first one begins."""
    atexit.register(_end_iterators)


def _end_iterators() -> None:
    """Drop the C++ side of every iterator that is left; takes a tenth of a second, for looking at all objects."""
    for found in gc.get_objects():
        if type(found).__name__ == "OwnedIterator" and _is_ours(getattr(found, "_dataset", None)):
            found._components = found._iterator_resource = None


def _is_ours(dataset: Any) -> bool:
    """Tell whether a dataset is, or is made from, one of this package."""
    if dataset is None:
        return False
    return getattr(dataset, "penstock", None) is not None or any(map(_is_ours, dataset._inputs()))
