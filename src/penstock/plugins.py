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
        ImportError: What the entry point names cannot be imported.
    """
    from importlib.metadata import entry_points

    found = {point.value: point for point in entry_points(group=group, name=name)}
    if len(found) > 1:
        raise PlanError(
            f"{len(found)} installed packages add {name!r} to {group} ({', '.join(sorted(found))}): uninstall all but "
            "one of them"
        )
    for value, point in found.items():
        try:
            return point.load()
        except Exception as exc:  # importing a module may raise anything
            package = "an installed package" if point.dist is None else point.dist.name
            raise ImportError(
                f"the entry point {name!r} of {group} is {value!r} of {package}, which cannot be imported: "
                f"{type(exc).__name__}: {exc}; update or uninstall the package"
            ) from exc
    return None
