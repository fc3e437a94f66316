"""`import petastorm` means `penstock.petastorm`: the same objects, in every process, and only where asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

import penstock
from tests.house import PACKAGE

if TYPE_CHECKING:
    from pathlib import Path

INSTALL = "import penstock; penstock.install_as_petastorm(); "


def python(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with Penstock on its path and nothing inherited from an alias installed in this process."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=inherited | {"PYTHONPATH": str(PACKAGE.parent)} | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def output(*arguments: str, cwd: Path | None = None, **environment: str) -> str:
    done = python(*arguments, cwd=cwd, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run(code: str, cwd: Path | None = None, **environment: str) -> str:
    return output("-c", textwrap.dedent(code), cwd=cwd, **environment)


@pytest.fixture
def fake_petastorm(tmp_path: Path) -> str:
    """A folder with a package of the name, as an installed Petastorm would be."""
    package = tmp_path / "installed" / "petastorm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("REAL = True\n")
    (package / "unischema.py").write_text("REAL = True\n")
    return os.pathsep.join([str(PACKAGE.parent), str(package.parent)])


def test_both_names_give_the_same_module_and_the_same_classes() -> None:
    assert (
        run(f"""
        {INSTALL}
        import petastorm, petastorm.unischema as a, petastorm.etl.legacy
        import penstock.petastorm.unischema as b
        assert petastorm is penstock.petastorm and a is b and a.Unischema is penstock.Unischema
        assert petastorm.unischema is b and b.__name__ == b.__spec__.name == "penstock.petastorm.unischema"
        assert petastorm.__spec__.name == "penstock.petastorm"
        print(a.Unischema.__module__.split(".")[0], petastorm.etl.legacy.__name__)
    """)
        == "penstock penstock.petastorm.etl.legacy"
    )


def test_the_order_of_imports_does_not_matter() -> None:
    run(f"""
        import penstock.petastorm.codecs as before
        {INSTALL}
        from petastorm import codecs
        from petastorm.codecs import NdarrayCodec
        assert codecs is before and NdarrayCodec is penstock.codecs.NdarrayCodec
    """)


def test_names_that_only_documents_have_are_found() -> None:
    run(f"""
        {INSTALL}
        from petastorm.codec import ScalarCodec
        from petastorm.tf_util import make_petastorm_dataset
        import petastorm.codec, petastorm.codecs, petastorm.tf_util, petastorm.tf_utils
        assert petastorm.codec is petastorm.codecs and petastorm.tf_util is petastorm.tf_utils
    """)


def test_installing_imports_nothing_and_twice_is_once() -> None:
    run(f"""
        {INSTALL * 3}
        import os, sys
        assert not [name for name in sys.modules if name.startswith(("petastorm", "penstock.petastorm"))]
        assert sum(type(f).__name__ == "_AliasFinder" for f in sys.meta_path) == 1
        assert sum(p.endswith("aliases") for p in sys.path) == 1
        assert sum(p.endswith("aliases") for p in os.environ["PYTHONPATH"].split(os.pathsep)) == 1
    """)


def test_a_module_that_the_tree_lacks_is_missing_under_its_own_name() -> None:
    done = python("-c", INSTALL + "import petastorm.nothing_here")
    assert "ModuleNotFoundError: No module named 'petastorm.nothing_here'" in done.stderr
    assert run(f"{INSTALL}import importlib.util; print(importlib.util.find_spec('petastorm.nothing_here'))") == "None"


def test_what_is_pickled_under_the_alias_loads_without_it(tmp_path: Path) -> None:
    run(
        f"""
        {INSTALL}
        import pickle, numpy as np
        from petastorm.codec import NdarrayCodec
        from petastorm.unischema import Unischema, UnischemaField
        from petastorm.errors import NoDataAvailableError
        made = Unischema("s", [UnischemaField("x", np.uint8, (2,), NdarrayCodec(), False)])
        pickle.dump((made, NdarrayCodec, NoDataAvailableError("why")), open("made.pickle", "wb"))
    """,
        cwd=tmp_path,
    )
    assert (
        run(
            """
        import pickle, sys
        schema, codec, error = pickle.load(open("made.pickle", "rb"))
        assert not [name for name in sys.modules if name.split(".")[0] == "petastorm"]
        print(schema.x.codec, codec.__name__, error)
    """,
            cwd=tmp_path,
        )
        == "NdarrayCodec() NdarrayCodec why"
    )


# -- other processes ------------------------------------------------------------------------------------------------

USER_MODULE = """
    from petastorm.unischema import Unischema
    import petastorm.codec

    def task(number):
        import penstock, penstock.petastorm.unischema
        assert Unischema is penstock.Unischema is petastorm.unischema.Unischema
        assert petastorm is penstock.petastorm
        return number + 1

    def add_one(batch):
        return {"x": batch["x"] + task(0)}
"""
METHODS = ["spawn", "forkserver"] if os.name == "posix" else ["spawn"]


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A folder with the user's module, which imports petastorm at its top."""
    (tmp_path / "user_module.py").write_text(textwrap.dedent(USER_MODULE))
    return tmp_path


