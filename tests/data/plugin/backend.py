"""A build backend that needs nothing installed: the wheel is the package, its metadata and its entry points."""

import pathlib
import tomllib
import zipfile


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    here = pathlib.Path(__file__).parent
    project = tomllib.loads((here / "pyproject.toml").read_text())["project"]
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    files = {path.relative_to(here / "src").as_posix(): path.read_text() for path in (here / "src").rglob("*.py")}
    info = f"{stem}.dist-info"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: backend\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = "\n".join(groups)
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    name = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name
