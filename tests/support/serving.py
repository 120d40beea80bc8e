"""A server in a process of its own, for tests of `specedge serve`."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.paths import samples

MAINTENANCE, NOTES = (next(p for p in samples() if p.stem == name) for name in ("maintenance", "notes"))
SAID = "Call the maintenance crew to generator two."
PATHS = re.compile(r"/(?:tmp|home|root|work|usr|var|opt)/|\.tmap|specedge-serve-|site-packages")


@dataclass
class Served:
    """A running server: its process, its address, and what it said."""

    process: subprocess.Popen[str]
    url: str
    lines: list[str] = field(default_factory=list)

    def figure(self, name: str) -> float:
        """A value of /metrics."""
        import httpx

        text = httpx.get(f"{self.url}/metrics").text
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0


@contextlib.contextmanager
def served(
    *arguments: str, environment: dict[str, str] | None = None, temporary: Path | None = None
) -> Iterator[Served]:
    """`specedge serve` with the demo model on a free port; it is killed at the end."""
    command = [sys.executable, "-m", "specedge", "serve", "--port", "0", *arguments]
    extra = {} if temporary is None else {"TMPDIR": str(temporary)}
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        env={**os.environ, **extra, **(environment or {})},
    )  # fmt: skip
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r" on (http://\S+)", line):
            break
    else:
        raise AssertionError("".join(lines))
    server = Served(process, found[1], lines)
    drain = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
    drain.start()
    try:
        yield server
    finally:
        process.kill()
        process.wait()
        drain.join()
        process.stderr.close()
