"""Every code block of README and docs runs as it stands, in a folder of its own; links between pages lead somewhere.

A page is one program: its `python` blocks run in order and share their names. A block that cannot run here says so in
its first line: ```` ```python no-run ````. Other languages are not run, but every block names its language.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.house import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```\s*$", re.M | re.S)
LANGUAGES = {"python", "sh", "text", "console", "json", "toml", "html"}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    runs: bool
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        words = match[2].split()
        runs = words[:1] == ["python"] and "no-run" not in words
        lines = [line.removeprefix(match[1]) for line in match[3].splitlines()]
        found.append(Block(words[0] if words else "", runs, "\n".join(lines), text.count("\n", 0, match.start()) + 1))
    return found


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.runs:
            # Empty lines in front make a traceback point at the line of the page.
            exec(compile("\n" * block.line + block.code, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_code_blocks_name_their_language(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{page_name(page)}:{block.line}: {block.language!r}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page_name(page)} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page_name(page)} links to {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, f"docs/index.md does not mention {page.name}"


def test_the_first_example_is_short() -> None:
    """README promises write, shuffle and resume in 15 lines."""
    first = next(block for block in blocks(ROOT / "README.md") if block.runs)
    assert len([line for line in first.code.splitlines() if line.strip()]) <= 15


def test_every_option_of_the_loader_is_documented() -> None:
    import inspect

    import penstock

    page = (ROOT / "docs" / "loader.md").read_text(encoding="utf-8")
    for option in inspect.signature(penstock.Dataset.loader).parameters:
        assert option == "self" or f"`{option}`" in page, option