@pytest.mark.parametrize("method", METHODS)
def test_processes_of_multiprocessing_have_it(user: Path, method: str) -> None:
    # The guard keeps the installation out of the children: they have it from the path alone.
    (user / "script.py").write_text(
        textwrap.dedent(f"""
        import multiprocessing
        if __name__ == "__main__":
            import penstock; penstock.install_as_petastorm()
            import user_module
            import os; del os.environ["PYTHONPATH"]  # the path that multiprocessing hands over is enough
            with multiprocessing.get_context({method!r}).Pool(1) as pool:
                print(pool.map(user_module.task, [1, 2]))
    """)
    )
    assert output("script.py", cwd=user) == "[2, 3]"


def test_a_program_started_from_here_has_it(user: Path) -> None:
    assert (
        run(
            f"""
        {INSTALL}
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "import user_module; print(user_module.task(3))"], check=True)
    """,
            cwd=user,
        )
        == "4"
    )


def test_a_program_has_it_even_where_penstock_is_on_no_path_of_its_own(user: Path) -> None:
    assert (
        run(
            f"""
        {INSTALL}
        import os, subprocess, sys
        os.environ["PYTHONPATH"] = next(p for p in sys.path if p.endswith("aliases"))
        subprocess.run([sys.executable, "-c", "import petastorm.errors; print(petastorm.__name__)"], check=True)
    """,
            cwd=user,
        )
        == "penstock.petastorm"
    )


def test_the_process_pool_of_a_loader_has_it(user: Path) -> None:
    (user / "script.py").write_text(
        textwrap.dedent("""
        import penstock, numpy as np
        if __name__ == "__main__":
            penstock.install_as_petastorm()
            import user_module
            penstock.write({"x": np.arange(5)}, "data")
            ds = penstock.open("data")
            with ds.loader(batch_size=5, pool="process", workers=1, transform=user_module.add_one) as loader:
                print([batch["x"].tolist() for batch in loader])
    """)
    )
    assert output("script.py", cwd=user) == "[[1, 2, 3, 4, 5]]"


def test_threads_that_import_at_once_all_get_the_real_module() -> None:
    run(f"""
        {INSTALL}
        import importlib, sys, threading
        names = ["petastorm.unischema", "petastorm.codec", "petastorm.fs_utils", "penstock.petastorm.unischema"]
        found, barrier = [], threading.Barrier(16)
        def look(name):
            barrier.wait(); found.append((name, importlib.import_module(name)))
        threads = [threading.Thread(target=look, args=(names[n % 4],)) for n in range(16)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert len(found) == 16
        assert all(module is sys.modules[module.__name__] and module.__spec__.name == module.__name__
                   for _, module in found)
    """)


# -- the real Petastorm ---------------------------------------------------------------------------------------------


def test_an_installed_petastorm_is_not_replaced_unasked(fake_petastorm: str) -> None:
    done = python("-c", INSTALL, PYTHONPATH=fake_petastorm)
    assert "ImportError: a module called petastorm is here already" in done.stderr
    assert "replace=True" in done.stderr
    assert os.path.join("installed", "petastorm", "__init__.py") in done.stderr


def test_a_refused_alias_changes_nothing(fake_petastorm: str) -> None:
    run(
        """
        import os, sys, penstock
        before = list(sys.path), list(sys.meta_path), dict(os.environ)
        try: penstock.install_as_petastorm()
        except ImportError: pass
        assert before == (sys.path, sys.meta_path, dict(os.environ))
        import petastorm
        assert petastorm.REAL
    """,
        PYTHONPATH=fake_petastorm,
    )


@pytest.mark.parametrize("first", ["", "import petastorm.unischema as old"])
def test_replace_takes_over_and_says_so(fake_petastorm: str, user: Path, first: str) -> None:
    code = f"""
        {first}
        import penstock; penstock.install_as_petastorm(replace=True); penstock.install_as_petastorm()
        import petastorm.unischema, subprocess, sys
        assert petastorm.unischema.Unischema is penstock.Unischema
        subprocess.run([sys.executable, "-c", "import user_module; user_module.task(0)"], check=True)
    """
    done = python("-c", textwrap.dedent(code), cwd=user, PYTHONPATH=fake_petastorm)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("petastorm now means penstock.petastorm, in place of") == 1
    assert "installed" in done.stderr


def test_a_folder_of_that_name_without_code_is_no_petastorm(tmp_path: Path) -> None:
    (tmp_path / "petastorm").mkdir()
    assert run(f"{INSTALL}import petastorm.unischema; print(petastorm.__name__)", cwd=tmp_path) == "penstock.petastorm"


def test_without_the_call_the_name_stays_free() -> None:
    assert run("import penstock.petastorm, importlib.util; print(importlib.util.find_spec('petastorm'))") == "None"


def test_the_function_is_public() -> None:
    assert "install_as_petastorm" in penstock.__all__
