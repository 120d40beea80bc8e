"""Options of other Whisper commands that do not exist here: each gets an answer of its own instead of a guess."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_SPEAKERS = "specedge does not tell speakers apart; --vad and --word-timestamps give the times that such a tool needs"
_LIVE = "for live audio use `specedge listen`"
_FORMAT = "give the format with -f: "
_CONFIDENCE = "specedge has no colours for confidence; -f json has the log-probability of each segment"

ANSWERS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("--diarize", "--diarization", "--hf-token", "--num-speakers"), _SPEAKERS),
        **dict.fromkeys(("--min-speakers", "--max-speakers", "--speaker-name", "--tinydiarize"), _SPEAKERS),
        **dict.fromkeys(("--live-transcribe", "--live-volume-threshold", "--live-input-device"), _LIVE),
        **dict.fromkeys(("--print-colors", "--print-confidence"), _CONFIDENCE),
        "--json": f"{_FORMAT}-f json",
        "--pretty-json": "-f json writes one line; `python -m json.tool` breaks it into several",
        "--output-json": f"{_FORMAT}-f json",
        "--output-srt": f"{_FORMAT}-f srt",
        "--output-vtt": f"{_FORMAT}-f vtt",
        "--output-txt": f"{_FORMAT}-f txt",
        "--output-lrc": f"{_FORMAT}-f lrc",
        "--output-file": "give a folder with -o; files are named like the inputs",
        "--output": "give a folder with -o; files are named like the inputs",
        "--align-model": "word times come from the model itself: --word-timestamps",
        "--grammar": "specedge has no grammars; --hotwords or a token map (--token-map) tell it what to expect",
        "--num-workers": "one process uses all cores with --threads; --batch-size decodes pieces together",
        "--cpu-threads": "the option is --threads",
        "--processors": "the option is --threads",
        "--flash-attn": "specedge runs on the CPU; leave it out",
    }
)
"""By the option's name, what to do instead."""
