"""`python -m penstock.petastorm script.py [args]`: run a program that imports petastorm, unchanged, on Penstock.

Installs the alias and then does what `python script.py` or `python -m module` would: `__main__`, `sys.argv` and
`sys.path[0]` are the program's, processes that it spawns find both it and the alias. Changes nothing on disk.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, NoReturn

from penstock.alias import install_as_petastorm

_USAGE = """usage: python -m penstock.petastorm script.py [arguments]
       python -m penstock.petastorm -m module [arguments]

Runs a program in which every `import petastorm...` means penstock.petastorm, in the processes it starts too.
"""


def main() -> None:
    """Run the program that the command line names, as `__main__`; returns when it does."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_USAGE)
        raise SystemExit(0 if arguments else 2)
    install_as_petastorm(replace=True)  # the command is an explicit request
    code, module = _module(arguments[1:]) if arguments[0] == "-m" else _script(arguments)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _script(arguments: list[str]) -> tuple[CodeType, ModuleType]:
    """Return code and namespace of a script; `sys.path` and `sys.argv` are set as if it had been started directly."""
    path = os.path.abspath(arguments[0])
    if os.path.isdir(path):
        path = os.path.join(path, "__main__.py")
    if not os.path.isfile(path):
        _leave(f"cannot open {arguments[0]!r}: there is no such file")
    if not sys.flags.safe_path:  # then the first entry is the folder that `python -m` was started in
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    sys.argv = arguments
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    module: Any = ModuleType("__main__")
    module.__file__, module.__cached__, module.__package__ = path, None, None
    module.__loader__ = SourceFileLoader("__main__", path)
    return code, module


def _module(arguments: list[str]) -> tuple[CodeType, ModuleType]:
    """Return code and namespace of a module, a package's `__main__` included; `sys.argv` as `python -m` sets it."""
    if not arguments:
        _leave("-m needs the name of a module")
    spec = _find(arguments[0])
    code = spec.loader.get_code(spec.name) if spec.loader is not None and hasattr(spec.loader, "get_code") else None
    if code is None:
        _leave(f"{arguments[0]!r} cannot be run as a program: it has no code")
    sys.argv = [spec.origin or arguments[0], *arguments[1:]]
    module: Any = ModuleType("__main__")
    # Processes that are spawned import the program by the name in __spec__.
    module.__file__, module.__cached__, module.__package__ = spec.origin, spec.cached, spec.parent
    module.__loader__, module.__spec__ = spec.loader, spec
    return code, module


def _find(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        _leave(f"cannot find the module {name!r}: {error}")
    if spec is None:
        _leave(f"there is no module {name!r} to run")
    return spec


def _leave(message: str) -> NoReturn:
    sys.stderr.write(f"python -m penstock.petastorm: {message}\n")
    raise SystemExit(2)


if __name__ == "__main__":
    main()
