"""Measure a demo model on voices and sentences it was not trained on.

    python -m specedge.models.recipe.evaluate MODEL --speech SPEECH [--draft DRAFT] [--report out.json]

MODEL is a checkpoint folder in Hugging Face layout (run in torch, full padded windows, Whisper's rules), or a specedge
bundle (run through specedge.runtime). Reported, each with the number it rests on:

- word error rate of `maintenance` and `notes` dev sentences in held-out voices, and (seen-*) in training voices, with
  and without timestamps; times of the segments where timestamps are on;
- digit error rate on the recorded speaker left out of training;
- silence: share of windows of digital silence and noises that give an empty text;
- long: a recording of ten sentences with pauses, complete and in order, with the largest error of a segment's times;
- agreement (with --draft): share of next tokens on which a draft's argmax equals the target's, along the target's text.

This module knows the measures. Models are run by greedy.py or by the runtime; numbers are made in score.py.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from specedge.errors import UsageError
from specedge.export.training import corpus
from specedge.export.training.corpus import RATE_HZ, Utterance, is_dev, load_shards
from specedge.files import Kind, check_output, write_atomic
from specedge.runtime.text.word_errors import normalise, word_errors

from .command_line import run_command

__all__ = ["agreement", "digit_errors", "evaluate", "long_form", "quiet_windows", "read_dev"]

REPORT = Kind("report of figures", lambda head: head.split()[:2] == [b"{", b'"model":'])
Float = npt.NDArray[np.float32]
Transcribe = Callable[[Sequence[Float], bool], list[tuple[str, float, float]]]


def read_dev(speech: Path) -> dict[str, list[Utterance]]:
    """Dev shards by name: maintenance-dev, notes-dev, maintenance-seen, notes-seen, digits-dev."""
    found: dict[str, list[Utterance]] = {}
    for folder in sorted({index.parent for index in speech.rglob("*.json")}):
        if is_dev(folder):
            for name, items in load_shards(folder):
                found.setdefault("digits-dev" if name.startswith("digits") else name, []).extend(items)
    if not found:
        raise UsageError(f"{speech}: no dev shards; make them with `speech dev` and `speech digits` first")
    return found


def quiet_windows(seed: int = 7, n_samples: int = 10 * RATE_HZ) -> list[tuple[str, Float]]:
    """Windows without speech: digital silence and coloured, humming and knocking noise at four levels."""
    rng = np.random.default_rng(seed)
    out: list[tuple[str, Float]] = [("digital silence", np.zeros(n_samples, np.float32))]
    out.append(("digital silence, 1 s", np.zeros(RATE_HZ, np.float32)))
    for level_db in (-70, -50, -35, -25):
        for at in range(5):
            samples = np.clip(corpus.noise(rng, n_samples) * 10 ** (level_db / 20), -1, 1)
            out.append((f"noise {at} at {level_db} dB", samples.astype(np.float32)))
        white = rng.standard_normal(n_samples, np.float32) * 10 ** (level_db / 20)
        out.append((f"white noise at {level_db} dB", np.clip(white, -1, 1).astype(np.float32)))
    return out


def long_form(
    items: Sequence[Utterance], seed: int, n_sentences: int = 10
) -> tuple[Float, list[tuple[str, float, float]]]:
    """Sentences with pauses of 0.3 to 1.5 s: samples, and (text, start_s, end_s) of each."""
    rng = random.Random(seed)
    parts: list[Float] = [np.zeros(RATE_HZ // 2, np.float32)]
    at, truth = RATE_HZ // 2, []
    for item in rng.sample(list(items), n_sentences):
        truth.append((item.text, (at + item.start) / RATE_HZ, (at + item.end) / RATE_HZ))
        pause = int(RATE_HZ * rng.uniform(0.3, 1.5))
        parts += [item.sound(), np.zeros(pause, np.float32)]
        at += item.samples.size + pause
    samples = np.concatenate(parts)
    hiss = np.random.default_rng(seed).standard_normal(samples.size).astype(np.float32) * 1e-3
    return samples + hiss, truth


def _list_figures(items: Sequence[Utterance], run: Transcribe, *, timestamps: bool) -> dict[str, Any]:
    pairs, off_start, off_end = [], [], []
    by_voice: dict[str, list[tuple[str, str]]] = {}
    for at in range(0, len(items), 25):
        chunk = items[at : at + 25]
        lead = RATE_HZ // 5
        windows = [np.concatenate([np.zeros(lead, np.float32), item.sound()]) for item in chunk]
        for item, (text, start_s, end_s) in zip(chunk, run(windows, timestamps), strict=True):
            pairs.append((item.text, text))
            voice = item.voice.partition("+")[2] or item.voice
            by_voice.setdefault(voice, []).append((item.text, text))
            off_start.append(abs(start_s - (lead + item.start) / RATE_HZ))
            off_end.append(abs(end_s - (lead + item.end) / RATE_HZ))
    errors = word_errors(pairs)
    figures: dict[str, Any] = {"wer": round(errors.rate, 5), "words": errors.n_words, "texts": errors.n_texts}
    figures["exact"] = round(errors.n_exact / max(1, errors.n_texts), 4)
    if timestamps:
        late = [a > 0.3 or b > 0.3 for a, b in zip(off_start, off_end, strict=True)]
        figures["time_error_s"] = round(float(np.mean(off_start + off_end)), 4)
        figures["beyond_0.3_s"] = round(sum(late) / len(late), 4)
    figures["by_voice"] = {name: round(word_errors(p).rate, 4) for name, p in sorted(by_voice.items()) if len(p) > 5}
    figures["wrong"] = [p for p in pairs if normalise(p[0]) != normalise(p[1])][:12]
    return figures


def digit_errors(items: Sequence[Utterance], run: Transcribe) -> dict[str, Any]:
    """Errors by digit on strings of recorded digits."""
    figures = _list_figures(items, run, timestamps=False)
    return {"digit_error": figures.pop("wer"), "digits": figures.pop("words"), **figures}


def agreement(target: Any, draft: Any, items: Sequence[Utterance]) -> dict[str, Any]:
    """Next-token agreement of two checkpoints along the target's greedy text (no timestamps).

    With one byte-pair table the draft is given the target's ids. With another it is given the target's text in its own
    ids, and agreement means that its argmax goes on with that text.
    """
    import torch

    n_same = n_all = 0
    for at in range(0, len(items), 20):
        windows = [item.sound() for item in items[at : at + 20]]
        wanted = target.decode(windows, timestamps=False)
        features = draft.encode(windows)
        prompt = draft.layout.prompt(timestamps=False)
        for row, result in enumerate(wanted):
            ids = [i for i in result.ids if i < target.layout.special.eot]
            if draft.layout.table != target.layout.table:
                ids = draft.tokenizer.encode(target.tokenizer.decode(ids))
            given = torch.tensor([[*prompt, *ids]])
            best = draft.logits(features[row : row + 1], given)[0, len(prompt) - 1 :].argmax(-1).tolist()
            n_same += sum(a == b for a, b in zip(best, [*ids, draft.layout.special.eot], strict=True))
            n_all += len(ids) + 1
    return {"agreement": round(n_same / max(1, n_all), 4), "tokens": n_all}


def _torch_runner(checkpoint: Any) -> tuple[Transcribe, Callable[[Float], list[tuple[str, float, float]]]]:
    def run(windows: Sequence[Float], timestamps: bool) -> list[tuple[str, float, float]]:
        out = []
        begin = checkpoint.layout.special.timestamp_begin
        for result in checkpoint.decode(windows, timestamps=timestamps):
            stamps = [(i - begin) * 0.02 for i in result.ids if i >= begin] or [0.0]
            out.append((checkpoint.text(result), stamps[0], stamps[-1]))
        return out

    def long(samples: Float) -> list[tuple[str, float, float]]:
        return [(span.text, span.start_s, span.end_s) for span in checkpoint.transcribe_long(samples)]

    return run, long


def _bundle_runner(folder: Path) -> tuple[Transcribe, Callable[[Float], list[tuple[str, float, float]]]]:
    from specedge.runtime.audio.audio import open_audio
    from specedge.runtime.bundle.bundle import Bundle
    from specedge.runtime.engine.engine import Engine
    from specedge.runtime.longform.transcribe import transcribe
    from specedge.runtime.options import TranscribeOptions

    bundle = Bundle.open(folder)
    engine = Engine(bundle)

    def segments(samples: Float, timestamps: bool) -> list[tuple[str, float, float]]:
        options = TranscribeOptions(language="en", without_timestamps=not timestamps, temperature=(0.0,))
        with open_audio(samples) as stream:
            found = transcribe(engine, bundle, stream, options)
            return [(segment.text.strip(), segment.start, segment.end) for segment in found]

    def run(windows: Sequence[Float], timestamps: bool) -> list[tuple[str, float, float]]:
        out = []
        for window in windows:
            found = segments(window, timestamps)
            text = " ".join(text for text, _, _ in found)
            out.append((text, found[0][1] if found else 0.0, found[-1][2] if found else 0.0))
        return out

    return run, lambda samples: segments(samples, True)


def evaluate(
    model: Path, speech: Path, *, limit: int, n_recordings: int = 4, draft: Path | None = None
) -> dict[str, Any]:
    """All figures of a model as a dict of plain values."""
    dev = read_dev(speech)
    report: dict[str, Any] = {"model": str(model)}
    checkpoint: Any = None
    if (model / "specedge.json").is_file():
        run, long = _bundle_runner(model)
    else:
        from .greedy import Checkpoint

        checkpoint = Checkpoint(model)
        run, long = _torch_runner(checkpoint)
    for name in ("maintenance-dev", "notes-dev", "maintenance-seen", "notes-seen"):
        items = dev.get(name, [])[:limit]
        report[name] = _list_figures(items, run, timestamps=False)
        report[f"{name} timestamps"] = _list_figures(items, run, timestamps=True)
    report["digits"] = digit_errors(dev.get("digits-dev", [])[:limit], run)
    for timestamps in (False, True):
        texts = [(name, run([window], timestamps)[0][0]) for name, window in quiet_windows()]
        heard = [pair for pair in texts if pair[1]]
        report[f"quiet{' timestamps' if timestamps else ''}"] = {
            "windows": len(texts),
            "empty": len(texts) - len(heard),
            "heard": heard,
        }
    report["long"] = [_long_figures(dev, long, seed) for seed in range(n_recordings)]
    report["long together"] = _together(report["long"])
    if draft is not None and checkpoint is not None:
        from .greedy import Checkpoint

        other = Checkpoint(draft)
        for name in ("maintenance-dev", "notes-dev"):
            report[f"agreement {name}"] = agreement(checkpoint, other, dev[name][:limit])
    return report


def _long_figures(
    dev: dict[str, list[Utterance]], long: Callable[[Float], list[tuple[str, float, float]]], seed: int
) -> dict[str, Any]:
    items = dev["maintenance-dev" if seed % 2 == 0 else "notes-dev"]
    samples, truth = long_form(items, seed)
    found = long(samples)
    errors = word_errors([(" ".join(t for t, _, _ in truth), " ".join(t for t, _, _ in found))])
    figures: dict[str, Any] = {"seconds": round(samples.size / RATE_HZ, 1), "segments": len(found)}
    figures["wer"] = round(errors.rate, 4)
    if len(found) == len(truth):
        pairs = list(zip(found, truth, strict=True))
        figures["worst_start_s"] = round(max(abs(a[1] - b[1]) for a, b in pairs), 3)
        figures["worst_end_s"] = round(max(abs(a[2] - b[2]) for a, b in pairs), 3)
    else:
        figures["found"] = found
    return figures


def _together(recordings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `_long_figures` found, of all recordings together."""
    complete = [figures for figures in recordings if "worst_start_s" in figures]
    within = [figures for figures in complete if max(figures["worst_start_s"], figures["worst_end_s"]) <= 0.3]
    return {
        "recordings": len(recordings),
        "complete": len(complete),
        "within_0.3_s": len(within),
        "wer": round(sum(figures["wer"] for figures in recordings) / max(1, len(recordings)), 4),
    }


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--speech", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--draft", type=click.Path(path_type=Path, exists=True), help="a draft's checkpoint, for agreement")
@click.option("--limit", default=400, show_default=True, help="utterances of each list")
@click.option("--recordings", default=4, show_default=True, help="recordings of ten sentences")
@click.option("--report", type=click.Path(path_type=Path), help="write the figures here as JSON")
def main(model: Path, speech: Path, draft: Path | None, limit: int, recordings: int, report: Path | None) -> None:
    """Measure MODEL (a checkpoint folder or a bundle) on held-out voices."""
    if report is not None:
        check_output(report, REPORT)
    figures = evaluate(model, speech, limit=limit, n_recordings=recordings, draft=draft)
    text = json.dumps(figures, indent=1)
    if report is not None:
        write_atomic(report, text + "\n", REPORT)
    click.echo(text)


if __name__ == "__main__":
    run_command(main)
