"""The manifest of a bundle, `specedge.json`, format versions 1 and 3 to 5: what it may say, and the strict parser.

Every key is required and no other key is allowed, except inside `quantisation` and `selfcheck`, which are free-form;
only the graphs that came later may be missing. Version 3 is version 1 with `short_windows`; version 4 has
`least_positions`, too; version 5 has `kind`, which says that the model is a speech LLM. The lowest that will do is
written. Version 2 was for compact vocabularies and is refused; its
key `token_rows` is null since version 3. An unknown format or a newer version is refused before anything else is
looked at. Array types are NumPy's names ("float32"); an axis of a graph is a size or the name of a free dimension.

The last key, `manifest_sha256`, is the hash of all others (compact JSON, sorted keys, ASCII): a flipped bit in a token
id would else change the text unseen. It is no signature; whoever edits a manifest by hand may remove it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from specedge.errors import BundleError, SpecedgeError, UsageError

from ..options import HEAD_GRAPHS
from ..text.special import SpecialTokens, TokenLayout
from ..text.speech_tokens import SpeechTokens
from .dims import Dims as Dims
from .dims import SpeechDims, read_speech_dims
from .strict_json import REMEDY, Field, check_values, parse_object, plain, shown

MAX_NAME = 240
MAX_PARTS = 8
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.+-]*[A-Za-z0-9_+-])?")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


def name_problem(name: str) -> str | None:
    """Why `name` cannot be the name of a file in a bundle, or None: it must mean one file inside it on every system."""
    parts = name.split("/")
    if len(name) > MAX_NAME or len(parts) > MAX_PARTS:
        return f"is longer than {MAX_NAME} characters or {MAX_PARTS} parts"
    if ".." in parts or name.startswith("/"):
        return "leads outside the bundle"
    if not all(map(_PART.fullmatch, parts)):
        return "is not made of ASCII letters, digits and _ . + - with no dot at a part's beginning or end"
    return "is a device under Windows" if any(map(_DEVICE.fullmatch, parts)) else None


FORMAT = "specedge-bundle"
VERSIONS = (1, 3, 4, 5)
_SINCE = {"short_windows": 3, "least_positions": 4, "kind": 5}  # the version that brought the key
_ROWS, _ROWS_SINCE, _ROWS_VERSION = "token_rows", 3, 2  # the key, null since version 3, and the version it came with
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
OLD_GRAPHS = ("tree",)  # of bundles written before MANY_GRAPH, unused
CTC_GRAPH = "ctc"  # the trained head of the drafter ctc
PLAIN_ENCODER_GRAPH = "encoder_plain"  # for execution providers other than the CPU's (export/plain_encoder.py)
# Of the decoder, for drafts (export/derived_graphs.py): one that learns, one of common tokens, and rows of vocabularies
LEARN_GRAPH, SHORTLIST_GRAPH, VECTORS_GRAPH = "learn", "shortlist", "vectors"
DERIVED_GRAPHS = (MANY_GRAPH, ALIGN_GRAPH)  # of the decoder, by every export; bundles written before these lack them
_NAMED_GRAPHS = (CTC_GRAPH, PLAIN_ENCODER_GRAPH, LEARN_GRAPH, SHORTLIST_GRAPH, VECTORS_GRAPH)
OPTIONAL_GRAPHS = (*DERIVED_GRAPHS, *OLD_GRAPHS, *_NAMED_GRAPHS, *HEAD_GRAPHS)
PRECISIONS = ("fp32", "int8", "int4")
DTYPES = ("float32", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "bool")
# The one mel recipe of every published Whisper, and the only one runtime/audio/mel.py computes; n_mels is free.
SAMPLE_RATE_HZ = 16_000
N_FFT = 400
HOP_SAMPLES = 160
MAX_FILES = 4096
MAX_FILE_BYTES = 1 << 40
MAX_SIGNATURE = 4096


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One input or output of a graph: name, NumPy dtype name, axes (a size, or the name of a free dimension)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @classmethod
    def read(cls, field: Field) -> Self:
        read = field.members("name", "dtype", "shape")
        axes = [a.text(80) if isinstance(a.value, str) else a.integer(0, 2**31 - 1) for a in read["shape"].items(16)]
        return cls(name=read["name"].text(), dtype=read["dtype"].choice(DTYPES), shape=tuple(axes))


@dataclass(frozen=True, kw_only=True)
class GraphSpec:
    """One graph: its file in the bundle and its signature, which the engine compares with the session's."""

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def to_json(self) -> dict[str, Any]:
        sides = {"inputs": self.inputs, "outputs": self.outputs}
        return {"file": self.file} | {
            side: [vars(spec) | {"shape": list(spec.shape)} for spec in specs] for side, specs in sides.items()
        }

    @classmethod
    def read(cls, field: Field) -> Self:
        read = field.members("file", "inputs", "outputs")
        sides: dict[str, tuple[TensorSpec, ...]] = {}
        for side in ("inputs", "outputs"):
            specs = tuple(TensorSpec.read(item) for item in read[side].items(MAX_SIGNATURE))
            if not specs or len({spec.name for spec in specs}) != len(specs):
                raise read[side].error("one or more tensors with different names")
            sides[side] = specs
        return cls(file=read["file"].text(240), **sides)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the weights came from: kind ("hub", "folder", ...), id (hub id or file name), revision if one is known."""

    kind: str
    id: str
    revision: str | None = None

    @classmethod
    def read(cls, field: Field) -> Self:
        read = field.members("kind", "id", "revision")
        revision = None if read["revision"].value is None else read["revision"].text()
        return cls(kind=read["kind"].text(40), id=read["id"].text(1000), revision=revision)


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """What a file must be: size in bytes and lower-case hexadecimal sha256."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The parsed `specedge.json`; building one by hand checks nothing, `to_bytes` does.

    `suppress_tokens` and `suppress_begin` are token ids; `alignment_heads` are (layer, head) of the decoder;
    `max_initial_timestamp_index` counts steps of `tokens.time_precision_s`, None is no limit; `short_windows`: the
    model was trained with windows cut a little behind the speech too, not only with whole ones, and
    `least_positions` are the encoder's of the shortest of them, 0 if that is not known.
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
    short_windows: bool = False
    least_positions: int = 0
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
    def version(self) -> int:
        """Of the format: the lowest that can say what this manifest does."""
        if self.kind != WHISPER:
            return _SINCE["kind"]
        return 4 if self.least_positions else 3 if self.short_windows else 1

    @property
    def n_frames(self) -> int:
        """Mel frames of one window."""
        return self.dims.n_frames

    @property
    def n_samples(self) -> int:
        """Samples of one window at SAMPLE_RATE_HZ."""
        return self.n_frames * HOP_SAMPLES

    def to_json(self) -> dict[str, Any]:
        """The manifest as JSON values in a fixed order. Raises BundleError where a free-form part is no JSON value."""
        value = {
            "format": FORMAT,
            "version": self.version,
            "name": self.name,
            "specedge_version": self.specedge_version,
            "source": asdict(self.source),
            "precision": self.precision,
            "dims": asdict(self.dims),
            "mel": {
                "n_mels": self.dims.n_mels,
                "sample_rate_hz": SAMPLE_RATE_HZ,
                "n_fft": N_FFT,
                "hop_samples": HOP_SAMPLES,
            },
            "window_s": self.window_s,
            "tokens": self.tokens.to_json(),
            "suppress": {"tokens": list(self.suppress_tokens), "begin": list(self.suppress_begin)},
            "max_initial_timestamp_index": self.max_initial_timestamp_index,
            "alignment_heads": [list(head) for head in self.alignment_heads],
            "graphs": {name: self.graphs[name].to_json() for name in sorted(self.graphs)},
            "quantisation": plain(dict(self.quantisation)),
            "selfcheck": plain(dict(self.selfcheck)),
            "vocabulary_sha256": self.vocabulary_sha256,
            "files": {name: dict(vars(self.files[name])) for name in sorted(self.files)},
            **({_ROWS: None} if self.version >= _ROWS_SINCE else {}),
            **{key: getattr(self, key) for key, since in _SINCE.items() if since <= self.version},
        }
        check_values(value, MANIFEST_NAME)
        return {**value, CHECKSUM: _checksum(value)}

    def to_bytes(self) -> bytes:
        """The bytes of `specedge.json`, read back as a proof. Raises BundleError where a rule is broken."""
        value = self.to_json()
        # Lines without indentation: with it, Python's own encoder takes over, which is slow.
        data = (json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",\n", ": ")) + "\n").encode("utf-8")
        Manifest.from_bytes(data, MANIFEST_NAME)
        return data

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
        _check_version(value, where)
        check_values(dict(value), where)
        known = (f.name for f in fields(cls) if not f.name.startswith("suppress_"))
        keys = ["format", "version", *(name for name in known if _SINCE.get(name, 1) <= value["version"])]
        keys += [_ROWS] if value["version"] >= _ROWS_SINCE else []
        read = Field({CHECKSUM: None, **value}, where).members(*keys, "mel", "suppress", CHECKSUM)
        kind = read["kind"].choice((SPEECH,)) if "kind" in read else WHISPER
        dims = read_speech_dims(read["dims"]) if kind == SPEECH else Dims.read(read["dims"])
        _check_mel(read["mel"], dims)
        suppress = read["suppress"].members("tokens", "begin")
        begin_limit = read["max_initial_timestamp_index"]
        for name in ("quantisation", "selfcheck"):
            read[name].mapping(MAX_SIGNATURE)
        manifest = cls(
            name=read["name"].text(),
            specedge_version=read["specedge_version"].text(60),
            source=Source.read(read["source"]),
            precision=read["precision"].choice(PRECISIONS),
            dims=dims,
            window_s=read["window_s"].number(0.0, 86_400.0),
            tokens=_read_tokens(read["tokens"], dims.n_vocab, SpeechTokens if kind == SPEECH else SpecialTokens),
            suppress_tokens=_read_ids(suppress["tokens"], dims.n_vocab),
            suppress_begin=_read_ids(suppress["begin"], dims.n_vocab),
            max_initial_timestamp_index=None if begin_limit.value is None else begin_limit.integer(0, dims.n_vocab),
            alignment_heads=_read_heads(read["alignment_heads"], dims),
            graphs={
                name: GraphSpec.read(field)
                for name, field in read["graphs"]
                .members(*(SPEECH_GRAPHS if kind == SPEECH else GRAPH_NAMES), optional=OPTIONAL_GRAPHS)
                .items()
            },
            quantisation=plain(value["quantisation"]),
            selfcheck=plain(value["selfcheck"]),
            vocabulary_sha256=read["vocabulary_sha256"].sha256(),
            files=_read_files(read["files"]),
            short_windows="short_windows" in read and read["short_windows"].truth(),
            least_positions=read["least_positions"].integer(int(kind == WHISPER), dims.n_audio_ctx)
            if "least_positions" in read
            else 0,
            kind=kind,
        )
        _check_agreement(manifest, read)
        # Last, so that a better-known fault is named first.
        if CHECKSUM in value and value[CHECKSUM] != _checksum(value):
            raise BundleError(f"{where}: {CHECKSUM}: the manifest was changed after it was written; {REMEDY}")
        return manifest


