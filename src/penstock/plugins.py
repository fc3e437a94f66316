"""Find what installed packages add to Penstock: sources and codecs, by entry points.

Asked only for a scheme or a codec id that is not registered. A name is compared exactly with those that installed
packages declare; nothing that a dataset stores is ever imported by its path.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import PlanError


def find_installed(group: str, name: str) -> Any:
    """Return the object of the entry point with exactly this name; None if no installed package has one.

    Costs a look at the metadata of all installed packages, some milliseconds.

    Raises:
        PlanError: Several packages have an entry point of that name.
    """
    from importlib.metadata import entry_points

    found = {point.value: point for point in entry_points(group=group, name=name)}
    if len(found) > 1:
        raise PlanError(
            f"{len(found)} installed packages add {name!r} to {group} ({', '.join(sorted(found))}): uninstall all but "
            "one of them"
        )
    return next(iter(found.values())).load() if found else None
