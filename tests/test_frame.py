"""The scripts and the wheel: what people run first works from any folder and brings everything it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.house import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SCRIPTS = ["scripts/test", "scripts/demo", "scripts/soak", ".ci/run"]
EXTRAS = {"torch", "tensorflow", "jax", "spark", "pandas", "s3", "gcs", "azure", "hdfs", "ray", "all", "dev"}
ALIASES = {"opencv", "tf", "tf_gpu"}

needs_sh = pytest.mark.skipif(os.name == "nt", reason="the scripts are for POSIX shells")


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@needs_sh
@pytest.mark.parametrize("script", [*SCRIPTS, "scripts/_setup.sh"])
def test_scripts_parse(script: str) -> None:
    subprocess.run(["sh", "-n", str(ROOT / script)], check=True)


@needs_sh
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_can_be_started(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    assert (ROOT / script).read_text(encoding="utf-8").startswith("#!/bin/sh\n")


def in_setup(command: str, *, path: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run shell code as if it stood in a script of this repository."""
    script = folder / "scripts" / "probe"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f'. "{ROOT}/scripts/_setup.sh"\n{command}\n', encoding="utf-8")
    environment = {"PATH": path, "HOME": str(folder), **environment}
    shell = "/bin/sh"
    return subprocess.run([shell, str(script)], env=environment, capture_output=True, text=True, check=False, cwd="/")


def fake_python(folder: Path, name: str, version: tuple[int, int], modules: str = "") -> None:
    """A command that is a Python of another version, as far as the set-up asks; `modules` are missing in it."""
    code = f"import sys; sys.version_info = (*{version}, 0, 'final', 0)"
    missing = "; ".join(f"sys.modules[{m!r}] = None" for m in modules.split())
    file = folder / name
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}; {missing}\nexec(sys.argv[2])" "$@"\n')
    file.chmod(0o755)


@needs_sh
def test_the_newest_python_found_is_taken(tmp_path: Path) -> None:
    for name, version in {"python3": (3, 9), "python3.12": (3, 12), "python3.11": (3, 11)}.items():
        fake_python(tmp_path, name, version)
    path = f"{tmp_path}:/usr/bin:/bin"
    assert in_setup("find_python 12", path=path, folder=tmp_path).stdout == "python3.12\n"
    chosen = in_setup("find_python 12", path=path, folder=tmp_path, PYTHON=str(tmp_path / "python3.11"))
    assert chosen.stdout == f"{tmp_path}/python3.11\n"


@needs_sh
def test_an_old_python_is_not_taken(tmp_path: Path) -> None:
    for name in ("python3.14", "python3.13", "python3.12", "python3.11", "python3", "python"):
        fake_python(tmp_path, name, (3, 10))
    done = in_setup("install_into x dev constraints-dev.txt 14", path=f"{tmp_path}:/usr/bin:/bin", folder=tmp_path)
    assert done.returncode == 1
    assert "no Python from 3.11 to 3.14 found; set PYTHON" in done.stderr


@needs_sh
def test_a_missing_venv_module_names_the_package_to_install(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3.12", (3, 12), "venv ensurepip")
    done = in_setup(f"make_venv python3.12 '{tmp_path}/v'", path=f"{tmp_path}:/usr/bin:/bin", folder=tmp_path)
    assert done.returncode == 1
    assert "apt install python3.12-venv" in done.stderr


@needs_sh
def test_the_root_is_found_in_a_folder_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    done = in_setup('echo "$ROOT"', path="/usr/bin:/bin", folder=folder, CDPATH="/tmp")
    assert done.stdout == f"{folder}\n"


@pytest.mark.slow
def test_the_demo_loses_and_repeats_no_row(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--output", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "rows lost: 0, rows repeated: 0" in done.stdout
    assert "share of the limit" in done.stdout
    assert (tmp_path / "out" / "contact_sheet.png").read_bytes().startswith(b"\x89PNG")


def test_extras_are_named_after_what_they_bring() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    assert set(extras) >= EXTRAS | ALIASES


def test_constraints_are_exact() -> None:
    for name in ("constraints-dev.txt", "constraints-oldest.txt"):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        for line in (line for line in lines if line and not line.startswith("#")):
            assert "==" in line, f"{name}: {line}"


def test_the_oldest_versions_are_the_lower_ends_of_the_ranges() -> None:
    pinned = dict(
        line.split("==")
        for line in (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    )
    dependencies = project()["dependencies"]
    assert isinstance(dependencies, list)
    for requirement in dependencies:
        name, least = requirement.split(">=")
        assert pinned[name].split(".")[: len(least.split("."))] == least.split("."), requirement


@pytest.mark.timeout(120)
def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entry = next(name for name in names if name.endswith("entry_points.txt"))
        assert "penstock = penstock.cli:main" in archive.read(entry).decode()
    assert "penstock/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"penstock"}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
