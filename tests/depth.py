"""One switch for depth: tests repeat briefly by default and in full counts under `scripts/soak`.

Used by every test that repeats a case (kills, exits, fuzzing, soaks); holds no tests itself.
"""

import os


def depth(brief: int, full: int) -> int:
    """Return `brief`, or `full` when PENSTOCK_SOAK is set."""
    return full if os.environ.get("PENSTOCK_SOAK") else brief
