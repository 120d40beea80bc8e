"""What a transcription looks like in answers: OpenAI's shapes, and who drafted each token in specedge's own.

Shapes: https://platform.openai.com/docs/api-reference/audio
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from specedge.runtime.device import load_profile
from specedge.runtime.longform.segments import DraftedSegment, Segment, TranscriptionInfo
from specedge.runtime.output.report import token_texts
from specedge.runtime.text.special import LANGUAGE_NAMES
from specedge.runtime.text.tokenizer import Tokenizer

from .jobs import Job

_FIELDS = "seek start end text tokens temperature avg_logprob compression_ratio no_speech_prob".split()
_NEW_PASS: dict[str, Any] = {"drafter": None, "rows": 0, "accepted": 0}


def event(kind: str | None = None, **fields: Any) -> str:
    """An event of a stream."""
    value = fields if kind is None else {"type": kind, **fields}
    return f"data: {json.dumps(value, allow_nan=False)}\n\n"


def text_of(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments).strip()


def usage(info: TranscriptionInfo) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(info.duration)}


def drafted(segment: Segment, tokenizer: Tokenizer) -> dict[str, Any]:
    """`tokens` and `passes` of a segment: who drafted each token, and what each pass did.

    Characters whose bytes come from several tokens are the last one's. A pass ends with a token of the model's own.
    """
    sources = getattr(segment, "sources", ()) or ("",) * len(segment.tokens)
    rows = getattr(segment, "n_drafted", ()) or (0,) * len(segment.tokens)
    *texts, rest = token_texts(segment.tokens, tokenizer)
    tokens, passes = [], [dict(_NEW_PASS)]
    for text, source, n_rows in zip(texts, sources, rows, strict=True):
        now = passes[-1]
        now["rows"] = n_rows
        if source:
            now["accepted"] += 1
            now["drafter"] = source
        if text:
            tokens.append({"text": text, "by": source or None, "pass": len(passes) - 1})
        if not source:
            passes.append(dict(_NEW_PASS))
    if rest:
        tokens.append({"text": rest, "by": None, "pass": max(len(passes) - 2, 0)})
    if not sources or not sources[-1]:
        passes.pop()
    return {"tokens": tokens, "passes": passes}


def figures(job: Job) -> dict[str, Any]:
    """Times and counters of a whole transcription."""
    info, said = job.info, job.info.speculation
    profile = load_profile(job.model.bundle.digest, job.model.threads)
    tokens = said.get("tokens", 0)
    return {
        "duration_s": round(info.duration, 3),
        "encode_s": said.get("encoder_s"),
        "decode_s": round((said.get("decoder_s") or 0) + (said.get("draft_s") or 0), 3),
        "real_time_factor": round(job.total_s / info.duration, 4) if info.duration else None,
        "tokens": tokens,
        "passes": said.get("passes", 0),
        "encoder_provider": info.encoder_provider,
        "tokens_per_pass": said.get("tokens_per_pass"),
        "plain_decode_s": None if profile is None else round(tokens * profile.pass_s[1], 3),
    }


def logprobs(segments: Sequence[Segment], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Of each token of the text."""
    found = []
    for segment in segments:
        values = segment.logprobs if isinstance(segment, DraftedSegment) else ()
        for token, logprob in zip(segment.tokens, values, strict=True):
            data = tokenizer.decode_bytes([token])
            if data:
                text = data.decode("utf-8", "replace")
                found.append({"token": text, "logprob": _number(logprob), "bytes": list(data)})
    return found


def words(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """With their times, in seconds."""
    found = [word for segment in segments for word in segment.words or []]
    return [{"word": word.word.strip(), "start": word.start, "end": word.end} for word in found]


def verbose(segments: Sequence[Segment], job: Job, *, has_drafts: bool) -> dict[str, Any]:
    """`verbose_json`."""
    info, items = job.info, []
    for number, segment in enumerate(segments):
        items.append({"id": number, **{name: _number(getattr(segment, name)) for name in _FIELDS}})
        if has_drafts:
            found = drafted(segment, job.model.bundle.tokenizer)
            items[-1] |= {"tokens_by": found["tokens"], "passes": found["passes"]}
    answer: dict[str, Any] = {
        "task": job.options.task,
        "language": LANGUAGE_NAMES.get(info.language, info.language),
        "duration": info.duration,
        "text": text_of(segments),
        "segments": items,
        "usage": usage(info),
        "encoder_provider": info.encoder_provider,
    }
    if job.options.word_timestamps:
        answer["words"] = words(segments)
    if has_drafts:
        answer["figures"] = figures(job)
    return answer


def _number(value: Any) -> Any:
    return 0.0 if isinstance(value, float) and not math.isfinite(value) else value
