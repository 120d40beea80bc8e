"""Every error that specedge raises on purpose; docs/python.md has a table of them.

A message is one line: what, where, what was expected, what to do. `click` usage errors share code 2. Interrupted is no
KeyboardInterrupt: an embedding program may ask for it too, and `except Exception` catches it.
Every module may import this one; it imports nothing.
"""

from __future__ import annotations


class SpecedgeError(Exception):
    """Base of all errors; `str(error)` is the one line shown to the user."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class UsageError(SpecedgeError, ValueError):
    """An option, an argument or a combination of them that cannot be."""

    exit_code = 2


class AudioError(SpecedgeError):
    """Audio that is missing, unreadable or out of bounds."""

    exit_code = 3


class AudioNotFoundError(AudioError, FileNotFoundError):
    """No such audio file."""


class ModelError(SpecedgeError):
    """A model that cannot be used."""

    exit_code = 4


class ModelNotFoundError(ModelError, FileNotFoundError):
    """A model, or a part of one, that is not installed or not there."""


class CheckpointError(ModelError):
    """The source of an export is no usable Whisper checkpoint."""


class CheckpointNotFoundError(CheckpointError, ModelNotFoundError):
    """A file of a checkpoint is not there."""


class BundleError(ModelError):
    """A bundle on disk cannot be trusted or read."""


class BundleNotFoundError(BundleError, ModelNotFoundError):
    """A bundle, or a file of one, is not there."""


class ProviderError(ModelError):
    """A provider of encoders crashed, did not take the whole graph, or computes something else."""


class ExactnessError(ModelError):
    """A decoder's rows depend on each other, so speculation could change the text."""


class MapError(ModelError):
    """A token map cannot be trusted or read."""


class MapNotFoundError(MapError, ModelNotFoundError):
    """No such token map."""


class ResourceError(SpecedgeError, OSError):
    """Memory or disk ran out, or an output cannot be written."""

    exit_code = 5


class OutOfMemoryError(ResourceError, MemoryError):
    """There is not enough memory."""


class Interrupted(SpecedgeError):
    """The user or the embedding program asked to stop."""

    exit_code = 130


class Terminated(Interrupted):
    """The system or another program asked to end: SIGTERM."""

    exit_code = 143


def refuse(error: Exception) -> None:
    """Raise it: what is told of errors where nothing is to be passed over."""
    raise error
