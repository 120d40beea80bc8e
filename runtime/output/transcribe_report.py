"""What the command says about a transcription when it is done: its languages and length, and where the time went.

Times of the encoder, the decoder and the drafter stand side by side, because speculation speeds up the decoder alone.
Does not know: the terminal, files, how any of it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from specedge.runtime.decoding.statistics import calls_per_word
from specedge.runtime.longform.transcribe import Transcription
from specedge.runtime.longform.windows import frames_to_s
from specedge.runtime.progress import clock

__all__ = ["describe", "statistics"]


def describe(transcription: Transcription, duration_s: float, n_segments: int) -> str:
    """One line such as `9:36 of audio, language de (0.98), 120 segments`."""
    language = transcription.language or "unknown"
    probability = transcription.language_probabilities.get(language)
    sure = "" if probability is None else f" ({probability:.2f})"
    segments = "segment" if n_segments == 1 else "segments"
    return f"{clock(duration_s)} of audio, language {language}{sure}, {n_segments} {segments}"


def statistics(transcription: Transcription, duration_s: float, total_s: float, n_words: int) -> Iterator[str]:
    """Lines of `--stats`: the times in seconds, and the counters of speculation; `n_words` are the text's."""
    counted = transcription.speculation
    parts = {"encoder": transcription.encoder_s, "decoder": counted.decoder_s, "draft": counted.draft_s}
    parts["other"] = max(total_s - sum(parts.values()), 0.0)
    shares = ", ".join(f"{name} {seconds:.2f} s{_share(seconds, total_s)}" for name, seconds in parts.items())
    speed = f" ({duration_s / total_s:.1f}x)" if total_s > 0 else ""
    yield f"{duration_s:.1f} s of audio in {total_s:.2f} s{speed}: {shares}"
    per_pass = "" if counted.tokens_per_pass is None else f", {counted.tokens_per_pass:.2f} a pass"
    yield f"{counted.tokens} tokens in {counted.passes} passes{per_pass}"
    calls = calls_per_word(counted.passes, n_words)
    if calls is not None and duration_s > 0:
        factor = (counted.decoder_s + counted.draft_s) / duration_s
        yield f"{calls:.2f} passes a word, decoder real-time factor {factor:.3f}"
    rate = "" if counted.acceptance_rate is None else f" ({counted.acceptance_rate:.0%} of the evaluated)"
    yield (
        f"drafter {counted.drafter}: {counted.proposed} tokens proposed, {counted.evaluated} evaluated, "
        f"{counted.accepted} accepted{rate}, {counted.bonus} passes accepted whole"
    )
    if counted.choice:
        yield f"{counted.drafter} chose {counted.choice}"
    if not counted.lossless:
        yield "drafts were kept by a rule that may change the text"
    context = transcription.audio_context
    if context.n_heard < context.n_whole:
        yield (
            f"audio context {context.asked}: {frames_to_s(context.n_heard):.1f} s encoded of windows of "
            f"{frames_to_s(context.n_whole):.1f} s"
            + (", which this model was not trained for: its text may loop" if context.is_lossy else "")
        )
    learning = counted.learning
    if learning is not None:
        back = f", rolled back {learning.rollbacks} times" if learning.rollbacks else ""
        share = _share(learning.seconds, total_s)
        yield f"learning: {learning.updates} updates in {learning.seconds:.2f} s{share}{back}"
    if counted.suspected_loops:
        windows = "window" if counted.suspected_loops == 1 else "windows"
        yield f"suspected loops: {counted.suspected_loops} {windows} in which the text may go round in a circle"


def _share(seconds: float, total_s: float) -> str:
    return f" ({seconds / total_s:.0%})" if total_s > 0 else ""
