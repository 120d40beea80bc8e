"""What docs/ says is true: pictures, generated pages, exit codes, links, and the files and names that pages mention."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import specedge
from specedge import errors
from support import floors, reference
from support.layers import FLOORS
from support.tree import ROOT

DOCS = ROOT / "docs"
_OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/assets/README.md", "tests/bench/README.md")
PAGES = sorted([*(page.relative_to(ROOT).as_posix() for page in DOCS.rglob("*.md")), *_OUTSIDE])
# A log and a changelog name files as they were, and the benchmarks those of other projects.
_OTHERS = ("docs/experiments/2", "CHANGELOG.md", "tests/bench/README.md")


def _text(page: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_picture_of_floors_is_drawn_from_the_rules() -> None:
    assert floors.PICTURE.read_text(encoding="utf-8") == floors.picture(), "run `python tests/support/floors.py`"


@pytest.mark.parametrize("page", [reference.CLI, reference.PYTHON], ids=lambda page: page.name)
def test_generated_parts_are_true(page: Path) -> None:
    assert page.read_text(encoding="utf-8").split() == reference.render(page).split(), (
        "run `python tests/support/reference.py`"
    )


def test_the_python_page_has_every_public_name_and_every_argument() -> None:
    text = reference.PYTHON.read_text(encoding="utf-8")
    assert not [name for name in specedge.__all__ if name not in text and name != "__version__"]
    arguments = list(inspect.signature(specedge.WhisperModel.transcribe).parameters)[1:]
    assert not [name for name in arguments if f"| `{name}` |" not in text]


@pytest.mark.parametrize("code", {one.exit_code for one in vars(errors).values() if isinstance(one, type)})
def test_exit_codes_are_the_ones_of_the_errors(code: int) -> None:
    assert re.search(rf"^\| {code} \|", reference.CLI.read_text(encoding="utf-8"), re.MULTILINE), code


def test_figures_of_the_readme_are_those_of_the_results() -> None:
    """Of its tables: whatever looks like a ratio or a share stands in docs/results.md too."""
    figure = re.compile(r"(?<![\d.:/])\d+\.\d+(?![\d.])")
    known = set(figure.findall((DOCS / "results.md").read_text(encoding="utf-8")))
    rows = [line for line in _text("README.md").splitlines() if line.startswith("|")]
    assert not sorted(set(figure.findall("\n".join(rows))) - known), "not in docs/results.md"


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_no_figure_of_a_model_that_nobody_has(page: str) -> None:
    """The demo is for the tests; grown copies stand for small's and large-v2's shapes alone, and say so."""
    text = (ROOT / page).read_text(encoding="utf-8").lower()
    assert not re.search(r"\bdemo\b|maintenance|net2net", text)
    assert not re.search(r"grown (tiny|base)", text)


def test_the_index_of_experiments_has_every_entry() -> None:
    index = (DOCS / "experiments" / "README.md").read_text(encoding="utf-8")
    for log in (DOCS / "experiments").glob("2*.md"):
        entries = re.findall(r"^## (.+)$", log.read_text(encoding="utf-8"), re.MULTILINE)
        assert log.name in index
        assert not [entry for entry in entries if f"| {entry} |" not in index]


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert named == {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")}


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
            in_site = not page.startswith("docs/") or file.resolve().is_relative_to(DOCS)
            assert in_site, f"{page} links to {target}, which the site does not have"
            assert not anchor or anchor in _anchors(file), f"{page} links to {target}"


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith(_OTHERS)])
def test_files_that_are_named_are_there(page: str) -> None:
    named = re.findall(r"`((?:runtime|maps|export|models|tests|docs)/[\w/.-]*[\w/])`", _text(page))
    assert not [name for name in named if not (ROOT / name).exists()]
