"""The settings of the server, checked once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from specedge.errors import UsageError
from specedge.runtime.options import AUTO_PROVIDER, DRAFTERS, ENCODER_PROVIDERS, described
from specedge.runtime.text.phrases import Phrases, phrases, sentences

_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_limits = partial(described, group="Limits")
_wyoming = partial(described, group="Wyoming")
_LOOPBACK = ("127.", "::1", "localhost")


def parse_bytes(text: str) -> int:
    """`200MB`, `1.5G` or a number of bytes. Raises UsageError."""
    return int(_parse(text, r"([kmg]?)i?b?", _BYTES, "a size such as 200MB"))


def parse_seconds(text: str) -> float:
    """`4h`, `30m`, `90s` or a number of seconds. Raises UsageError."""
    return _parse(text, r"([smh]?)", _SECONDS, "a time such as 4h, 30m or 90s")


def _parse(text: str, unit: str, units: dict[str, int], expected: str) -> float:
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*" + unit, text.strip().lower())
    if found is None or not 0 < float(found[1]) * units[found[2]] <= 10**15:
        raise UsageError(f"got {text[:40]!r}, expected {expected}")
    return float(found[1]) * units[found[2]]


_times = partial(_limits, metavar="TIME", parse=parse_seconds)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `specedge serve` was asked for. Raises UsageError for what cannot be."""

    models: tuple[str, ...] = described(
        (),
        "Model by name or folder, several times for several; the first is the default.",
        names=("--model", "-m"),
        metavar="MODEL",
        default_text="all installed",
    )
    host: str = described("127.0.0.1", "Address to listen on.", metavar="ADDRESS")
    port: int = described(8000, "Port; 0 takes a free one.")
    api_keys: tuple[str, ...] = described(
        (), "Key that clients must send, or several.", names=("--api-key",), metavar="KEY"
    )
    cors: tuple[str, ...] = described((), "Origin whose pages may ask, such as https://example.org.", metavar="ORIGIN")
    threads: int = described(0, "CPU threads.", names=("--threads", "-t"), default_text="by machine")
    encoder_provider: str = described(
        AUTO_PROVIDER, "What the encoder runs on (docs/providers.md).", choices=ENCODER_PROVIDERS
    )
    downloads: bool = described(
        True, "Never fetch a model: where none is installed, stop, as with $HF_HUB_OFFLINE.", names=("--download",)
    )
    drafter: str = described("auto", "Drafter.", choices=DRAFTERS, metavar="NAME")
    token_maps: tuple[str, ...] = described(
        (), "Token map to draft with, or several.", names=("--token-map",), metavar="FILE"
    )
    bias: Phrases | None = described(
        None,
        "Text file of phrases to make likelier, where a request brings none of its own.",
        metavar="FILE[:X]",
        parse=phrases,
    )
    only: Phrases | None = described(
        None,
        "Text file of the only sentences to write, where a request brings none of its own.",
        metavar="FILE",
        parse=sentences,
    )
    remember: bool = described(False, "Keep the n-grams of what was said for later runs.")
    page: bool = described(True, "Serve no page at /.")
    quiet: bool = described(False, "Do not log a line for every request.", names=("--quiet", "-q"))
    max_upload_bytes: int = _limits(
        200 * 10**6,
        "Largest request.",
        names=("--max-upload",),
        metavar="SIZE",
        parse=parse_bytes,
        default_text="200MB",
    )
    max_duration_s: float = _times(4 * 3600, "Longest audio.", names=("--max-duration",), default_text="4h")
    upload_timeout_s: float = _times(
        30, "How long an upload may stand still.", names=("--upload-timeout",), default_text="30s"
    )
    parallel: int = _limits(8, "Requests in work at once.")
    queue: int = _limits(32, "Requests that may wait.")
    sessions: int = _limits(32, "Realtime sessions at once.")
    session_idle_s: float = _times(
        300, "End a realtime session that sends nothing for so long.", names=("--session-idle",), default_text="5m"
    )
    unload_after_s: float = _times(
        0, "Unload a model that nobody uses.", names=("--unload-after",), default_text="never"
    )
    grace_s: float = _times(30, "Time to finish after SIGTERM.", names=("--grace",), default_text="30s")
    wyoming: str | None = _wyoming(None, "Serve Wyoming too: tcp://HOST:PORT, unix://PATH or stdio://.", metavar="URI")
    zeroconf: str | None = _wyoming(None, "Announce it to Home Assistant under this name.", metavar="NAME")

    def __post_init__(self) -> None:
        is_wyoming = re.fullmatch(r"tcp://\S+:\d{1,5}|unix://\S+|stdio://", self.wyoming or "stdio://")
        for name, is_right, expected in (
            ("port", 0 <= self.port < 1 << 16, "0 to 65535"),
            ("parallel", 1 <= self.parallel <= 64, "1 to 64"),
            ("queue", 0 <= self.queue <= 10_000, "0 to 10000"),
            ("sessions", 0 <= self.sessions <= 10_000, "0 to 10000"),
            ("wyoming", is_wyoming is not None, "tcp://HOST:PORT, unix:///PATH or stdio://"),
            ("zeroconf", self.zeroconf is None or (self.wyoming or "").startswith("tcp"), "only with --wyoming tcp://"),
        ):
            if not is_right:
                raise UsageError(f"{name}: got {getattr(self, name)!r}, expected {expected}")
        if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in self.api_keys):
            raise UsageError("api_key: expected printable ASCII without blanks")

    @property
    def is_open(self) -> bool:
        """Whether other machines may use the server without a key."""
        return not self.api_keys and not self.host.startswith(_LOOPBACK)
