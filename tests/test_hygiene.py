"""Nothing in the tree that only holds on the machine where it was written, and nothing left for later."""

from __future__ import annotations

import re

import pytest

from support.tree import ROOT, project_files

# Put together from pieces, so that this file does not find itself.
_FOLDERS = "|".join(("work", "root", "opt", "farm", "mnt"))
FORBIDDEN = {
    "a folder of one machine": re.compile(rf"(?<![\w.~}}/-])/(?:{_FOLDERS})/|(?<![\w.])/home/\w+/|/tmp/\w+/"),
    "a host that packages are fetched from": re.compile("pypi" + r"\.org|python" + "hosted"),
    "a package index that does not hold us": re.compile("pip install" + r" ['\"]?specedge"),
    "a reminder": re.compile(r"\b(?:TO" + "DO|FIX" + "ME|XX" + r"X|HA" + r"CK)\b"),
}
LARGEST_BYTES = 2_000_000
WEIGHT_BUDGETS = {
    "tests/assets/": 14_000_000,
    "distributions/drafts/": 8_000_000,
}  # of a clone; wheels: test_packaging


def _texts() -> list[tuple[str, str]]:
    contents = [(p.relative_to(ROOT).as_posix(), p.read_bytes()) for p in project_files()]
    return [(name, data.decode(errors="replace")) for name, data in contents if b"\0" not in data[:8192]]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_has(what: str) -> None:
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in _texts()
        for number, line in enumerate(text.splitlines(), 1)
        if FORBIDDEN[what].search(line)
    ]
    assert not found, f"{what}:\n" + "\n".join(found)


def test_weights_stay_within_their_folders_and_budgets() -> None:
    """Large files are weights, and those have a budget: they go into every clone."""
    sizes = {p.relative_to(ROOT).as_posix(): p.stat().st_size for p in project_files()}
    for folder, budget_bytes in WEIGHT_BUDGETS.items():
        assert sum(size for name, size in sizes.items() if name.startswith(folder)) <= budget_bytes, folder
    elsewhere = {name: size for name, size in sizes.items() if not name.startswith(tuple(WEIGHT_BUDGETS))}
    assert not {name: size for name, size in elsewhere.items() if size > LARGEST_BYTES}


def test_text_files_end_with_a_newline_and_have_no_tabs_or_trailing_blanks() -> None:
    for name, text in _texts():
        if name.endswith((".py", ".md", ".toml", ".txt", "/run")) and text:
            assert text.endswith("\n") and not text.endswith("\n\n"), name
            assert not re.search(r"[ \t]+$", text, re.MULTILINE), f"{name}: blanks at the end of a line"
