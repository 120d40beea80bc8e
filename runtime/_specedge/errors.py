"""Every error specedge raises on purpose, with the exit code the command gives it.

    SpecedgeError               1  an internal fault, or some of the inputs failed
    ├── UsageError              2  an option, argument or combination that cannot be
    ├── AudioError              3  audio that is missing, unreadable or out of bounds
    ├── ModelError              4  a model that cannot be used
    │   ├── CheckpointError     4  the source of an export: a folder, a file, a hub id
    │   ├── BundleError         4  a bundle on disk: manifest, hashes, graphs
    │   ├── ExactnessError      4  a decoder whose rows depend on each other
    │   └── MapError            4  a token map
    ├── ResourceError           5  memory or disk ran out, or a file cannot be written
    └── Interrupted           130  Ctrl-C or a request to stop
        └── Terminated        143  the signal SIGTERM

A message is one line: what, where, what was expected, what to do. `click` usage errors share code 2.
This is the one module that every layer may import; it imports nothing.
"""

from __future__ import annotations

__all__ = [
    "AudioError",
    "BundleError",
    "CheckpointError",
    "ExactnessError",
    "Interrupted",
    "MapError",
    "ModelError",
    "ResourceError",
    "SpecedgeError",
    "Terminated",
    "UsageError",
]


class SpecedgeError(Exception):
    """Base of all errors; `str(error)` is the one line shown to the user."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class UsageError(SpecedgeError):
    """An option, an argument or a combination of them that cannot be."""

    exit_code = 2


class AudioError(SpecedgeError):
    """Audio that is missing, unreadable or out of bounds."""

    exit_code = 3


class ModelError(SpecedgeError):
    """A model that cannot be used."""

    exit_code = 4


class CheckpointError(ModelError):
    """The source of an export is no usable Whisper checkpoint."""


class BundleError(ModelError):
    """A bundle on disk cannot be trusted or read."""


class ExactnessError(ModelError):
    """A decoder's rows depend on each other, so speculation could change the text."""


class MapError(ModelError):
    """A token map cannot be trusted or read."""


class ResourceError(SpecedgeError):
    """Memory or disk ran out, or an output cannot be written."""

    exit_code = 5


class Interrupted(SpecedgeError):
    """The user or the embedding program asked to stop."""

    exit_code = 130


class Terminated(Interrupted):
    """The system or another program asked to end: SIGTERM."""

    exit_code = 143
