"""README.md, and the commands in it that .ci/run runs as they stand there."""

from __future__ import annotations

import re

from support.tree import ROOT

README = ROOT / "README.md"


def command(name: str) -> str:
    """The code block that follows the marker `<!-- command: NAME -->`, without its fences."""
    found = re.search(
        rf"^<!-- command: {name} -->\n```\w*\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    if found is None:
        raise LookupError(f"README.md has no code block after <!-- command: {name} -->")
    return found[1]
