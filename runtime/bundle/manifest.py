"""The manifest of a bundle, `specedge.json`, format version 6: what it may say, and the strict parser.

Every key is required and no other key is allowed, except inside `quantisation` and `selfcheck`, which are free-form;
only graphs that not every bundle has may be missing. Another format or version is refused before anything else is
looked at. Array types are NumPy's names ("float32"); an axis of a graph is a size or the name of a free dimension.

The last key, `manifest_sha256`, is the hash of all others (compact JSON, sorted keys, ASCII): a flipped bit in a token
id would else change the text unseen. It is no signature; whoever edits a manifest by hand may remove it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Self

from specedge.errors import BundleError, SpecedgeError, UsageError

from ..options import HEAD_GRAPHS
from ..text.special import SpecialTokens, TokenLayout
from ..text.speech_tokens import SpeechTokens
from .dims import Dims as Dims
from .dims import SpeechDims
from .typed_json import MAX_TEXT, REMEDY, check_keys, check_values, members, parse_object, read_object, refusal, shown

MAX_NAME = 240
MAX_PARTS = 8
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.+-]*[A-Za-z0-9_+-])?")
_A_FILE_NAME = f"a name inside the bundle: at most {MAX_NAME} ASCII letters, digits and _.+- in {MAX_PARTS} parts"
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


def is_file_name(name: str) -> bool:
    """Whether `name` can be the name of a file in a bundle: it means one file inside it on every system."""
    parts = name.split("/")
    is_short = len(name) <= MAX_NAME and len(parts) <= MAX_PARTS
    return is_short and all(map(_PART.fullmatch, parts)) and not any(map(_DEVICE.fullmatch, parts))


FORMAT = "specedge-bundle"
VERSION = 6
MANIFEST_NAME = "specedge.json"
TOKENIZER_NAME = "tokenizer.bin"
DRAFT_FOLDER = "draft"  # where in a bundle its own draft lies, a bundle too
CHECKSUM = "manifest_sha256"
MAX_MANIFEST_BYTES = 4 << 20
DECODER_GRAPH = "decoder"
GRAPH_NAMES = ("encoder", "cross_kv", DECODER_GRAPH)
PROJECTOR_GRAPH = "projector"  # from the encoder's output to rows of a speech LLM
SPEECH_GRAPHS = ("encoder", PROJECTOR_GRAPH, DECODER_GRAPH)
WHISPER, SPEECH = "whisper", "speech"  # kinds of models
ALIGN_GRAPH = "align"  # for word times
MANY_GRAPH = "many"  # several texts or paths in a pass; without it only the best path of a draft is verified
CTC_GRAPH = "ctc"  # the trained head of the drafter ctc
SHORT_ENCODER_GRAPH = "encoder_short"  # for windows that end in silence
LOG_COUNTS = "log_counts"  # its output
PLAIN_ENCODER_GRAPH = "encoder_plain"  # for execution providers other than the CPU's (export/plain_encoder.py)
# Of the decoder, for drafts (export/derived_graphs.py): one that learns, one of common tokens, and rows of vocabularies
LEARN_GRAPH, SHORTLIST_GRAPH, VECTORS_GRAPH = "learn", "shortlist", "vectors"
_NAMED_GRAPHS = (CTC_GRAPH, SHORT_ENCODER_GRAPH, PLAIN_ENCODER_GRAPH, LEARN_GRAPH, SHORTLIST_GRAPH, VECTORS_GRAPH)
OPTIONAL_GRAPHS = (MANY_GRAPH, ALIGN_GRAPH, *_NAMED_GRAPHS, *HEAD_GRAPHS)
PRECISIONS = ("fp32", "int8", "int4")
DTYPES = ("float32", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "bool")
_SHA256, _A_SHA256 = re.compile(r"[0-9a-f]{64}"), "64 lower-case hexadecimal digits (sha256)"
# The one mel recipe of every published Whisper, and the only one runtime/audio/mel.py computes; n_mels is free.
SAMPLE_RATE_HZ = 16_000
N_FFT = 400
HOP_SAMPLES = 160
MAX_FILE_BYTES = 1 << 40
_FREE = ("quantisation", "selfcheck")
_FORMER = {"short_windows": False, "least_positions": 0}  # which are read over where they say so, and refused else


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One input or output of a graph: name, NumPy dtype name, axes (a size, or the name of a free dimension)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @classmethod
    def read_json(cls, value: Any, where: str, key: str) -> Self:
        """See `typed_json.read`; a manifest has hundreds, so sound ones take few calls."""
        if type(value) is dict and value.keys() == {"name", "dtype", "shape"}:
            name, dtype, shape = value["name"], value["dtype"], value["shape"]
            if type(name) is str and name.isprintable() and name and isinstance(dtype, str) and type(shape) is list:
                made = cls(name=name, dtype=dtype, shape=tuple(shape))
                if len(name) <= MAX_TEXT and set(map(type, shape)) <= {int, str} and made.problem() is None:
                    return made
        return read_object(cls, value, where, key)

    def problem(self) -> tuple[str, str] | None:
        """A field that cannot be, and what was expected; None if all can."""
        if self.dtype not in DTYPES:
            return "dtype", "one of " + ", ".join(DTYPES)
        if any([axis == "" or type(axis) is int and axis < 0 for axis in self.shape]):
            return "shape", "sizes or names"
        return None


@dataclass(frozen=True, kw_only=True)
class GraphSpec:
    """One graph: its file in the bundle and its signature, which the engine compares with the session's."""

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def problem(self) -> tuple[str, str] | None:
        for side, specs in (("inputs", self.inputs), ("outputs", self.outputs)):
            if not 1 <= len({spec.name for spec in specs}) == len(specs):
                return side, "one or more tensors with different names"
        return None


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the weights came from: kind ("hub", "folder", ...), id (hub id or file name), revision if one is known."""

    kind: str
    id: str
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """What a file must be: size in bytes and lower-case hexadecimal sha256."""

    size: Annotated[int, 0, MAX_FILE_BYTES]
    sha256: str

    def problem(self) -> tuple[str, str] | None:
        return None if _SHA256.fullmatch(self.sha256) else ("sha256", _A_SHA256)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The parsed `specedge.json`; building one by hand checks nothing, `to_bytes` does.

    `suppress_tokens` and `suppress_begin` are token ids; `alignment_heads` are (layer, head) of the decoder;
    `max_initial_timestamp_index` counts steps of `tokens.time_precision_s`, None is no limit.
    """

    name: str
    specedge_version: str
    source: Source
    precision: str
    dims: Dims
    window_s: float
    tokens: TokenLayout
    suppress_tokens: tuple[int, ...]
    suppress_begin: tuple[int, ...]
    max_initial_timestamp_index: int | None
    alignment_heads: tuple[tuple[int, int], ...]
    graphs: Mapping[str, GraphSpec]
    quantisation: Mapping[str, Any]
    selfcheck: Mapping[str, Any]
    vocabulary_sha256: str
    files: Mapping[str, FileEntry]
    kind: str = WHISPER

    @property
    def graph_names(self) -> tuple[str, str, str]:
        """The graphs of a transcription: encoder, what follows it once a window, decoder."""
        return SPEECH_GRAPHS if self.kind == SPEECH else GRAPH_NAMES

    @property
    def whisper_tokens(self) -> SpecialTokens:
        """The special tokens of a Whisper. Raises UsageError for another kind of model."""
        if not isinstance(self.tokens, SpecialTokens):
            raise UsageError(f"{self.name} is a speech LLM, and this needs a Whisper model; give one with -m")
        return self.tokens

    @property
    def n_frames(self) -> int:
        """Mel frames of one window."""
        return self.dims.n_frames

    @property
    def _mel(self) -> dict[str, int]:
        recipe = {"sample_rate_hz": SAMPLE_RATE_HZ, "n_fft": N_FFT, "hop_samples": HOP_SAMPLES}
        return {"n_mels": self.dims.n_mels, **recipe}

    @property
    def n_samples(self) -> int:
        """Samples of one window at SAMPLE_RATE_HZ."""
        return self.n_frames * HOP_SAMPLES

    def to_json(self) -> dict[str, Any]:
        """The manifest as JSON values in a fixed order. Raises BundleError where a free-form part is no JSON value."""
        value = {field.name: getattr(self, field.name) for field in fields(self)}
        check_values([dict(self.quantisation), dict(self.selfcheck)], MANIFEST_NAME)
        value |= {name: json.loads(json.dumps(dict(value[name]), sort_keys=True)) for name in _FREE}
        value |= {
            "source": asdict(self.source),
            "dims": asdict(self.dims),
            "tokens": self.tokens.to_json(),
            "graphs": {name: asdict(self.graphs[name]) for name in sorted(self.graphs)},
            "files": {name: vars(self.files[name]) for name in sorted(self.files)},
        }
        value = {"format": FORMAT, "version": VERSION, **value, "mel": self._mel}
        plain: dict[str, Any] = json.loads(json.dumps(value))
        return {**plain, CHECKSUM: _checksum(plain)}

    def to_bytes(self) -> bytes:
        """The bytes of `specedge.json`, which can be read. Raises BundleError where a rule of the format is broken."""
        value = self.to_json()
        Manifest.from_json(value, MANIFEST_NAME)
        # Lines without indentation: with it, Python's own encoder takes over, which is slow.
        return (json.dumps(value, ensure_ascii=False, separators=(",\n", ": ")) + "\n").encode("utf-8")

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """Parse the bytes of a `specedge.json`; `where` names the file in messages. Raises BundleError."""
        if len(data) > MAX_MANIFEST_BYTES:
            raise BundleError(f"{where}: larger than {MAX_MANIFEST_BYTES >> 20} MiB; {REMEDY}")
        return cls.from_json(parse_object(data, where), where)

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> Self:
        """Parse JSON values as `json.loads` gives them; `where` names the file in messages.

        Raises BundleError for another format or version, a key that is missing or unknown, a value that cannot be.
        """
        if value.get("format") != FORMAT:
            raise BundleError(f"{where}: no specedge bundle, the key 'format' must be {FORMAT!r}; {REMEDY}")
        version = value.get("version")
        if type(version) is not int or version != VERSION:
            raise BundleError(
                f"{where}: found version {shown(version)} of the bundle format, and this specedge reads version "
                f"{VERSION}: export or pull the model again, or upgrade specedge (pip install -U specedge)"
            )
        check_values(dict(value), where)
        names = [field.name for field in fields(cls)]
        others = [*({CHECKSUM} & value.keys()), *(key for key, usual in _FORMER.items() if value.get(key) == usual)]
        check_keys(value, dict.fromkeys(("format", "version", *names, "mel", *others)), where)
        kind: type[Dims] = SpeechDims if value["kind"] == SPEECH else Dims
        graphs = members(value["graphs"], where, "graphs")
        known = [*(SPEECH_GRAPHS if value["kind"] == SPEECH else GRAPH_NAMES), *(graphs.keys() & set(OPTIONAL_GRAPHS))]
        check_keys(graphs, dict.fromkeys(known), where, "graphs")
        found = {name: value[name] for name in names}
        manifest = read_object(cls, found, where, dims=kind, tokens=Any)
        if value["mel"] != manifest._mel:
            raise refusal(value["mel"], where, "mel", f"the mel recipe of this specedge, {manifest._mel}")
        manifest = replace(manifest, tokens=_read_tokens(value["tokens"], where, manifest))
        _check_agreement(manifest, where)
        # Last, so that a better-known fault is named first.
        if CHECKSUM in value and value[CHECKSUM] != _checksum(value):
            raise BundleError(f"{where}: {CHECKSUM}: the manifest was changed after it was written; {REMEDY}")
        return manifest

    def problem(self) -> tuple[str, str] | None:
        expected_s = self.n_samples / SAMPLE_RATE_HZ
        for name, is_right, expected in (
            ("precision", self.precision in PRECISIONS, "one of " + ", ".join(PRECISIONS)),
            ("kind", self.kind in (WHISPER, SPEECH), f"{WHISPER} or {SPEECH}"),
            ("vocabulary_sha256", _SHA256.fullmatch(self.vocabulary_sha256), _A_SHA256),
            (
                "window_s",
                math.isfinite(self.window_s) and round(self.window_s * SAMPLE_RATE_HZ) == self.n_samples,
                f"{expected_s:g}, for n_audio_ctx is {self.dims.n_audio_ctx}",
            ),
        ):
            if not is_right:
                return name, expected
        return None


