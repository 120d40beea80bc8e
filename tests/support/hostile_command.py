"""The command `specedge` with a subcommand at which a signal comes at a bad moment: python hostile_command.py WHERE N.

initialiser: while a library is imported that makes an ImportError of every exception, as pybind11 does; finaliser: in a
`__del__`; twice: two of them in an import that takes long.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from pathlib import Path

import click

_LIBRARY = """
import signal, time
try:
    for _ in range({times}):
        signal.raise_signal({number})
    time.sleep({seconds})
except BaseException as error:
    raise ImportError("initialization failed") from error
"""


class _Dropped:
    def __init__(self, number: int) -> None:
        self._number = number

    def __del__(self) -> None:
        signal.raise_signal(self._number)


@click.command()
def hostile() -> None:
    """Meet the signal, and then go on for a while."""
    where, number = sys.argv[1], int(sys.argv[2])
    if where == "finaliser":
        _Dropped(number)
    else:
        times, seconds = (2, 30) if where == "twice" else (1, 0.1)
        with tempfile.TemporaryDirectory() as folder:
            source = _LIBRARY.format(times=times, seconds=seconds, number=number)
            Path(folder, "hostile_library.py").write_text(source, encoding="utf-8")
            sys.path.insert(0, folder)
            __import__("hostile_library")
    time.sleep(5)
    print("nothing came")


def main() -> int:
    from specedge.runtime.cli import main as cli

    cli._COMMANDS["hostile"] = ("hostile_command:hostile", "")
    sys.modules["hostile_command"] = sys.modules[__name__]
    return cli.main(["hostile"])


if __name__ == "__main__":
    raise SystemExit(main())
