"""`python -m penstock.petastorm script.py`: the program runs as it would by itself, and imports petastorm."""

from __future__ import annotations

import json
import os
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.house import PACKAGE
from tests.test_alias import METHODS, fake_petastorm, output, python

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["fake_petastorm"]  # a fixture

RUN = ("-m", "penstock.petastorm")
REPORT = """
    import json, os, sys
    import petastorm.unischema, penstock
    import beside
    assert petastorm.unischema.Unischema is penstock.Unischema
    def here(): pass
    print(json.dumps([__name__, sys.argv, sys.path[0], __file__, __spec__ and __spec__.name, __package__,
                      sys.modules["__main__"].here is here, __builtins__ is not None, __doc__]))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a script, a module beside it, and a package that can be run."""
    for folder in (tmp_path / "code", tmp_path / "code" / "package"):
        folder.mkdir()
        (folder / "beside.py").write_text("")
    text = '"""What it is."""\n' + textwrap.dedent(REPORT)
    for name in ("script.py", "package/__main__.py", "package/part.py", "package/__init__.py"):
        (tmp_path / "code" / name).write_text(text if "init" not in name else "")
    return tmp_path


def test_a_script_runs_as_python_itself_runs_it(project: Path) -> None:
    arguments = ("code/script.py", "-x", "--flag", "value")
    found = output(*RUN, *arguments, cwd=project)
    code = str(project / "code")
    path = os.path.join(code, "script.py")
    assert json.loads(found)[:4] == ["__main__", list(arguments), code, path]
    # With the folder of aliases on its path, Python runs the same script without us.
    assert found == output(
        *arguments, cwd=project, PYTHONPATH=os.pathsep.join([str(PACKAGE / "aliases"), str(PACKAGE.parent)])
    )


@pytest.mark.parametrize(("name", "file", "spec"), [
    ("package", "__main__.py", "package.__main__"), ("package.part", "part.py", "package.part"),
])  # fmt: skip
def test_a_module_is_main_as_python_m_would_run_it(project: Path, name: str, file: str, spec: str) -> None:
    found = output(*RUN, "-m", name, "one", "-m", cwd=project / "code")
    path = str(project / "code" / "package" / file)
    expected = [
        "__main__",
        [path, "one", "-m"],
        str(project / "code"),
        path,
        spec,
        "package",
        True,
        True,
        "What it is.",
    ]
    assert json.loads(found) == expected


def test_modules_of_the_tree_itself_can_be_run_under_either_name(project: Path) -> None:
    for name in ("petastorm.etl.metadata_util", "penstock.petastorm.etl.metadata_util"):
        assert "--dataset-url" in output(*RUN, "-m", name, "--help", cwd=project)


@pytest.mark.parametrize("method", METHODS)
def test_processes_that_a_script_starts_find_it_and_the_alias(project: Path, method: str) -> None:
    (project / "code" / "parallel.py").write_text(
        textwrap.dedent(f"""
        import multiprocessing
        from petastorm.unischema import Unischema
        def task(number):
            import penstock
            return number + (Unischema is penstock.Unischema)
        if __name__ == "__main__":
            with multiprocessing.get_context({method!r}).Pool(1) as pool:
                print(pool.map(task, [1, 2]))
    """)
    )
    assert output(*RUN, "code/parallel.py", cwd=project) == "[2, 3]"
    assert output(*RUN, "-m", "parallel", cwd=project / "code") == "[2, 3]"


def test_how_the_program_ends_is_how_the_command_ends(project: Path) -> None:
    (project / "end.py").write_text("import sys; sys.exit(7)")
    assert python(*RUN, "end.py", cwd=project).returncode == 7
    (project / "end.py").write_text("import atexit; atexit.register(lambda: print(value)); value = 3")
    assert output(*RUN, "end.py", cwd=project) == "3"
    (project / "end.py").write_text("def f():\n    raise KeyError('mine')\nf()")
    done = python(*RUN, "end.py", cwd=project)
    assert done.returncode == 1
    assert f'File "{project / "end.py"}", line 2, in f\n    raise KeyError' in done.stderr


def test_a_script_is_compiled_by_its_own_rules(project: Path) -> None:
    # No __future__ of ours leaks in, and the encoding is what the script says.
    (project / "own.py").write_bytes(
        b"# -*- coding: latin-1 -*-\ndef f(x: 1 + 1): pass\nprint(f.__annotations__, '\xe4')"
    )
    assert output(*RUN, "own.py", cwd=project, PYTHONIOENCODING="utf-8") == "{'x': 2} ä"


def test_an_installed_petastorm_is_taken_over_and_said(project: Path, fake_petastorm: str) -> None:
    done = python(*RUN, "code/script.py", cwd=project, PYTHONPATH=fake_petastorm)
    assert done.returncode == 0, done.stderr
    assert "in place of" in done.stderr


@pytest.mark.parametrize(("arguments", "message"), [
    (("nothing.py",), "cannot open 'nothing.py'"),
    (("-m",), "-m needs the name of a module"),
    (("-m", "no_such_module"), "there is no module 'no_such_module'"),
    (("-m", "no.such"), "cannot find the module 'no.such'"),
])  # fmt: skip
def test_what_cannot_be_run_is_named(project: Path, arguments: tuple[str, ...], message: str) -> None:
    done = python(*RUN, *arguments, cwd=project)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_without_arguments_it_says_how_to_use_it() -> None:
    assert python(*RUN).returncode == 2
    assert "script.py" in output(*RUN, "--help")


PROGRAM = """
    import numpy as np
    from petastorm import TransformSpec, make_batch_reader, make_reader
    from petastorm.codec import NdarrayCodec
    from petastorm.predicates import in_lambda
    from petastorm.unischema import Unischema, UnischemaField

    Schema = Unischema("Schema", [
        UnischemaField("id", np.int32, (), None, False), UnischemaField("a", np.uint8, (2,), NdarrayCodec(), False),
    ])

    def double(row):
        import petastorm.unischema
        assert petastorm.unischema.Unischema is Unischema
        return {"id": row["id"] * 2, "a": row["a"]}

    if __name__ == "__main__":
        import sys, penstock
        penstock.write(({"id": i, "a": np.array([i, i], np.uint8)} for i in range(20)), "data", Schema)
        url = "file://" + sys.argv[1] + "/data"
        keep = in_lambda(["id"], lambda id: id < 3)
        with make_reader(url, predicate=keep, reader_pool_type="process", workers_count=1,
                         transform_spec=TransformSpec(double)) as reader:
            print(sorted((int(row.id), row.a.tolist()) for row in reader))
        with make_batch_reader(url, schema_fields=["id"]) as reader:
            print(sum(len(batch.id) for batch in reader))
"""


def test_a_program_written_for_petastorm_runs_unchanged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    found = output(*RUN, "-m", "train", str(tmp_path), cwd=tmp_path, PYTHONWARNINGS="ignore")
    assert found.splitlines() == ["[(0, [0, 0]), (2, [1, 1]), (4, [2, 2])]", "20"]
