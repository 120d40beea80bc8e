"""What a provider of encoders is asked for, and what it must be able to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .session import Canceller

__all__ = ["Backend", "EncoderRun", "EncoderTask", "Place"]

EncoderRun = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""From a log-mel float32 `[1, n_mels, n_frames]` to features float32 `[1, n_ctx, n_audio_state]`."""


@dataclass(frozen=True, kw_only=True)
class EncoderTask:
    """An encoder in plain operators (`export/plain_encoder.py`) for windows of `n_frames`, or of as many at most.

    is_float32: whether the provider is to compute in float32, as the bundle does; else in whatever is quickest.
    """

    graph: Path
    n_mels: int
    n_frames: int
    threads: int
    is_float32: bool


@dataclass(frozen=True, kw_only=True)
class Place:
    """The version of a provider, and the name of the device that it has here."""

    version: str
    device: str


class Backend(Protocol):
    """A provider of encoders. takes_all_lengths: whether what it compiles takes shorter windows than the task's too."""

    @property
    def takes_all_lengths(self) -> bool: ...

    def place(self) -> Place:
        """Raises UsageError where the provider is not installed or finds no device; it names the package."""

    def compile(self, task: EncoderTask, folder: Path) -> None:
        """Write what the next start can load into the empty `folder`; nothing where it cannot be written.

        Raises ProviderError where the provider does not take the whole graph.
        """

    def load(self, task: EncoderTask, folder: Path, canceller: Canceller) -> EncoderRun:
        """The encoder, from what `compile` wrote. Raises ProviderError; its runs Interrupted."""
