"""Every option that takes a number, with numbers that nobody expects: it works, or it is one line that names it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from specedge.errors import UsageError
from specedge.runtime.cli import main
from specedge.runtime.cli.options import Value
from specedge.runtime.cli.transcribe import transcribe as command
from specedge.runtime.options import TranscribeOptions
from support.fake_cli import wav

ODD = ("0", "-1", "1e308", "-1e308", "1e-308", "5e-324", "inf", "-inf", "nan", "1e400", str(10**30), "-" + "9" * 30)
# What an option does nothing without.
WITH = {
    "patience": ("--beam-size", "2"),
    "best_of": ("--temperature", "0.5"),
    "seed": ("--temperature", "0.5"),
    "length_penalty": ("--temperature", "0.5", "--best-of", "2"),
    "temperature_increment_on_fallback": ("--log-prob-threshold", "5"),
    "prompt_reset_on_temperature": ("--log-prob-threshold", "5"),
    "max_initial_timestamp": ("--window-end", "pause"),
}


def numbers() -> Iterator[tuple[str, str, bool]]:
    """The parameter's name, an option of it, and whether it takes several with commas between."""
    for param in command.params:
        if isinstance(param, click.Option) and isinstance(param.type, Value):
            assert param.name is not None
            if "Phrases" not in str(param.type.kind):
                yield param.name, max(param.opts, key=len), "tuple" in str(param.type.kind)


@pytest.mark.parametrize(("name", "option", "several"), list(numbers()))
def test_odd_numbers(
    name: str,
    option: str,
    several: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: list[Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    wav("a.wav", 1.0)
    values = list(ODD)
    if several:
        values += [f"{one},{other}" for one, other in itertools.product(("0", "1e308", "-1"), ("1e308", "1e-308"))]
    for value in values:
        code = main.main(["transcribe", "a.wav", "-q", *WITH.get(name, ()), f"{option}={value}"])
        captured = capsys.readouterr()
        assert code in (0, 2), f"{option}={value}: {captured.err}"
        assert captured.err.count("\n") == (code == 2), f"{option}={value}: {captured.err}"
        assert code == 0 or name.removeprefix("vad_") in captured.err or option in captured.err, captured.err


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("beam_size", 65, "1 to 64"),
        ("beam_size", 10_000_000, "1 to 64"),
        ("best_of", 1_000_000_000, "1 to 64"),
        ("patience", 1e308, "a number above 0, at most 1000"),
        ("clip_timestamps", (1e308,), "times in seconds that never decrease, at most 1e+09"),
        ("max_initial_timestamp", 1e308, "0 to 1e+09 seconds, or None"),
        ("repetition_penalty", 1e308, "a number from 0.001 to 1000"),
        ("repetition_penalty", 1e-308, "a number from 0.001 to 1000"),
    ],
)
def test_limits_hold_for_programs_too(name: str, value: Any, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        TranscribeOptions(**{name: value})
    assert str(caught.value) == f"{name}: got {value!r}, expected {expected}"
