"""What docs/ says is true: the picture of floors, links, and files that are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.floors import PICTURE, picture
from support.layers import FLOORS
from support.tree import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(ROOT).as_posix() for page in DOCS.rglob("*.md"))
_OLD = ("docs/experiments",)  # logs name files as they were


def _text(page: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_picture_of_floors_is_drawn_from_the_rules() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(), "run `python tests/support/floors.py`"


def test_the_architecture_names_every_room() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert not [room for rooms in FLOORS for room in rooms if f"`{room}`" not in text]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _text(page)):
        if not re.match(r"\w+:", target):
            path, _, anchor = target.partition("#")
            file = (ROOT / page).parent / path if path else ROOT / page
            assert file.exists(), f"{page} links to {target}"
            assert not anchor or anchor in _anchors(file), f"{page} links to {target}"


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith(_OLD)])
def test_files_that_are_named_are_there(page: str) -> None:
    named = re.findall(r"`((?:runtime|maps|export|models|tests|docs)/[\w/.-]*[\w/])`", _text(page))
    assert not [name for name in named if not (ROOT / name).exists()]
