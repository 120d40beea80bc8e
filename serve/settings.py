"""The settings of the server, checked once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from specedge.errors import UsageError
from specedge.runtime.options import CPU

_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_LOOPBACK = ("127.", "::1", "localhost")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `specedge serve` was asked for.

    models: names or folders, the first is the default; () serves all that is installed, and
    one that is fetched where there is none, if `downloads`. parallel: requests in work at
    once; queue: how many may wait besides. unload_after_s: a model that nobody used for so long leaves the memory, 0:
    never. encoder_provider: what encoders run on. wyoming: a URI tcp://, unix:// or stdio://, None for none. zeroconf:
    the name to announce it under, "" for one of its own, None for none. sentences: a file of sentences with {name}, for
    the names that a Wyoming client gives. upload_timeout_s: how long an upload may stand still; grace_s: how long
    requests may go on after SIGTERM.
    """

    models: tuple[str, ...] = ()
    downloads: bool = True
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    cors: tuple[str, ...] = ()
    max_upload_bytes: int = 200 * 10**6
    max_duration_s: float = 4 * 3600
    upload_timeout_s: float = 30
    parallel: int = 8
    queue: int = 16
    threads: int = 0
    encoder_provider: str = CPU
    unload_after_s: float = 0
    grace_s: float = 30
    drafter: str = "auto"
    token_maps: tuple[str, ...] = ()
    remember: bool = False
    page: bool = True
    wyoming: str | None = None
    zeroconf: str | None = None
    sentences: Path | None = None

    def __post_init__(self) -> None:
        for name, is_right, expected in (
            ("port", 0 <= self.port < 1 << 16, "0 to 65535"),
            ("parallel", 1 <= self.parallel <= 64, "1 to 64"),
            ("queue", 0 <= self.queue <= 10_000, "0 to 10000"),
            ("wyoming", _is_wyoming(self.wyoming), "tcp://HOST:PORT, unix:///PATH or stdio://"),
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


def _is_wyoming(uri: str | None) -> bool:
    return uri is None or re.fullmatch(r"tcp://\S+:\d{1,5}|unix://\S+|stdio://", uri) is not None


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