def _checksum(value: Mapping[str, Any]) -> str:
    body = json.dumps({key: value[key] for key in value if key != CHECKSUM}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(body.encode("ascii")).hexdigest()


def _read_tokens(value: Any, where: str, manifest: Manifest) -> TokenLayout:
    kind = SpeechTokens if manifest.kind == SPEECH else SpecialTokens
    found = members(value, where, "tokens")
    try:
        return kind.from_json(found, manifest.dims.n_vocab)
    except SpecedgeError as error:
        reason = str(error)[:300]
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
        reason = "not the special tokens of a vocabulary"
    raise BundleError(f"{where}: tokens: {reason}; {REMEDY}")


def _check_agreement(manifest: Manifest, where: str) -> None:
    """Raise BundleError where one part of the manifest does not fit another."""
    dims = manifest.dims
    _check_range(manifest.suppress_tokens, dims.n_vocab, where, "suppress_tokens")
    _check_range(manifest.suppress_begin, dims.n_vocab, where, "suppress_begin")
    _check_range((manifest.max_initial_timestamp_index or 0,), dims.n_vocab + 1, where, "max_initial_timestamp_index")
    for i, (layer, head) in enumerate(manifest.alignment_heads):
        _check_range((layer,), dims.n_text_layer, where, f"alignment_heads[{i}][0]")
        _check_range((head,), dims.n_text_head, where, f"alignment_heads[{i}][1]")
    folded: dict[str, str] = {}
    for name in sorted(manifest.files):
        if name == MANIFEST_NAME or not is_file_name(name):
            raise refusal(name, where, "files", _A_FILE_NAME)
        twin = folded.setdefault(name.lower(), name)
        if twin != name:
            raise BundleError(f"{where}: files: {shown(twin)} and {shown(name)} differ in case only; {REMEDY}")
    for name, graph in manifest.graphs.items():
        if graph.file not in manifest.files:
            raise BundleError(f"{where}: graphs.{name}.file: {shown(graph.file)} is not among the files; {REMEDY}")
    if TOKENIZER_NAME not in manifest.files:
        raise BundleError(f"{where}: files: {TOKENIZER_NAME!r} is missing; {REMEDY}")


def _check_range(values: tuple[int, ...], end: int, where: str, key: str) -> None:
    if values and not 0 <= min(values) <= max(values) < end:
        wrong = next(value for value in values if not 0 <= value < end)
        raise refusal(wrong, where, key, f"an integer from 0 to {end - 1}")


def require_align(manifest: Manifest, where: object) -> None:
    """Raises BundleError when the bundle at `where` lacks what word times need, UsageError for a speech LLM."""
    if manifest.kind == SPEECH:
        raise UsageError(
            f"{manifest.name} is a speech LLM, which has no cross-attention to read word times from; leave them "
            "out, or give a Whisper model"
        )
    if ALIGN_GRAPH not in manifest.graphs:
        raise BundleError(f"{where}: this bundle has no graph for word timestamps; export the model again")


_MIN_SHARE = 0.3  # of the published vocabularies 58 % are alike


def check_fit(draft: Manifest, target: Manifest, option: str = "draft_model") -> None:
    """Raises UsageError, which begins with the `option` that named the draft, when it cannot draft for `target`."""
    if draft.kind == SPEECH and not _hear_alike(draft, target):
        raise UsageError(
            f"{option}: {draft.name} is a speech LLM, which drafts only for a larger one of its own layout; give a "
            "Whisper model instead"
        )
    if target.kind == draft.kind and is_larger(draft, target):
        raise UsageError(
            f"{option}: the decoder of {draft.name} is larger than that of {target.name}, so it cannot save time; "
            "give a smaller model, or swap the two"
        )
    if draft.n_frames < target.n_frames:
        raise UsageError(
            f"{option}: {draft.name} hears windows of {draft.window_s:g} s, expected {target.window_s:g} s or more, "
            f"as {target.name} does"
        )
    here, there = (set(manifest.tokens.languages) or {"en"} for manifest in (draft, target))
    if not (here <= there or there <= here):
        raise UsageError(
            f"{option}: {draft.name} knows other languages than {target.name} ({', '.join(sorted(here - there)[:4])}"
            f" but not {', '.join(sorted(there - here)[:4])}); give a draft of the same languages, or of English alone"
        )


def _hear_alike(draft: Manifest, target: Manifest) -> bool:
    """Whether two speech LLMs are asked with the same ids, and make as many rows of any audio."""
    n_frames = (1, draft.n_frames // 3, draft.n_frames)
    sizes = [[dims.n_mels, dims.n_frames, *map(dims.positions, n_frames)] for dims in (draft.dims, target.dims)]
    is_asked_alike = isinstance(draft.tokens, SpeechTokens) and draft.tokens.is_asked_like(target.tokens)
    return is_asked_alike and sizes[0] == sizes[1]


def check_share(share: float, draft: Manifest, target: Manifest, option: str = "draft_model") -> None:
    """Raises UsageError when too small a share of the smaller vocabulary's text tokens are in both."""
    if share < _MIN_SHARE:
        raise UsageError(
            f"{option}: {draft.name} and {target.name} have only {share:.0%} of the smaller vocabulary in common, "
            f"expected {_MIN_SHARE:.0%} or more: give a draft of a Whisper vocabulary"
        )


def is_larger(draft: Manifest, target: Manifest) -> bool:
    """Whether the draft's decoder has more weights, so that its drafts save passes of the target and no time."""
    weights = [
        dims.n_text_layer * 16 * dims.n_text_state**2 + dims.n_vocab * dims.n_text_state
        for dims in (draft.dims, target.dims)
    ]
    return weights[0] > weights[1]


def graph_bytes(manifest: Manifest, graph: str) -> int:
    """Bytes of a graph's files, 1 at least: about what a pass reads."""
    return max(1, sum(entry.size for entry in graph_files(manifest, graph).values()))


def graph_files(manifest: Manifest, graph: str) -> dict[str, FileEntry]:
    """The files of a graph by name: itself, and its weights."""
    stem = manifest.graphs[graph].file.removesuffix(".onnx")
    return {name: manifest.files[name] for name in (f"{stem}.onnx", f"{stem}.data") if name in manifest.files}
