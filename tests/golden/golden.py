"""The golden record: what every drafter, beam, temperature and rule preset gives, kept and compared with ==.

    python tests/golden/golden.py record [FILE]     transcribe everything and write FILE
    python tests/golden/golden.py compare [FILE]    transcribe everything and compare it with FILE

FILE is `tests/golden/record.json.gz` unless you name another. A record holds tokens, log-probabilities, times, seeks
and words of the bundled samples, of the recordings in `../shared/audio` where that folder is there, and of a long file
joined from them. Log-probabilities depend on the CPU's kernels and on the version of ONNX Runtime, so a record names
both, and `compare` refuses another machine's. The exit code is 1 when something differs, 3 on another machine.
The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from specedge import BatchedInferencePipeline, WhisperModel, decode_audio

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("record.json.gz")
SAMPLES = ROOT / "models" / "bundled" / "samples"
AUDIO = ROOT.parent / "shared" / "audio"
RATE = 16_000

HEADS = ("mtp-latent", "mtp-projection", "medusa-linear", "medusa-block")
DRAFTERS = ("none", "tokenmap", "ngram", "ctc", *HEADS, "cascade", "auto")
DRAFT_MODELS = ("demo-draft", "demo-draft-en", "demo-draft-same")

# What goes through `WhisperModel.transcribe`, on every sound, besides each drafter.
CALLS: dict[str, dict[str, Any]] = {
    **{f"drafter {name}": {"drafter": name} for name in DRAFTERS},
    **{f"draft model {name}": {"drafter": "draft", "draft_model": name} for name in DRAFT_MODELS},
    "learn": {"drafter": "draft", "draft_model": "demo-draft-en", "learn": True},
    **{f"beam {n}": {"beam_size": n} for n in (2, 3, 4, 5)},
    "beam 5 patience": {"beam_size": 5, "patience": 2.0, "length_penalty": 0.6},
    **{f"beam 4 {name}": {"beam_size": 4, "drafter": name} for name in ("tokenmap", "ctc", "mtp-latent")},
    "sampling": {"temperature": 0.7, "best_of": 1, "seed": 3},
    "sampling best of 3": {"temperature": 0.4, "best_of": 3},
    "sampling cascade": {"temperature": 0.7, "best_of": 1, "seed": 3, "drafter": "cascade"},
    "fallback": {"compression_ratio_threshold": 0.5, "log_prob_threshold": -0.01},
    "hf": {"rules": "hf"},
    "hf cascade": {"rules": "hf", "drafter": "cascade", "beam_size": 2},
    "words": {"word_timestamps": True},
    "words silence": {"word_timestamps": True, "hallucination_silence_threshold": 0.5, "drafter": "ctc"},
    "vad": {"vad_filter": True, "vad_parameters": {"min_silence_duration_ms": 300}},
    "no timestamps": {"without_timestamps": True, "drafter": "mtp-latent"},
    "prompts": {"initial_prompt": "Replace the filter.", "hotwords": "valve", "carry_initial_prompt": True},
    "prefix": {"prefix": "Check", "drafter": "tokenmap"},
    "no conditioning": {"condition_on_previous_text": False},
    "repetition": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "drafter": "cascade"},
    "suppress nothing": {"suppress_tokens": (), "suppress_blank": False},
    "full windows": {"window_end": "full", "audio_context": "full"},
    "auto context": {"audio_context": "auto", "drafter": "tokenmap"},
    "clips": {"clip_timestamps": [0.5, 2.0, 2.2], "max_new_tokens": 12},
    "detect": {"language": None},
    "translate": {"task": "translate", "drafter": "ngram"},
}

# What goes through the command, as JSON.
COMMANDS: dict[str, list[str]] = {
    "command": [],
    "command words": ["--word-timestamps", "--drafter", "tokenmap"],
    "command paper map": ["--drafter", "tokenmap", "--map-preset", "paper"],
    "command decay": ["--length-decay", "4,1.05"],
    "command beams": ["--beam-size", "3", "--drafter", "mtp-latent", "--lookahead", "3"],
    "command batch": ["--batch-size", "4"],
    "command typical": ["--accept", "typical", "--drafter", "mtp-latent", "--lookahead", "4"],
}


def sounds() -> dict[str, NDArray[np.float32]]:
    """The sounds by name, float32 [n_samples] at 16 kHz."""
    found = {path.stem: decode_audio(str(path)) for path in sorted(SAMPLES.glob("*.wav"))}
    if AUDIO.is_dir():
        for name in ("jfk.flac", "multilingual.mp3", "stereo.wav"):
            found[name] = decode_audio(str(AUDIO / name))[: 12 * RATE]
        for path in sorted((AUDIO / "digits").glob("*.wav"))[::400]:
            found[path.stem] = decode_audio(str(path))
    pause = np.zeros(RATE // 2, np.float32)
    parts = [part for _ in range(3) for sound in found.values() if len(sound) < 5 * RATE for part in (sound, pause)]
    return {**found, "joined": np.concatenate(parts)}


def machine() -> dict[str, str]:
    """What the bits depend on."""
    from specedge.runtime.device import isa

    here = isa()
    return {
        "machine": here.machine,
        "features": " ".join(here.features),
        "onnxruntime": str(onnxruntime.__version__),
        "numpy": np.__version__,
        "audio": str(AUDIO.is_dir()),
    }


def runs() -> Iterator[tuple[str, Callable[[], object]]]:
    """Every run by its name."""
    found = sounds()
    model = WhisperModel("demo")
    for sound, samples in found.items():
        for call, arguments in CALLS.items():
            yield f"{call} / {sound}", lambda s=samples, a=arguments: transcribed(model, s, a)  # type: ignore[misc]
    for sound in ("maintenance", "joined"):
        samples = found[sound]
        yield f"batched / {sound}", lambda s=samples: batched(model, s)  # type: ignore[misc]
        yield f"live / {sound}", lambda s=samples: live(model, s)  # type: ignore[misc]
        yield f"language / {sound}", lambda s=samples: model.detect_language(s, language_detection_segments=2)  # type: ignore[misc]
        for command, options in COMMANDS.items():
            yield f"{command} / {sound}", lambda s=samples, o=options: by_command(s, o)  # type: ignore[misc]


def transcribed(model: WhisperModel, samples: NDArray[np.float32], arguments: Mapping[str, Any]) -> object:
    """One call of `WhisperModel.transcribe`: its segments and what was found about the language."""
    segments, info = model.transcribe(samples, **{"language": "en", **arguments})
    return [as_json(segment) for segment in segments], info.language, info.all_language_probs


def batched(model: WhisperModel, samples: NDArray[np.float32]) -> object:
    """One call of the batched pipeline."""
    segments, _ = BatchedInferencePipeline(model).transcribe(samples, language="en", batch_size=4, drafter="ngram")
    return [as_json(segment) for segment in segments]


def live(model: WhisperModel, samples: NDArray[np.float32]) -> object:
    """The confirmed text of a live stream, in blocks of half a second."""
    blocks = np.array_split(samples[: 20 * RATE], max(1, min(len(samples), 20 * RATE) // (RATE // 2)))
    updates = model.stream(iter(blocks), drafter="tokenmap", language="en")
    fields = ("confirmed", "tentative", "start_s", "end_s")
    return [{name: getattr(update, name) for name in fields} for update in updates if not update.ends_utterance]


def by_command(samples: NDArray[np.float32], options: list[str]) -> object:
    """One run of `specedge transcribe -f json`; without what depends on the clock."""
    import soundfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sound.wav"
        soundfile.write(path, samples, RATE, subtype="FLOAT")
        command = [sys.executable, "-m", "specedge", "transcribe", str(path), "-l", "en", "-q", "-f", "json", *options]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    found.pop("speculation", None)
    return found


def as_json(value: Any) -> Any:
    """Dataclasses as dicts, without `sources`, which depends on the clock."""
    found = dataclasses.asdict(value)
    found.pop("sources", None)
    return found


def record(which: str) -> dict[str, Any]:
    """The results of all runs whose names hold `which`, as JSON gives them back: floats keep every bit."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = os.environ["XDG_DATA_HOME"] = home  # nothing calibrated, nothing learned
        for name, run in runs():
            if which in name:
                results[name] = json.loads(json.dumps(run()))
                print(f"\r{len(results)} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {"machine": machine(), "results": results}


def main() -> int:
    """Run the command. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("file", nargs="?", type=Path, default=RECORD)
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs whose names hold TEXT")
    given = parser.parse_args()
    if given.action == "record":
        found = record(given.only)
        given.file.write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))
        print(json.dumps({"recorded": len(found["results"])}))
        return 0
    kept = json.loads(gzip.decompress(given.file.read_bytes()))
    if kept["machine"] != machine():
        print(f"{given.file} was recorded on another machine: {kept['machine']}, here {machine()}", file=sys.stderr)
        print(json.dumps({"compared": 0}))
        return 3
    found = record(given.only)
    wanted = {name: result for name, result in kept["results"].items() if given.only in name}
    different = sorted(
        name for name in wanted.keys() | found["results"].keys() if wanted.get(name) != found["results"].get(name)
    )
    for name in different:
        print(f"differs: {name}")
    n_tokens = sum(len(segment["tokens"]) for result in wanted.values() for segment in _segments(result))
    print(json.dumps({"compared": len(wanted), "n_tokens": n_tokens, "different": len(different)}))
    return 1 if different else 0


def _segments(result: Any) -> list[dict[str, Any]]:
    """The segments of a run's result, whichever way it was made."""
    if isinstance(result, dict):
        return list(result.get("segments", ()))
    rows = result[0] if result and isinstance(result[0], list) else result
    return [row for row in rows if isinstance(row, dict) and "tokens" in row]


if __name__ == "__main__":
    raise SystemExit(main())
