"""What a file in a bundle may be called, so that the name means one file inside the folder on every system.

Relative, "/" between the parts, ASCII letters, digits and `_ . + -` in a part (so no two Unicode spellings of a name);
no part starts with a dot or ends with one, and none is a Windows device. Opens nothing.
"""

from __future__ import annotations

import re

MAX_NAME = 240
MAX_PARTS = 8
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.+-]*[A-Za-z0-9_+-])?")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


def name_problem(name: str) -> str | None:
    """Why `name` cannot be the name of a file in a bundle, or None if it can."""
    if not name:
        return "is empty"
    if len(name) > MAX_NAME:
        return f"is longer than {MAX_NAME} characters"
    if any(c < " " or c == "\x7f" for c in name):
        return "holds a control character"
    if "\\" in name:
        return "holds a backslash"
    if name.startswith("/") or (len(name) > 1 and name[1] == ":"):
        return "is absolute"
    parts = name.split("/")
    if ".." in parts:
        return "leads outside the bundle"
    if len(parts) > MAX_PARTS:
        return f"has more than {MAX_PARTS} parts"
    for part in parts:
        if part.startswith("."):
            return "has a part that starts with a dot"
        if not _PART.fullmatch(part):
            return "has a part that is not made of ASCII letters, digits and _ . + -"
        if _DEVICE.fullmatch(part):
            return "is a device under Windows"
    return None
