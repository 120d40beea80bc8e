"""Switches with and without a word after them, values with commas, None, and groups in the help."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from specedge.runtime.cli.options import GroupedCommand, GroupedOption, Names, Value


def parse(*args: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    @click.command(
        cls=GroupedCommand,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": lambda n: n.replace("_", "-"),
        },
    )
    @click.argument("files", nargs=-1)
    @click.option("-w", "--words", cls=GroupedOption, is_switch=True, is_flag=False, type=bool, default=False)
    @click.option("--blank-text", cls=GroupedOption, is_switch=True, is_flag=False, type=bool, default=True)
    @click.option("--no-times", cls=GroupedOption, is_switch=True, is_flag=False, type=bool, default=False)
    @click.option("-f", "--format", cls=GroupedOption, type=Names(("a", "b", "c")), default=("a",), group="Text")
    @click.option("--prompt", cls=GroupedOption, group="Text")
    @click.option("--number", cls=GroupedOption, type=Value(float | None), default=1.0)
    @click.option("--count", cls=GroupedOption, type=Value(int))
    @click.option("--ids", cls=GroupedOption, type=Value(tuple[int, ...] | None), default=(-1,), shown="--ids IDS")
    @click.option("-q", "--quiet", cls=GroupedOption, is_flag=True)
    @click.option("--secret", cls=GroupedOption, hidden=True)
    @click.option("--rare", cls=GroupedOption, is_usual=False, group="Text")
    def command(**given: Any) -> None:
        seen.update(given)

    done = CliRunner().invoke(command, args)
    return {**seen, "exit": done.exit_code, "output": done.output, "error": done.exception}


@pytest.mark.parametrize(
    ("args", "words", "files"),
    [
        ([], False, ()),
        (["--words"], True, ()),
        (["-w"], True, ()),
        (["--words", "a.wav"], True, ("a.wav",)),
        (["a.wav", "--words"], True, ("a.wav",)),
        (["--words", "True", "a.wav"], True, ("a.wav",)),
        (["--words", "False", "a.wav"], False, ("a.wav",)),
        (["--words", "false"], False, ()),
        (["--words=False", "True"], False, ("True",)),
        (["--no-words", "False"], False, ("False",)),
        (["--words", "--no-words"], False, ()),
        (["--", "--words"], False, ("--words",)),
        (["--words", "--", "False"], True, ("False",)),
        (["-f", "a", "--words", "-q", "x"], True, ("x",)),
    ],
)
def test_switches(args: list[str], words: bool, files: tuple[str, ...]) -> None:
    seen = parse(*args)
    assert (seen["words"], seen["files"]) == (words, files)


def test_a_switch_that_is_on_is_turned_off() -> None:
    assert parse()["blank_text"] is True
    for args in (["--no-blank-text"], ["--blank-text", "False"], ["--blank_text=False"], ["--no_blank_text"]):
        assert parse(*args)["blank_text"] is False, args
    assert parse("--blank-text")["blank_text"] is True
    assert parse("--no-times")["no_times"] is True
    assert parse("--no-times", "False")["no_times"] is False


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        (["--number", "None"], "number", None),
        (["--number", "-2.5"], "number", -2.5),
        (["--number", "inf"], "number", float("inf")),
        (["--count", "3"], "count", 3),
        (["--ids", "-1"], "ids", (-1,)),
        (["--ids", "1, 2,3"], "ids", (1, 2, 3)),
        (["--ids", ""], "ids", ()),
        (["--ids", "None"], "ids", None),
        (["-f", "b,a,b"], "format", ("b", "a")),
        (["-f", "ALL"], "format", ("a", "b", "c")),
        (["-f", "b,all"], "format", ("a", "b", "c")),
    ],
)
def test_values(args: list[str], name: str, value: Any) -> None:
    assert parse(*args)[name] == value


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--number", "x"], "--number: got 'x', expected a number"),
        (["--number", "nan"], "--number: got 'nan', expected a number"),
        (["--count", "None"], "--count: got 'None', expected a whole number"),
        (["--count", "1.5"], "--count: got '1.5', expected a whole number"),
        (["--ids", "1,x"], "--ids: got '1,x', expected a whole number"),
        (["-f", "a,z"], "'z' is not one of a, b, c, all"),
        (["-f", ""], "'' is not one of a, b, c, all"),
        (["--words=x"], "'x' is not a valid boolean"),
    ],
)
def test_bad_values(args: list[str], said: str) -> None:
    seen = parse(*args)
    assert seen["exit"] and said in seen["output"] + str(seen["error"])


def test_help_shows_groups_in_order_and_nothing_hidden() -> None:
    text = parse("--help-all")["output"]
    assert text.index("Options:") < text.index("--words") < text.index("--ids IDS") < text.index("--help")
    assert text.index("--help") < text.index("Text:") < text.index("--prompt")
    assert "secret" not in text and parse("-h", "-v")["output"] == text
    short = parse("--help")["output"]
    assert "--prompt" in short and "--rare" not in short and "--rare" in text
    assert "Show 1 more options, as -h -v does." in short
