"""A token map of commands with the names of a house: each sentence with each name. It changes no text.

The files lie in the server's private folder and go with it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path

from specedge.maps.build import build
from specedge.maps.tmap_format import text_fingerprint
from specedge.runtime.bundle.bundle import Bundle

SENTENCES = (
    " Turn on {name}.",
    " Turn off {name}.",
    " Turn on the {name}.",
    " Turn off the {name}.",
    " Turn the {name} on.",
    " Turn the {name} off.",
    " Open the {name}.",
    " Close the {name}.",
    " Lock the {name}.",
    " Unlock the {name}.",
    " Set the {name} to",
    " Is the {name} on?",
    " What is the {name}?",
    " Turn on the lights in the {name}.",
    " Turn off the lights in the {name}.",
    " What is the temperature in the {name}?",
)
_MOST_NAMES, _MOST_CHARS, _MOST_KEPT = 2000, 100, 8


class NameMaps:
    """Maps by names and model, the last few."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Path] = {}
        self._lock = threading.Lock()

    def map_of(self, names: Sequence[str], bundle: Bundle) -> Path | None:
        """The map of these names for this model, made now where it is new; None without names. Raises ResourceError."""
        names = sorted({name.strip()[:_MOST_CHARS] for name in names[:_MOST_NAMES] if name.strip()})
        if not names:
            return None
        key = hashlib.sha256("\0".join([bundle.digest, *names]).encode()).hexdigest()[:32]
        with self._lock:
            path = self._made.pop(key, None) or self._built(key, names, bundle)
            self._made[key] = path
            while len(self._made) > _MOST_KEPT:
                self._made.pop(next(iter(self._made))).unlink(missing_ok=True)
        return path

    def _built(self, key: str, names: Sequence[str], bundle: Bundle) -> Path:
        tokenizer, path = bundle.tokenizer, self._folder / f"{key}.tmap"
        sentences = (tokenizer.encode(one.replace("{name}", name)) for one in SENTENCES for name in names)
        eot = tokenizer.special.eot
        build(sentences, path, n_text=eot, fingerprint=text_fingerprint(tokenizer.ranks, eot))
        return path
