"""Measure a model of the recipe on voices and sentences it was not trained on, or find its alignment heads.

    python -m specedge.models.recipe.evaluate MODEL --speech SPEECH [--draft DRAFT] [--audio-context full]
                                              [--report out.json]
    python -m specedge.models.recipe.evaluate CHECKPOINT --speech SPEECH --alignment-heads 8 [--limit 40]

MODEL and DRAFT are bundles, or checkpoint folders in Hugging Face layout, which are exported in fp32 first. Reported:

- word error rate of `maintenance` and `notes` dev sentences in held-out voices, and (seen-*) in training voices, with
  and without timestamps, of which a speech LLM has none; times of the segments where timestamps are on;
- digit error rate on the recorded speaker left out of training;
- silence: share of windows of digital silence and noises that give an empty text;
- long: a recording of ten sentences with pauses, complete and in order, with the largest error of a segment's times;
- agreement (with --draft): share of next tokens on which a draft's argmax equals the target's, along the target's text.

Alignment heads are the decoder heads that follow the audio, from which word times are read. Held-out sentences are fed
with their right text, and the heads with the best scores (`export/alignment_heads.py`) are written to `alignment_heads`
in CHECKPOINT's generation_config.json.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from specedge.errors import UsageError
from specedge.export.alignment_heads import best_heads, score_on_path
from specedge.export.export import export_to
from specedge.export.training import corpus
from specedge.export.training.corpus import RATE_HZ, Utterance, is_dev, load_shards
from specedge.files import Kind, check_output, write_atomic
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.audio.mel import HOP_SAMPLES, log_mel
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import SPEECH
from specedge.runtime.engine.speech import open_engine
from specedge.runtime.longform.segments import Segment
from specedge.runtime.longform.transcribe import transcribe
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.text.words import character_error_rate, normalise, word_errors

from .command_line import run_command
from .labels import layout_of, tokenizer_of

__all__ = [
    "Model",
    "agreement",
    "evaluate",
    "long_form",
    "opened",
    "quiet_windows",
    "read_dev",
]

REPORT = Kind("report of figures", lambda head: head.split()[:2] == [b"{", b'"model":'])
Float = npt.NDArray[np.float32]
_DEV_LISTS = ("maintenance-dev", "notes-dev")


class Model:
    """A bundle at work without drafts, fallback or language detection. audio_context: as of `TranscribeOptions`."""

    def __init__(self, folder: Path, audio_context: str | None = None) -> None:
        self.bundle = Bundle.open(folder)
        self.engine = open_engine(self.bundle, cache=False)
        self._audio_context = audio_context

    @property
    def ways(self) -> tuple[bool, ...]:
        """Without timestamps, and with them where the model has them."""
        return (False,) if self.bundle.manifest.kind == SPEECH else (False, True)

    def segments(self, samples: Float, *, timestamps: bool) -> list[Segment]:
        options = TranscribeOptions(
            language="en",
            without_timestamps=not timestamps,
            temperature=(0.0,),
            audio_context=self._audio_context,
        )
        with open_audio(samples) as stream:
            return list(transcribe(self.engine, self.bundle, stream, options))

    def window(self, samples: Float, *, timestamps: bool) -> tuple[str, float, float]:
        """Text of one window, and where its speech starts and ends in seconds."""
        found = self.segments(samples, timestamps=timestamps)
        text = " ".join(segment.text.strip() for segment in found)
        return text, found[0].start if found else 0.0, found[-1].end if found else 0.0

    def next_tokens(self, samples: Float, ids: Sequence[int]) -> list[int]:
        """The likeliest token behind the prompt and behind each of the text `ids`."""
        special, manifest = self.bundle.tokenizer.whisper_special, self.bundle.manifest
        prompt = special.prompt("en" if special.is_multilingual else None, timestamps=False)
        state = self.engine.start(self.engine.encode(log_mel(samples, manifest.dims.n_mels, manifest.n_frames)))
        logits = self.engine.forward(state, [*prompt, *ids])[len(prompt) - 1 :]
        self.engine.release(state)
        best: list[int] = logits.argmax(1).tolist()
        return best


@contextmanager
def opened(folder: Path, audio_context: str | None = None) -> Iterator[Model]:
    """The model of a bundle, or of a checkpoint folder, exported for as long as the block lasts."""
    with tempfile.TemporaryDirectory() as scratch:
        if not (folder / "specedge.json").is_file():
            folder = export_to(str(folder), Path(scratch) / "bundle", precision="fp32", name="evaluated").path
        yield Model(folder, audio_context)


def read_dev(speech: Path) -> dict[str, list[Utterance]]:
    """Dev shards by name: maintenance-dev, notes-dev, maintenance-seen, notes-seen, digits-dev. Raises UsageError."""
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


def _list_figures(items: Sequence[Utterance], model: Model, *, timestamps: bool) -> dict[str, Any]:
    pairs, off_start, off_end = [], [], []
    by_voice: dict[str, list[tuple[str, str]]] = {}
    lead = RATE_HZ // 5
    for item in items:
        samples = np.concatenate([np.zeros(lead, np.float32), item.sound()])
        text, start_s, end_s = model.window(samples, timestamps=timestamps)
        pairs.append((item.text, text))
        by_voice.setdefault(item.voice.partition("+")[2] or item.voice, []).append(pairs[-1])
        off_start.append(abs(start_s - (lead + item.start) / RATE_HZ))
        off_end.append(abs(end_s - (lead + item.end) / RATE_HZ))
    errors = word_errors(pairs)
    figures: dict[str, Any] = {"wer": round(errors.rate, 5), "words": errors.n_words, "texts": errors.n_texts}
    figures["cer"] = round(character_error_rate(pairs), 5)
    figures["exact"] = round(errors.n_exact / max(1, errors.n_texts), 4)
    if timestamps:
        late = [a > 0.3 or b > 0.3 for a, b in zip(off_start, off_end, strict=True)]
        figures["time_error_s"] = round(float(np.mean(off_start + off_end)), 4)
        figures["beyond_0.3_s"] = round(sum(late) / max(1, len(late)), 4)
    figures["by_voice"] = {name: round(word_errors(p).rate, 4) for name, p in sorted(by_voice.items()) if len(p) > 5}
    figures["wrong"] = [p for p in pairs if normalise(p[0]) != normalise(p[1])][:12]
    return figures


def agreement(target: Model, draft: Model, items: Sequence[Utterance]) -> dict[str, Any]:
    """Next-token agreement of two models along the target's greedy text (no timestamps).

    A draft of another vocabulary is given the target's text in its own ids.
    """
    n_same = n_all = 0
    theirs, ours = target.bundle.tokenizer, draft.bundle.tokenizer
    for item in items:
        found = target.segments(item.sound(), timestamps=False)
        ids = [id_ for segment in found for id_ in segment.tokens if id_ < theirs.special.eot]
        if theirs.ranks[: theirs.special.eot] != ours.ranks[: ours.special.eot]:
            ids = ours.encode(theirs.decode(ids))
        best = draft.next_tokens(item.sound(), ids)
        n_same += sum(a == b for a, b in zip(best, [*ids, ours.special.eot], strict=True))
        n_all += len(ids) + 1
    return {"agreement": round(n_same / max(1, n_all), 4), "tokens": n_all}


def evaluate(
    model: Path,
    speech: Path,
    *,
    limit: int,
    n_recordings: int = 4,
    draft: Path | None = None,
    audio_context: str | None = None,
) -> dict[str, Any]:
    """All figures of a model as a dict of plain values."""
    dev = read_dev(speech)
    report: dict[str, Any] = {"model": str(model)}
    with opened(model, audio_context) as loaded:
        for name in (*_DEV_LISTS, "maintenance-seen", "notes-seen"):
            items = dev.get(name, [])[:limit]
            for timestamps in loaded.ways:
                figures = _list_figures(items, loaded, timestamps=timestamps)
                report[f"{name}{' timestamps' if timestamps else ''}"] = figures
        digits = _list_figures(dev.get("digits-dev", [])[:limit], loaded, timestamps=False)
        report["digits"] = {"digit_error": digits.pop("wer"), "digits": digits.pop("words"), **digits}
        for timestamps in loaded.ways:
            texts = [(name, loaded.window(window, timestamps=timestamps)[0]) for name, window in quiet_windows()]
            heard = [pair for pair in texts if pair[1]]
            report[f"quiet{' timestamps' if timestamps else ''}"] = {
                "windows": len(texts),
                "empty": len(texts) - len(heard),
                "heard": heard,
            }
        report["long"] = [_long_figures(dev, loaded, seed) for seed in range(n_recordings)]
        report["long together"] = _together(report["long"])
        if draft is not None:
            with opened(draft) as other:
                for name in _DEV_LISTS:
                    report[f"agreement {name}"] = agreement(loaded, other, dev[name][:limit])
    return report


def _long_figures(dev: dict[str, list[Utterance]], model: Model, seed: int) -> dict[str, Any]:
    samples, truth = long_form(dev[_DEV_LISTS[seed % 2]], seed)
    found = [(segment.text.strip(), segment.start, segment.end) for segment in model.segments(samples, timestamps=True)]
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
    """The figures of all recordings together."""
    complete = [figures for figures in recordings if "worst_start_s" in figures]
    within = [figures for figures in complete if max(figures["worst_start_s"], figures["worst_end_s"]) <= 0.3]
    return {
        "recordings": len(recordings),
        "complete": len(complete),
        "within_0.3_s": len(within),
        "wer": round(sum(figures["wer"] for figures in recordings) / max(1, len(recordings)), 4),
    }


def _scores(checkpoint: Path, items: Sequence[Utterance]) -> npt.NDArray[np.float64]:
    """`score_on_path` of every head, float64 [n_layers, n_heads], mean over `items`, fed with their right text."""
    import torch
    from transformers import WhisperForConditionalGeneration

    model: Any = WhisperForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    config = model.config
    layout = layout_of(config.vocab_size, "the checkpoint")
    special, encode = layout.special, tokenizer_of(layout.name).encode
    prompt = special.prompt("en" if special.is_multilingual else None, timestamps=False)
    total = np.zeros((config.decoder_layers, config.decoder_attention_heads))
    for item in items:
        samples = item.sound()[: 2 * config.max_source_positions * HOP_SAMPLES]
        mel = log_mel(samples, config.num_mel_bins, 2 * config.max_source_positions)
        n_frames = len(samples) // HOP_SAMPLES
        mel[:, n_frames:] = 0.0
        ids = [*prompt, *encode(" " + item.text), special.eot]
        with torch.no_grad():
            found = model(
                input_features=torch.from_numpy(mel[None]),
                decoder_input_ids=torch.tensor([ids]),
                output_attentions=True,
            )
        for layer, attention in enumerate(found.cross_attentions):
            for head, weights in enumerate(attention[0].numpy()):
                heard = weights[len(prompt) - 1 :, : n_frames // 2]
                total[layer, head] += score_on_path(np.log(np.maximum(heard, np.finfo(np.float32).tiny)))
    return total / max(1, len(items))


def write_alignment_heads(checkpoint: Path, speech: Path, *, limit: int, n_keep: int) -> dict[str, Any]:
    """Write the best heads to generation_config.json, and return them with the score of every head."""
    dev = read_dev(speech)
    items = [item for name in _DEV_LISTS for item in dev.get(name, [])]
    random.Random(3).shuffle(items)
    scores = _scores(checkpoint, items[:limit])
    path = checkpoint / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["alignment_heads"] = [list(pair) for pair in best_heads(scores, n_keep)]
    path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return {"heads": config["alignment_heads"], "scores": scores.round(3).tolist()}


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--speech", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--draft", type=click.Path(path_type=Path, exists=True), help="a draft to measure agreement with")
@click.option("--limit", type=int, help="utterances of each list  [default: 400, 40 with --alignment-heads]")
@click.option("--recordings", default=4, show_default=True, help="recordings of ten sentences")
@click.option("--audio-context", type=click.Choice(["auto", "full"]), help="of a window  [default: the model's]")
@click.option("--report", type=click.Path(path_type=Path), help="write the figures here as JSON")
@click.option("--alignment-heads", type=int, help="find so many at most, and write them to the checkpoint")
def main(
    model: Path,
    speech: Path,
    draft: Path | None,
    limit: int | None,
    recordings: int,
    audio_context: str | None,
    report: Path | None,
    alignment_heads: int | None,
) -> None:
    """Measure MODEL (a checkpoint folder or a bundle) on held-out voices."""
    if alignment_heads is not None:
        click.echo(json.dumps(write_alignment_heads(model, speech, limit=limit or 40, n_keep=alignment_heads)))
        return
    if report is not None:
        check_output(report, REPORT)
    figures = evaluate(
        model, speech, limit=limit or 400, n_recordings=recordings, draft=draft, audio_context=audio_context
    )
    text = json.dumps(figures, indent=1)
    if report is not None:
        write_atomic(report, text + "\n", REPORT)
    click.echo(text)


if __name__ == "__main__":
    run_command(main)
