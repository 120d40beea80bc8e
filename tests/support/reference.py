"""The parts of docs/cli.md and docs/python.md that are written by a program, so that they cannot become untrue.

    python tests/support/reference.py        # writes both pages

tests/test_docs.py fails while a page differs from what this would write.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

# Run as a program, Python puts this file's folder, not tests/, in front of its path.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import specedge  # noqa: E402
import specedge.fleet  # noqa: E402
from specedge.runtime.cli.options import SHOWS_ALL  # noqa: E402
from specedge.runtime.options import DrafterOptions, TranscribeOptions, described_fields  # noqa: E402
from support.tree import ROOT  # noqa: E402

CLI, PYTHON = ROOT / "docs" / "cli.md", ROOT / "docs" / "python.md"
_COLUMNS = 100
_PARTS = {
    "WhisperModel": ("__init__", "transcribe", "align", "detect_language", "stream"),
    "BatchedInferencePipeline": ("__init__", "transcribe"),
    "LiveTranscriber": ("feed", "finish"),
    "Drafter": ("begin", "propose", "observe", "end", "close"),
}
# What the arguments of `WhisperModel.transcribe` mean that are no field of options.
_MEANINGS = {
    "audio": "A path, `-` for standard input, a binary file, samples `[n_samples]` at 16 kHz, float or int16, or a "
    "stream of `open_audio`.",
    "log_progress": "Show progress on standard error.",
    "vad_filter": "Skip what is not speech.",
    "vad_parameters": "A dict of fields of `VadOptions`, or a `VadOptions`.",
    "chunk_length": "Seconds of a window: None, or the model's own length.",
    "logprob_threshold": "openai-whisper's name for `log_prob_threshold`.",
    "on_progress": "Called with the seconds of audio that are done.",
}
# Arguments that have another name than their field.
_FIELDS = {"drafter": "name", "token_map": "token_maps"}


def help_texts() -> str:
    """The help of every command, each under a heading of its own."""
    from specedge.runtime.cli.main import specedge as command

    return "\n\n".join(_helps(command, "specedge"))


def _helps(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[str]:
    settings = {**command.context_settings, "terminal_width": _COLUMNS, "max_content_width": _COLUMNS}
    command = copy.copy(command)
    command._help_option = None  # click keeps it from the first help, which may have been asked without the parent
    context = click.Context(command, parent=parent, info_name=name.split()[-1], **settings)
    context.meta[SHOWS_ALL] = True
    shown = "\n".join(line.rstrip() for line in click.unstyle(command.get_help(context)).strip().splitlines())
    yield f"## {name}\n\n```text\n{shown}\n```"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from _helps(found, f"{name} {child}", context)


def arguments() -> str:
    """A table of the arguments of `WhisperModel.transcribe`."""
    rows = ["| argument | default | meaning |", "| --- | --- | --- |"]
    signature = inspect.signature(specedge.WhisperModel.transcribe)
    described = [*described_fields(TranscribeOptions), *described_fields(DrafterOptions)]
    meanings = {one.name: about.doc.replace("|", r"\|") for one, about in described} | _MEANINGS
    for name, parameter in list(signature.parameters.items())[1:]:
        default = "" if parameter.default is parameter.empty else f"`{_default(parameter.default)}`"
        rows.append(f"| `{name}` | {default} | {meanings[_FIELDS.get(name, name)]} |")
    return "\n".join(rows)


def public_names() -> str:
    """Every public name: errors in one table, then classes and functions with signature and docstring."""
    public = {name: getattr(specedge, name) for name in specedge.__all__ if name != "__version__"}
    errors = {name: thing for name, thing in public.items() if isinstance(thing, type) and issubclass(thing, Exception)}
    parts = ["### Errors", "", "| error | is a | exit code | raised for |", "| --- | --- | --- | --- |"]
    for name, error in sorted(errors.items(), key=lambda item: (item[1].exit_code, item[0])):
        bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
        parts.append(f"| `{name}` | {bases} | {error.exit_code} | {_first_line(error)} |")
    for name in sorted(public.keys() - errors.keys()):
        parts += ["", f"### {name}", "", _fenced(_shown(name, public[name]))]
    return "\n".join(parts)


def fleet_names() -> str:
    """The public names of `specedge.fleet`, as in `public_names`."""
    names = sorted(specedge.fleet.__all__)
    return "\n\n".join(f"### fleet.{name}\n\n{_fenced(_shown(name, getattr(specedge.fleet, name)))}" for name in names)


def _shown(name: str, thing: Any) -> str:
    """Signature and docstring, then those of the methods that programs call."""
    head = f"class {name}" if isinstance(thing, type) else _call(name, thing)
    text = [head, *_indented(inspect.getdoc(thing))]
    fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
    meanings = {field.name: about.doc for field, about in described_fields(thing)} if fields else {}
    for field in fields:
        if not field.name.startswith("_"):
            text += [*([""] if field is fields[0] else []), f"    {field.name}: {field.type}{_field_default(field)}"]
            text += [f"        {line}" for line in textwrap.wrap(meanings.get(field.name, ""), _COLUMNS - 8)]
    for method in _PARTS.get(name, ()):
        function = inspect.getattr_static(thing, method)
        text += ["", *_lines(_call(method, function), "    ")]
        text += [] if method == "__init__" else [f"    {line}".rstrip() for line in _indented(inspect.getdoc(function))]
    return "\n".join(text)


def _call(name: str, function: Any) -> str:
    """`name(...)` as it is called, over several lines where it is long."""
    signature = inspect.signature(function)
    shown = []
    for parameter in signature.parameters.values():
        default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        if parameter.name != "self":
            annotation = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
            shown.append(f"{star}{parameter.name}{annotation}{default}")
    result = "" if signature.return_annotation in (signature.empty, "None") else f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(shown)}){result}"
    return line if len(line) < _COLUMNS else "\n".join([f"{name}(", *(f"    {part}," for part in shown), f"){result}"])


def _default(value: Any) -> str:
    return "..." if value is ... else repr(value)


def _field_default(field: dataclasses.Field[Any]) -> str:
    return "" if field.default is dataclasses.MISSING else f" = {_default(field.default)}"


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0]


def _indented(text: str | None) -> list[str]:
    return _lines(text or "", "    ")


def _lines(text: str, indent: str) -> list[str]:
    return [f"{indent}{line}".rstrip() for line in text.splitlines()]


def _fenced(text: str) -> str:
    return f"```text\n{text}\n```"


def render(page: Path) -> str:
    """The page with its written parts as they should be."""
    text = page.read_text(encoding="utf-8")
    for name, write in _WRITTEN[page].items():
        begin, end = re.search(rf"<!-- {name}: .*? -->\n\n", text), text.find(f"\n\n<!-- end of {name} -->")
        if begin is None or end < begin.end():
            raise LookupError(f"{page.name} has no part {name!r}")
        text = text[: begin.end()] + write() + text[end:]
    return text


_WRITTEN = {CLI: {"help": help_texts}, PYTHON: {"arguments": arguments, "names": public_names, "fleet": fleet_names}}


if __name__ == "__main__":
    for path in (CLI, PYTHON):
        path.write_text(render(path), encoding="utf-8")
