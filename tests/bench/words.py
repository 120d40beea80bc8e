"""Word errors of several bundles on recordings with texts, and what one bundle's rounding costs beside another.

    python tests/bench/words.py float32=BUNDLE int8=BUNDLE ... --set SPEECH.jsonl ... [--keep FOLDER] [--half 1]

In place of a BUNDLE, faster-whisper:FOLDER and openai-whisper:FILE.pt are the same weights in these programs, float32.

common.py says what a set is. A recording without a text is held against the first bundle's own: a set of many voices
that nobody wrote down then shows what rounding changes.

Decoding is what `WhisperModel.transcribe` does with the language given and no drafter: greedy, warmer where a text
fails; so do the other programs here. English is normalised as openai-whisper does it and counted in words, other
languages in characters. The difference to the first bundle is paired: its interval is the middle 95 % of 10,000 draws
of recordings. "changed" is the share of the first bundle's words that another bundle says otherwise, "same" counts the
texts that are the first bundle's to the letter. It does not measure time.

--keep FOLDER holds what bundles said, so that a run that is repeated, or stopped, goes on. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from whisper.normalizers import BasicTextNormalizer, EnglishTextNormalizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Recording, Sound, print_json, print_table, recordings, sounds  # noqa: E402

from specedge import WhisperModel  # noqa: E402
from specedge.runtime.text.words import edit_distance  # noqa: E402

N_DRAWS = 10_000
ENGLISH, OTHER = EnglishTextNormalizer(), BasicTextNormalizer()


def transcriber(model: str, threads: int) -> tuple[str, Callable[[Sound, str], str]]:
    """A name for the weights in a program, and what it makes of a sound in a language."""
    program, _, path = model.partition(":")
    if program == "faster-whisper":
        import faster_whisper

        theirs = faster_whisper.WhisperModel(path, device="cpu", compute_type="float32", cpu_threads=threads)

        def by_faster_whisper(sound: Sound, language: str) -> str:
            return "".join(one.text for one in theirs.transcribe(sound, language=language, beam_size=1)[0])

        return f"faster-whisper-{Path(path).name}", by_faster_whisper
    if program == "openai-whisper":
        import torch
        import whisper

        torch.set_num_threads(threads)
        openai = whisper.load_model(path, device="cpu")

        def by_openai(sound: Sound, language: str) -> str:
            return str(openai.transcribe(sound, language=language, fp16=False)["text"])

        return f"openai-whisper-{Path(path).name}", by_openai
    ours = WhisperModel(Path(model), cpu_threads=threads)

    def by_us(sound: Sound, language: str) -> str:
        segments, _ = ours.transcribe(sound, language if ours.is_multilingual else "en", drafter="none")
        return "".join(segment.text for segment in segments)

    return ours.bundle.digest[:16], by_us


def texts(model: str, found: Sequence[Recording], keep: Path | None, threads: int) -> list[str]:
    """What a model makes of each, as kept or now."""
    name, transcribe = transcriber(model, threads)
    kept: dict[str, str] = {}
    log = None if keep is None else keep / f"{name}-{threads}.jsonl"
    if log is not None and log.exists():
        kept = dict(json.loads(line) for line in log.read_text(encoding="utf-8").splitlines())
    missing = [one for one in found if one.key not in kept]
    for one, sound in zip(missing, sounds(missing), strict=True):
        kept[one.key] = transcribe(sound, one.language)
        if log is not None:
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps((one.key, kept[one.key])) + "\n")
    return [kept[one.key] for one in found]


def units(text: str, language: str) -> Sequence[str]:
    """What errors are counted in: words of English, characters of other languages."""
    return ENGLISH(text).split() if language == "en" else OTHER(text).replace(" ", "")


def counts(said: Sequence[str], wanted: Sequence[str], found: Sequence[Recording]) -> NDArray[np.int64]:
    """Errors and units of each recording, `[n, 2]`."""
    pairs = [(units(a, one.language), units(b, one.language)) for a, b, one in zip(said, wanted, found, strict=True)]
    return np.array([(edit_distance(spoken, heard), len(spoken)) for heard, spoken in pairs])


def rate(counted: NDArray[np.int64]) -> float:
    """Errors in percent of the units."""
    return 100 * float(counted[:, 0].sum() / max(1, counted[:, 1].sum()))


def interval(counted: NDArray[np.int64], base: NDArray[np.int64]) -> list[float]:
    """The middle 95 % of the difference of two rates in points, recordings drawn with replacement."""
    drawn = np.random.default_rng(0).integers(0, len(base), (N_DRAWS, len(base)))
    more = (counted[:, 0] - base[:, 0])[drawn].sum(1) / np.maximum(1, base[:, 1][drawn].sum(1))
    return [round(100 * float(edge), 2) for edge in np.quantile(more, (0.025, 0.975))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", metavar="NAME=BUNDLE")
    parser.add_argument("--set", dest="sets", action="append", required=True, metavar="SPEECH.jsonl")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--half", type=int, choices=(0, 1))
    parser.add_argument("--limit", type=int)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    figures: list[dict[str, Any]] = []
    spoken: dict[str, list[NDArray[np.int64]]] = {}  # by bundle, of the English sets that have texts
    for name in given.sets:
        found = recordings(name)[slice(given.half, None, 2 if given.half is not None else 1)][: given.limit]
        base: list[str] | None = None
        for entry in given.bundles:
            label, _, folder = entry.partition("=")
            said = texts(folder, found, given.keep, given.threads)
            base = said if base is None else base
            wanted = [one.text or theirs for one, theirs in zip(found, base, strict=True)]
            counted = counts(said, wanted, found)
            if all(one.text and one.language == "en" for one in found):
                spoken.setdefault(label, []).append(counted)
            changed = rate(counts(said, base, found))
            figure = _figure(Path(name).name, label, counted, counts(base, wanted, found), changed)
            figures.append(figure | {"same": sum(a.strip() == b.strip() for a, b in zip(said, base, strict=True))})
    if len(given.sets) > 1:
        whole = {label: np.concatenate(parts) for label, parts in spoken.items()}
        first = next(iter(whole.values()), None)
        figures += [_figure("all English", label, counted, first) for label, counted in whole.items()]
    print_table([list(figures[0]), *(list(row.values()) for row in figures)])
    print_json("words", threads=given.threads, half=given.half, figures=figures)


def _figure(
    name: str, label: str, counted: NDArray[np.int64], base: NDArray[np.int64], changed: float | None = None
) -> dict[str, Any]:
    low, high = interval(counted, base)
    return {
        "set": name,
        "bundle": label,
        "recordings": len(counted),
        "units": int(counted[:, 1].sum()),
        "errors": round(rate(counted), 2),
        "more": round(rate(counted) - rate(base), 2),
        "low": low,
        "high": high,
        "changed": None if changed is None else round(changed, 2),
        "same": None,
    }


if __name__ == "__main__":
    main()
