"""A target of each kind, for what must hold on both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fsspec
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["folder", "store"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a dataset may be written: a folder, which is renamed, or a store, which cannot."""
    if request.param == "folder":
        yield str(tmp_path / "d")
        return
    name = f"write-{abs(hash(str(tmp_path)))}"
    yield f"memory://{name}/d"
    memory = fsspec.filesystem("memory")
    if memory.exists(f"/{name}"):
        memory.rm(f"/{name}", recursive=True)
