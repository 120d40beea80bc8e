"""A bundle's contents in words, for `specedge models show`, and sizes as commands print them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..console import aligned

if TYPE_CHECKING:
    from ..bundle.bundle import Bundle

_LONGEST = 100  # characters of a value


def format_size(n_bytes: int) -> str:
    """Bytes for people, in powers of 1000 as disks are sold: 999 B, 1.2 kB, 30.4 MB, 1.55 GB."""
    if n_bytes < 1000:
        return f"{n_bytes} B"
    for unit_bytes, unit in ((10**3, "kB"), (10**6, "MB")):
        if n_bytes < 999.95 * unit_bytes:
            return f"{n_bytes / unit_bytes:.1f} {unit}"
    return f"{n_bytes / 10**9:.2f} GB"


def describe_json(bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "path": str(bundle.path),
        "digest": bundle.digest,
        "size_bytes": bundle.size_bytes,
        "n_languages": len(manifest.tokens.languages),
        **manifest.to_json(),
    }


def describe(bundle: Bundle) -> str:
    """What `describe_json` has, a value a line; long ones are cut."""
    rows = []
    for key, value in describe_json(bundle).items():
        inside = value if isinstance(value, Mapping) else {"": value}
        for name, item in inside.items():
            text = item if isinstance(item, str) else json.dumps(item)
            text = "".join(c if c.isprintable() else "?" for c in text)
            text = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
            rows.append((f"{key} {name}".rstrip(), text))
    return "\n".join(aligned(rows, has_figures=False))
