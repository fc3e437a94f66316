"""Numbers in another dtype than their own: whether they are still the same.

For faces that promise a dtype (an element spec, a TransformSpec) and must not wrap what does not fit it. NumPy's own
`casting=` looks at dtypes only, not at values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
