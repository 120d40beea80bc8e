"""The command `specedge` in a process of its own, with a scripted engine in place of a bundle.

    python fake_cli.py [--delay SECONDS] [--signal NUMBER] -- ARGUMENTS OF SPECEDGE

Every second of audio is one segment; `--delay` makes each pass of the decoder slow, as a large model would be;
`--signal` is sent to the process by itself in the pass with number SIGNAL_AT.
"""

from __future__ import annotations

import os
import sys
import time
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.fake_engine import (  # noqa: E402
    FakeState,
    Script,
    ScriptedEngine,
    bundle,
    scripted_drafter,
    special_tokens,
    words,
)

SPECIAL = special_tokens()
SIGNAL_AT = 500
SENTENCE = "the pump is on\n"


class SlowEngine(ScriptedEngine):
    """A scripted engine that takes its time."""

    delay_s = 0.0
    signal: int | None = None
    n_calls = 0

    def forward(
        self, state: FakeState, ids: Sequence[int], logit_rows: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        time.sleep(self.delay_s)
        self.n_calls += 1
        if self.signal is not None and self.n_calls == SIGNAL_AT:
            os.kill(os.getpid(), self.signal)
            time.sleep(9)
        return super().forward(state, ids, logit_rows)


def fake_model(delay_s: float = 0.0) -> tuple[SlowEngine, Any]:
    """An engine that says one short sentence for each second of audio, and its bundle."""
    second = SPECIAL.timestamp_begin + 50
    script = Script(tokens=[SPECIAL.timestamp_begin, *words(" the", " pump", " is", " on"), second, second])
    engine = SlowEngine(SPECIAL, [script])
    engine.delay_s = delay_s
    return engine, bundle(SPECIAL)


def wav(path: Path | str, duration_s: float = 2.0) -> str:
    """A file of a constant, which is no silence; returns its name."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(b"\0\1" * round(duration_s * 16_000))
    return str(path)


def main() -> int:
    from specedge.runtime import model
    from specedge.runtime.cli.main import main as specedge_main

    split = sys.argv.index("--")
    given = sys.argv[:split]
    delay_s = float(given[given.index("--delay") + 1]) if "--delay" in given else 0.0
    SlowEngine.signal = int(given[given.index("--signal") + 1]) if "--signal" in given else None
    model.load = lambda path, threads, budget_bytes, encoder_provider: fake_model(delay_s)  # type: ignore[assignment]
    model.choose_bundle = lambda path, **_: path  # type: ignore[assignment]
    model.make_drafter = scripted_drafter  # type: ignore[assignment]
    return specedge_main(sys.argv[split + 1 :])


if __name__ == "__main__":
    raise SystemExit(main())
