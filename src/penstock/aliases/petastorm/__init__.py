"""Stands for `petastorm` in processes that inherited the alias but not its finder: installs it, then steps aside.

Runs at the first `import petastorm` of such a process; what the import gives is `penstock.petastorm` itself. Where
Penstock is on no path of the process (the parent had added it by hand), the folder that holds it is added.
"""

import importlib
import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("penstock") is None:
    sys.path.append(str(Path(__file__).resolve().parents[3]))

from penstock.alias import install_as_petastorm

install_as_petastorm()  # asks nothing: the path says that it was decided
sys.modules[__name__] = importlib.import_module("penstock.petastorm")
