"""openai-whisper's writers and its command's parser, without the torch that importing the package takes.

Both are read from the installed files; a test that asks for one is skipped where openai-whisper is not installed.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import io
import json
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specedge.runtime.longform.segments import Segment
from specedge.runtime.output.formats import SubtitleOptions
from specedge.runtime.text.special import LANGUAGE_NAMES


def _folder() -> Path:
    spec = importlib.util.find_spec("whisper")
    folder = Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else Path()
    if not (folder / "utils.py").is_file():
        pytest.skip("openai-whisper is not installed")
    return folder


@cache
def utils() -> ModuleType:
    """`whisper.utils`."""
    spec = importlib.util.spec_from_file_location("openai_whisper_utils", _folder() / "utils.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parser() -> argparse.ArgumentParser:
    """The parser of the command `whisper`, made by its own lines."""
    tree = ast.parse((_folder() / "transcribe.py").read_text(encoding="utf-8"))
    cli = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "cli")
    made = argparse.ArgumentParser()
    names = {
        **vars(utils()),
        "parser": made,
        "valid_model_name": str,
        "torch": SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)),
        "LANGUAGES": LANGUAGE_NAMES,
        "TO_LANGUAGE_CODE": {name: code for code, name in LANGUAGE_NAMES.items()},
    }
    calls = [node for node in cli.body if isinstance(node, ast.Expr) and "parser.add_argument" in ast.unparse(node)]
    exec(compile(ast.Module(body=calls, type_ignores=[]), "whisper", "exec"), names)
    return made


def result(segments: list[Segment], text: str = "", language: str = "en") -> dict[str, Any]:
    """What openai-whisper's `transcribe` would return."""
    return {"text": text, "segments": [_segment(segment) for segment in segments], "language": language}


def written(format: str, segments: list[Segment], options: SubtitleOptions | None = None, text: str = "") -> str:
    """The file that openai-whisper's writer makes of these segments."""
    file = io.StringIO()
    given = {} if options is None else {name: getattr(options, name) for name in options.__dataclass_fields__}
    utils().get_writer(format, "").write_result(result(segments, text), file=file, **given)
    return file.getvalue()


def _segment(segment: Segment) -> dict[str, Any]:
    names = ("id", "seek", "start", "end", "text", "tokens", "temperature", "avg_logprob", "compression_ratio")
    fields = {name: getattr(segment, name) for name in (*names, "no_speech_prob")}
    if segment.words is not None:
        fields["words"] = [
            {"word": w.word, "start": w.start, "end": w.end, "probability": w.probability} for w in segment.words
        ]
    return json.loads(json.dumps(fields))