def _checksum(value: Mapping[str, Any]) -> str:
    body = json.dumps({key: value[key] for key in value if key != CHECKSUM}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(body.encode("ascii")).hexdigest()


def _check_version(value: object, where: str) -> None:
    if not isinstance(value, Mapping) or value.get("format") != FORMAT:
        raise BundleError(f"{where}: no specedge bundle, the key 'format' must be {FORMAT!r}; {REMEDY}")
    version = value.get("version")
    if version == _ROWS_VERSION or value.get(_ROWS) is not None:
        raise BundleError(
            f"{where}: this bundle was made with a compact vocabulary, which is no longer read; export the model again"
        )
    if type(version) is int and version > VERSIONS[-1]:
        raise BundleError(
            f"{where}: bundle format version {shown(version)} is newer than version {VERSIONS[-1]}, which this "
            "specedge reads; upgrade specedge (pip install -U specedge) or export the bundle again"
        )
    if type(version) is not int or version not in VERSIONS:
        expected = f"{', '.join(map(str, VERSIONS[:-1]))} or {VERSIONS[-1]}"
        raise BundleError(f"{where}: version: found {shown(version)}, expected {expected}; {REMEDY}")


def _check_mel(field: Field, dims: Dims) -> None:
    read = field.members("n_mels", "sample_rate_hz", "n_fft", "hop_samples")
    recipe = {"n_mels": dims.n_mels, "sample_rate_hz": SAMPLE_RATE_HZ, "n_fft": N_FFT, "hop_samples": HOP_SAMPLES}
    for name, expected in recipe.items():
        if type(read[name].value) is not int or read[name].value != expected:
            raise read[name].error(f"{expected}, the mel recipe of this specedge")


def _read_tokens(field: Field, n_vocab: int, kind: type[SpecialTokens | SpeechTokens]) -> TokenLayout:
    if not isinstance(field.value, dict):
        raise field.error("an object")
    try:
        return kind.from_json(field.value, n_vocab)
    except SpecedgeError as error:
        reason = str(error)[:300]
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
        reason = "not the special tokens of a vocabulary"
    raise BundleError(f"{field.where}: {field.key}: {reason}; {REMEDY}")


def _read_ids(field: Field, n_vocab: int) -> tuple[int, ...]:
    return tuple(item.integer(0, n_vocab - 1) for item in field.items(n_vocab))


def _read_heads(field: Field, dims: Dims) -> tuple[tuple[int, int], ...]:
    heads: list[tuple[int, int]] = []
    for item in field.items(dims.n_text_layer * dims.n_text_head):
        pair = item.items(2)
        if len(pair) != 2:
            raise item.error("[layer, head]")
        heads.append((pair[0].integer(0, dims.n_text_layer - 1), pair[1].integer(0, dims.n_text_head - 1)))
    return tuple(heads)


def _read_files(field: Field) -> dict[str, FileEntry]:
    entries: dict[str, FileEntry] = {}
    folded: dict[str, str] = {}
    for name, item in sorted(field.mapping(MAX_FILES).items()):
        problem = "is the manifest itself" if name == MANIFEST_NAME else name_problem(name)
        if problem:
            raise BundleError(f"{field.where}: files: the name {shown(name)} {problem}; {REMEDY}")
        twin = folded.setdefault(name.lower(), name)
        if twin != name:
            raise BundleError(f"{field.where}: files: {shown(twin)} and {shown(name)} differ in case only; {REMEDY}")
        read = item.members("size", "sha256")
        entries[name] = FileEntry(size=read["size"].integer(0, MAX_FILE_BYTES), sha256=read["sha256"].sha256())
    return entries


def _check_agreement(manifest: Manifest, read: Mapping[str, Field]) -> None:
    if round(manifest.window_s * SAMPLE_RATE_HZ) != manifest.n_samples:
        expected = manifest.n_samples / SAMPLE_RATE_HZ
        raise read["window_s"].error(f"{expected:g}, for n_audio_ctx is {manifest.dims.n_audio_ctx}")
    for name, graph in manifest.graphs.items():
        if graph.file not in manifest.files:
            where = f"{read['graphs'].where}: graphs.{name}.file"
            raise BundleError(f"{where}: {shown(graph.file)} is not among the files; {REMEDY}")
    if TOKENIZER_NAME not in manifest.files:
        raise BundleError(f"{read['files'].where}: files: {TOKENIZER_NAME!r} is missing; {REMEDY}")


def require_cross_attention(manifest: Manifest) -> None:
    """Raises UsageError for a speech LLM."""
    if manifest.kind == SPEECH:
        raise UsageError(
            f"{manifest.name} is a speech LLM, which has no cross-attention to read word times from; leave them "
            "out, or give a Whisper model"
        )


def require_align(manifest: Manifest, where: object) -> None:
    """Raises BundleError when the bundle at `where` lacks what word times need, UsageError for a speech LLM."""
    require_cross_attention(manifest)
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
    if not isinstance(draft.dims, SpeechDims) or not isinstance(target.dims, SpeechDims):
        return False
    n_frames = (1, draft.n_frames // 3, draft.n_frames)
    sizes = [[dims.n_mels, dims.n_stacked, *map(dims.positions, n_frames)] for dims in (draft.dims, target.dims)]
    is_asked_alike = isinstance(draft.tokens, SpeechTokens) and draft.tokens.is_asked_like(target.tokens)
    return is_asked_alike and draft.n_frames == target.n_frames and sizes[0] == sizes[1]


def check_share(share: float, draft: Manifest, target: Manifest, option: str = "draft_model") -> None:
    """Raises UsageError when too small a share of the smaller vocabulary's text tokens are in both."""
    if share < _MIN_SHARE:
        raise UsageError(
            f"{option}: {draft.name} and {target.name} have only {share:.0%} of the smaller vocabulary in common, "
            f"expected {_MIN_SHARE:.0%} or more: give a draft of a Whisper vocabulary"
        )


def is_larger(draft: Manifest, target: Manifest) -> bool:
    """Whether the draft's decoder has more weights, so that its drafts save passes of the target and no time."""
    return decoder_weights(draft.dims) > decoder_weights(target.dims)


def decoder_weights(dims: Dims) -> int:
    """Weights of the decoder that a pass reads."""
    return dims.n_text_layer * 16 * dims.n_text_state**2 + dims.n_vocab * dims.n_text_state


def graph_bytes(manifest: Manifest, graph: str) -> int:
    """Bytes of a graph's files, 1 at least: about what a pass reads."""
    stem = manifest.graphs[graph].file.removesuffix(".onnx")
    return max(1, sum(manifest.files[name].size for name in (f"{stem}.onnx", f"{stem}.data") if name in manifest.files))
