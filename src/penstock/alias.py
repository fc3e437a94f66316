"""Make `import petastorm` mean `penstock.petastorm`, here and in every process started from here.

`install_as_petastorm` changes three things, and nothing in the tree it points to:

- a finder at the head of `sys.meta_path` answers every `petastorm` and `petastorm.x.y` with the very module object of
  `penstock.petastorm.x.y`: classes are identical under both names, and are pickled under ours, so that they load where
  no alias is installed;
- the folder `penstock/aliases` goes onto `sys.path`, which multiprocessing hands to the processes it spawns; a package
  `petastorm` in there installs the alias at the first `import petastorm`, so nothing has to run when a process starts;
- the same folder goes onto PYTHONPATH, for processes that are started as programs of their own.

Imports none of the tree until somebody asks for it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import CodeType, ModuleType

__all__ = ["install_as_petastorm"]

logger = logging.getLogger(__name__)

_HERE = os.path.dirname(os.path.abspath(__file__))
_FOLDER = os.path.join(_HERE, "aliases")
_ALIAS, _TREE = "petastorm", "penstock.petastorm"
# Names that documents of Petastorm print, but that it never had.
_MISPRINTS = {"petastorm.codec": "penstock.petastorm.codecs", "petastorm.tf_util": "penstock.petastorm.tf_utils"}


def install_as_petastorm(*, replace: bool = False) -> None:
    """Resolve every `import petastorm...` to `penstock.petastorm`, in this process and in those it starts.

    Costs microseconds and imports nothing; calling it again changes nothing. Call it before the first import of
    `petastorm`. Processes of multiprocessing (any start method), of Penstock's own pool and programs started from here
    inherit it; machines that are reached in another way (the executors of a cluster) call it themselves.

    Args:
        replace: Take the name over even where the real Petastorm (or another module of that name) is installed or
            imported already. Modules that imported it before keep what they have.

    Raises:
        ImportError: The real Petastorm is there and `replace` is False.
    """
    if _FOLDER not in sys.path:  # else it was decided before, here or in the process that started this one
        real = _real_petastorm()
        if real is not None and not replace:
            raise ImportError(
                f"a module called petastorm is here already ({real}); install_as_petastorm(replace=True) takes its "
                "name over for this process and those it starts, `pip uninstall petastorm` removes it, and without "
                "the alias both live side by side: import from penstock.petastorm"
            )
        if real is None:
            logger.info("petastorm now means %s", _TREE)
        else:
            logger.warning("petastorm now means %s, in place of %s", _TREE, real)
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        for name in [name for name in sys.modules if name == _ALIAS or name.startswith(f"{_ALIAS}.")]:
            if not _is_ours(getattr(sys.modules[name], "__file__", None) or ""):
                del sys.modules[name]
        sys.meta_path.insert(0, _AliasFinder(_ALIAS, _TREE, _MISPRINTS))
    if _FOLDER not in sys.path:
        sys.path.insert(1, _FOLDER)  # behind the script's own folder, before installed packages
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if _FOLDER not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([_FOLDER, *paths])


def _real_petastorm() -> str | None:
    """Return the file of a module `petastorm` that is not ours, imported or to be found; None where there is none."""
    imported = getattr(sys.modules.get(_ALIAS), "__file__", None)
    if imported is not None and not _is_ours(imported):
        return str(imported)
    for finder in sys.meta_path:
        spec = finder.find_spec(_ALIAS, None, None) if hasattr(finder, "find_spec") else None
        # A folder of that name without code (data, perhaps) has no origin.
        if spec is not None and spec.origin is not None and not _is_ours(spec.origin):
            return spec.origin
    return None


def _is_ours(file: str) -> bool:
    return os.path.abspath(file).startswith(_HERE + os.sep)


class _AliasFinder(MetaPathFinder):
    """Finds the modules of one tree under another name."""

    def __init__(self, alias: str, tree: str, misprints: Mapping[str, str]) -> None:
        self._alias, self._tree, self._misprints = alias, tree, misprints

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return a spec that leads to the module of the tree; None for other names and for what the tree lacks."""
        if fullname != self._alias and not fullname.startswith(f"{self._alias}."):
            return None
        name = self._misprints.get(fullname, self._tree + fullname[len(self._alias) :])
        real = importlib.util.find_spec(name)
        if real is None:
            return None
        spec = ModuleSpec(fullname, _AliasLoader(name, real), origin=real.origin)
        spec.submodule_search_locations = real.submodule_search_locations
        return spec


class _AliasLoader(Loader):
    """Hands out a module that has another name; never runs it a second time."""

    def __init__(self, name: str, real: ModuleSpec) -> None:
        self._name, self._real = name, real

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        """Import the module under its own name."""
        module = importlib.import_module(self._name)
        self._real = module.__spec__ or self._real
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back, which the import system has just replaced."""
        module.__spec__ = self._real

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002
        """Return the code of the module, for `python -m petastorm.x` and for spawned processes that run it as main."""
        return cast("CodeType | None", self._real.loader.get_code(self._name))  # type: ignore[union-attr]

    def is_package(self, fullname: str) -> bool:  # noqa: ARG002
        """Tell whether the module is a package."""
        return self._real.submodule_search_locations is not None
