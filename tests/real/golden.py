"""What published tiny.en and base say of recorded speech, kept in golden.json, so that a change of any text is seen.

    SPECEDGE_REAL_MODELS=FOLDER python -m tests.real.golden     # write golden.json anew, after a change that is meant

The models are exported from the folders that `tests.real.fetch` makes. Recordings are docs/examples/jfk.flac and those
of shared/speech beside the tree: LibriSpeech test-other (CC BY 4.0) and short English ones, whose README has sources.
Int8 kernels round in their own way on each CPU, which decides between near ties: a comma, "Clothes" or "Cloves". So
a few words may differ (`MOST_DIFFERENT`), and what was spoken must be understood as well as before (`WORSE`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from specedge import WhisperModel  # noqa: E402

GOLDEN = Path(__file__).with_name("golden.json")
SPEECH = ROOT.parent / "shared" / "speech"
OWN = "docs/examples/jfk.flac"
SAID_IN_OWN = "and so my fellow americans ask not what your country can do for you ask what you can do for your country"
SETS = {"librispeech": 20, "short-en": 20}
MODELS = {"tiny.en": "int8", "base": "int8"}
MOST_DIFFERENT = 0.04  # of the words, on another CPU: 0.002 of base's and 0.024 of tiny.en's between AVX512 and AMX
WORSE = 0.01  # of the words spoken

__all__ = ["GOLDEN", "MODELS", "MOST_DIFFERENT", "OWN", "WORSE", "recordings", "spoken", "texts"]


def rows() -> list[dict[str, str]]:
    """Of each set, the first recordings with what is spoken, as far as they are there."""
    lists = [(SPEECH / f"{name}.jsonl", limit) for name, limit in SETS.items()]
    found = [path.read_text(encoding="utf-8").splitlines()[:limit] for path, limit in lists if path.is_file()]
    return [json.loads(line) for line in chain(*found)]


def recordings() -> dict[str, Path]:
    """Names and paths of those that are there."""
    return {OWN: ROOT / OWN} | {row["audio"]: SPEECH / row["audio"] for row in rows()}


def spoken() -> dict[str, str]:
    return {OWN: SAID_IN_OWN} | {row["audio"]: row["text"] for row in rows()}


def texts(bundle: Path, files: Mapping[str, Path], drafter: str = "none") -> dict[str, str]:
    """The text of each recording, which is known to be English."""
    model = WhisperModel(bundle, encoder_provider="cpu")
    found = {}
    for name, path in files.items():
        segments, _ = model.transcribe(str(path), language="en", drafter=drafter, audio_context="full")
        found[name] = "".join(segment.text for segment in segments).strip()
    return found


def main(arguments: Sequence[str] = ()) -> None:
    import os
    import tempfile

    from specedge.export.export import export_to

    models = Path(os.environ["SPECEDGE_REAL_MODELS"])
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, precision in MODELS.items():
            bundle = export_to(str(models / name), Path(folder) / name, precision=precision)
            found[name] = texts(bundle.path, recordings())
    GOLDEN.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
