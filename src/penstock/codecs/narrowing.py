"""Check that numbers keep their values in another dtype.

For code that promises a dtype (an element spec, a TransformSpec) and must not wrap what does not fit it. NumPy's own
`casting=` looks at dtypes only, not at values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


EXACT_FLOAT64 = 1 << 53
"""A float64 holds every integer up to here."""


def exact_in_float64(values: NDArray[Any]) -> bool:
    """Tell whether integers stay the same as float64: none lies beyond 2**53."""
    if not values.size or values.dtype.itemsize < 8:
        return True
    return bool(int(values.min()) >= -EXACT_FLOAT64 and int(values.max()) <= EXACT_FLOAT64)


def keeps_numbers(arrays: Sequence[Any]) -> bool:
    """Tell whether arrays or scalars of numbers keep their values in one array: floats would change large integers."""
    dtypes = {one.dtype for one in arrays}
    if len(dtypes) == 1 or np.result_type(*dtypes).kind not in "fc":
        return True
    return all(one.dtype.kind not in "iu" or exact_in_float64(one) for one in arrays)


def keeps(values: NDArray[Any], found: NDArray[Any]) -> bool:
    """Tell whether no number has become another one in `found`, the values in its dtype; floats may be rounded."""
    if not values.size or values.dtype.kind == "b":
        return True
    if found.dtype.kind in "iu":
        limits = np.iinfo(found.dtype)
        return bool(limits.min <= int(values.min()) and int(values.max()) <= limits.max)
    if found.dtype.kind in "fc" and values.dtype.kind != "O":
        return bool((np.isinf(found) <= np.isinf(values)).all())
    return True
