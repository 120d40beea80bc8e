"""What another provider of the encoder is worth on the user's audio: seconds, and texts that differ from the CPU's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..bundle.bundle import Bundle
from ..decoding.drafter import EmptyDrafter
from ..options import TranscribeOptions
from .rounds import Heard, hear

__all__ = ["ProviderWorth", "provider_worth"]

_N_ROUNDS = 2  # the second counts: in the first, lengths of windows are compiled


@dataclass(frozen=True, kw_only=True)
class ProviderWorth:
    """Plain decoding with the encoder on `provider` and on the CPU, in turn, each file once: seconds of all files, and
    how many of the `n_texts` have another text. A different text is no fault: features differ by a rounding error."""

    provider: str
    encoder_s: float
    cpu_encoder_s: float
    total_s: float
    cpu_total_s: float
    n_texts: int
    n_different: int

    def words(self) -> str:
        """In a sentence."""
        return (
            f"encoder on {self.provider}: {self.encoder_s:.2f} s, on the CPU {self.cpu_encoder_s:.2f} s "
            f"({self.cpu_encoder_s / max(self.encoder_s, 1e-9):.2f} times as fast, end to end "
            f"{self.cpu_total_s / max(self.total_s, 1e-9):.2f}); {self.n_different} of {self.n_texts} texts differ "
            "from the CPU's"
        )


def provider_worth(
    engine: Any, cpu: Any, bundle: Bundle, files: Sequence[str], options: TranscribeOptions, n_windows: int | None
) -> ProviderWorth:
    """Transcribe `files` with both engines; of the last, `n_windows` alone, None for all. Raises as `hear`."""
    pairs: list[tuple[Heard, Heard]] = []
    for _ in range(_N_ROUNDS):
        pairs = []
        for file in files:
            most = n_windows if n_windows is not None and file == files[-1] else None

            def goes_on(n_done: int, most: int | None = most) -> bool:
                return most is None or n_done < most

            mine, theirs = (hear(one, bundle, file, options, EmptyDrafter(), goes_on) for one in (engine, cpu))
            pairs.append((mine, theirs))
    return ProviderWorth(
        provider=engine.encoder_provider,
        encoder_s=sum(mine.encoder_s for mine, _ in pairs),
        cpu_encoder_s=sum(theirs.encoder_s for _, theirs in pairs),
        total_s=sum(mine.total_s for mine, _ in pairs),
        cpu_total_s=sum(theirs.total_s for _, theirs in pairs),
        n_texts=len(pairs),
        n_different=sum(_text(mine) != _text(theirs) for mine, theirs in pairs),
    )


def _text(heard: Heard) -> str:
    return "".join(segment.text for segment in heard.segments)
