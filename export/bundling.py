"""A checkpoint becomes a bundle: graphs, tokenizer, manifest, self-check, and one rename at the end.

A new bundle is written into a hidden folder beside the target, which takes the target's name only when it is complete
and has passed the self-check; whatever fails leaves nothing behind. It may bring token maps in maps/ and a smaller
model in draft/, each checked before it is copied. A finished bundle is changed in place by writing only the new graphs
and the manifest, so its other files need not be distributed again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specedge import leftovers
from specedge.errors import BundleError, ResourceError, SpecedgeError, UsageError
from specedge.files import check_folder
from specedge.maps.tmap_format import text_fingerprint
from specedge.maps.token_map import TokenMap
from specedge.runtime.bundle.bundle import (
    MANIFEST_NAME,
    TOKENIZER_NAME,
    Bundle,
    Dims,
    FileEntry,
    Manifest,
    Source,
    hash_file,
)
from specedge.runtime.bundle.dims import ChunkDims
from specedge.runtime.bundle.manifest import (
    ALIGN_GRAPH,
    CTC_GRAPH,
    DERIVED_GRAPHS,
    DRAFT_FOLDER,
    GRAPH_NAMES,
    HOP_SAMPLES,
    LEARN_GRAPH,
    MANY_GRAPH,
    SAMPLE_RATE_HZ,
    SHORTLIST_GRAPH,
    SPEECH,
    SPEECH_GRAPHS,
    VECTORS_GRAPH,
    WHISPER,
    check_fit,
)
from specedge.runtime.bundle.strict_json import parse_object
from specedge.runtime.engine.shortlist import shortlist_spans
from specedge.runtime.options import BLOCK_KIND
from specedge.runtime.text.special import TokenLayout
from specedge.runtime.text.splitting import GPT2
from specedge.runtime.text.tokenizer import Tokenizer, write_table

from .checkpoint import Checkpoint
from .chunk_encoder_graph import build_chunk_encoder
from .ctc_graph import with_ctc_head, write_head_for
from .decoder_graph import build_decoder, padded_vocabulary
from .derived_graphs import default_heads, write_align_graph, write_many, write_shortlist_graphs
from .encoder_graph import build_cross_kv, build_encoder
from .heads import Heads, write_heads
from .layers import PRECISIONS, LinearKind, Precision
from .llama_graph import build_llama, build_projector
from .onnx_builder import GraphBuilder, file_entry, signature, write_durably
from .plain_encoder import with_plain_encoder
from .registered import find
from .selfcheck import check_bundle
from .spec import Spec
from .speech_layouts import SpeechSpec


def copy_maps(maps: Sequence[Path], folder: Path, fingerprint: bytes) -> None:
    """Copy token maps to maps/ in `folder`, each after it proved to be sound and of this vocabulary.

    Raises MapError, UsageError for two of one name.
    """
    for source in maps:
        with TokenMap.open(source, fingerprint=fingerprint) as opened:
            opened.verify()
        target = folder / "maps" / source.name
        target.parent.mkdir(exist_ok=True)
        if target.exists():
            raise UsageError(f"{source}: another token map is called {source.name} too; rename one")
        shutil.copyfile(source, target)


def with_draft(manifest: Manifest, draft: Bundle, folder: Path) -> Manifest:
    """`manifest` with the files of `draft`, which are copied to draft/ in `folder`: a bundle of its own in there.

    Raises UsageError for a draft that cannot serve this model, or brings one itself.
    """
    check_fit(draft.manifest, manifest)
    inside = f"{DRAFT_FOLDER}/"
    if any(name.startswith(inside) for name in draft.manifest.files):
        raise UsageError(f"{draft.path}: brings a draft of its own; export that model again without --draft")
    files = dict(manifest.files)
    for name in (MANIFEST_NAME, *draft.manifest.files):
        target = folder / inside / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(draft.path / name, target)
        size, sha256 = hash_file(target)
        files[inside + name] = FileEntry(size=size, sha256=sha256)
    return replace(manifest, files=files)


Report = Callable[[int, int], None]
"""Called with the number of weights read so far and the number to read in all."""
REPLACED = "replaced"  # where a bundle waits in a hidden folder while another takes its name
_LEFTOVER = re.compile(r"\.[a-z_.-]+\.(unfinished|old)")  # of a change in place that was killed (grow)
BYTES_PER_WEIGHT = {"fp32": 4.0, "int8": 1.1, "int4": 1.1}  # to refuse a full disk before the work, not after it


def write_bundle(
    checkpoint: Checkpoint,
    out: Path,
    *,
    precision: str,
    name: str,
    version: str,
    replace_existing: bool = False,
    maps: Sequence[Path] = (),
    draft: Bundle | None = None,
    heads: Sequence[Heads] = (),
    ctc: Path | None = None,
    short_windows: bool = False,
    least_positions: int = 0,
    encoder_plain: bool = False,
    report: Report | None = None,
) -> Bundle:
    """Build the bundle `out` from an opened checkpoint and return it, verified.

    `maps` are token maps that the bundle shall bring along, for the drafter tokenmap without files of the user's;
    `draft` is a bundle that it shall bring along in draft/, for the drafter draft; `heads` are for the drafters of
    their kinds, besides those in the checkpoint; `ctc` is the file of a trained head; for the windows see Manifest;
    `encoder_plain`: with the encoder in plain operators too, for execution providers.

    Raises BundleError, MapError when `ctc` is no head
    for this encoder, a token map is none, or one of another vocabulary, CheckpointError when the weights or the
    vocabulary cannot be used, Interrupted on Ctrl-C during the self-check, ExactnessError when the graphs do not
    compute what the weights say, UsageError when `out` exists and `replace_existing` is false, or is something that
    must not be replaced, ResourceError when the disk is full or the folder cannot be written.
    """
    if precision not in PRECISIONS:
        raise UsageError(f"precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
    check_target(out, replace_existing=replace_existing)
    weights = _Counted(checkpoint, report)
    with _disk_errors(out), _parents(out):
        _check_space(out, checkpoint, precision, encoder_plain=encoder_plain)
        with _hidden_folder(out) as folder:
            folder.chmod(0o755)
            written = _write_files(checkpoint, weights, folder, PRECISIONS[precision], name, version, maps, heads)
            manifest = replace(written, short_windows=short_windows, least_positions=least_positions)
            if encoder_plain:
                manifest = with_plain_encoder(manifest, weights, folder)
            if draft is not None:
                manifest = with_draft(manifest, draft, folder)
            if ctc is not None:
                manifest = with_ctc_head(manifest, ctc, folder)
            made = Bundle(path=folder, manifest=manifest, digest="")
            numbers = check_bundle(made, weights, checkpoint.spec, PRECISIONS[precision])
            if (
                MANY_GRAPH in manifest.graphs
                and not numbers["tree_invariance"]["exact"]
                and numbers["row_invariance"]["exact"]
            ):
                # The graph's fault and not this machine's; the bundle is a good one without it.
                manifest = without_graph(manifest, folder, MANY_GRAPH)
            write_durably(folder / MANIFEST_NAME, replace(manifest, selfcheck=numbers).to_bytes())
            _publish(folder, out, replace_existing=replace_existing)
    return Bundle.open(out)


class _Counted:
    """The checkpoint's weights, telling `report` how many have been read."""

    def __init__(self, checkpoint: Checkpoint, report: Report | None) -> None:
        self._checkpoint = checkpoint
        self._report = report
        self._n_read = 0
        self._n_total = 2 * sum(1 for _ in checkpoint.spec.shapes())  # the graphs, then the self-check

    def tensor(self, name: str) -> NDArray[np.float32]:
        value = self._checkpoint.tensor(name)
        self._count()
        return value

    def parts(self, name: str) -> Iterator[NDArray[np.float32]]:
        yield from self._checkpoint.parts(name)
        self._count()

    def _count(self) -> None:
        self._n_read += 1
        if self._report is not None:
            self._report(min(self._n_read, self._n_total), self._n_total)

    def has(self, name: str) -> bool:
        return self._checkpoint.has(name)


def _write_files(
    checkpoint: Checkpoint,
    weights: _Counted,
    folder: Path,
    precision: Precision,
    name: str,
    version: str,
    maps: Sequence[Path],
    heads: Sequence[Heads],
) -> Manifest:
    """Write graphs and tokenizer into `folder`; the manifest comes back without its self-check."""
    spec = checkpoint.spec
    dims = spec.dims
    ranks, special = checkpoint.vocabulary()
    copy_maps(maps, folder, text_fingerprint(ranks, special.eot))
    write_table(folder / TOKENIZER_NAME, ranks, _pattern(spec))
    with GraphBuilder(folder, "encoder") as g:
        if isinstance(dims, ChunkDims):
            build_chunk_encoder(g, dims, weights, precision.encoder)
        else:
            build_encoder(g, dims, weights, precision.encoder)
    if isinstance(spec, SpeechSpec):
        head_graphs = _write_llm(folder, spec, weights, precision, heads)
        return _manifest(spec, folder, precision, name, version, ranks, special, head_graphs)
    with GraphBuilder(folder, "cross_kv") as g:
        build_cross_kv(g, dims, weights, precision.cross_kv, int8_attention=precision.int8_attention)
    with GraphBuilder(folder, "decoder") as g:
        build_decoder(g, dims, weights, precision.decoder, int8_attention=precision.int8_attention)
    write_many(folder)
    derived = [*DERIVED_GRAPHS, *_write_shortlist(folder, dims, special, precision.decoder)]
    given = [*([] if spec.heads is None else [Heads(spec=spec.heads, weights=weights)]), *heads]
    head_graphs = write_heads(folder, given, dims, weights, precision)
    seen_by = _heads(spec.generation.get("alignment_heads"), dims) or default_heads(dims)
    write_align_graph(folder / "decoder.onnx", folder / f"{ALIGN_GRAPH}.onnx", dims, seen_by)
    made = _manifest(spec, folder, precision, name, version, ranks, special, [*derived, *head_graphs])
    return replace(made, alignment_heads=seen_by)


def _write_shortlist(folder: Path, dims: Dims, special: TokenLayout, kind: LinearKind) -> list[str]:
    """Write the graphs with which the model drafts, and return their names; none where the vocabulary is small."""
    spans = shortlist_spans(padded_vocabulary(dims, kind), special.eot)
    if spans is None:
        return []
    names = [SHORTLIST_GRAPH, VECTORS_GRAPH]
    write_shortlist_graphs(folder / "decoder.onnx", {name: folder / f"{name}.onnx" for name in names}, spans)
    return names


def _pattern(spec: Spec) -> str:
    """What the model's text is split by before bytes are merged: of splitting.PATTERNS."""
    return spec.pattern if isinstance(spec, SpeechSpec) else GPT2


def _write_llm(
    folder: Path, spec: SpeechSpec, weights: _Counted, precision: Precision, heads: Sequence[Heads]
) -> list[str]:
    """Write projector and decoder of a speech LLM, and its heads, whose names are returned. Raises UsageError."""
    given = [*([] if spec.heads is None else [Heads(spec=spec.heads, weights=weights)]), *heads]
    for each in given:
        if each.spec.kind == BLOCK_KIND:
            raise UsageError(
                f"heads of the kind {BLOCK_KIND} attend to the audio, which a speech LLM's decoder does not"
            )
    with GraphBuilder(folder, "projector") as g:
        build_projector(g, spec.dims, weights, precision.cross_kv)
    with GraphBuilder(folder, "decoder") as g:
        build_llama(g, spec.dims, weights, precision.decoder, rope_theta=spec.rope_theta, epsilon=spec.epsilon)
    return write_heads(folder, given, spec.dims, weights, precision)


def _manifest(
    spec: Spec,
    folder: Path,
    precision: Precision,
    name: str,
    version: str,
    ranks: list[bytes],
    special: TokenLayout,
    more_graphs: Sequence[str],
) -> Manifest:
    """The manifest of the files in `folder`, without alignment heads and self-check."""
    dims, generation = spec.dims, spec.generation
    begin_limit = generation.get("max_initial_timestamp_index")
    is_speech = isinstance(spec, SpeechSpec)
    return Manifest(
        name=name,
        specedge_version=version,
        source=Source(kind=spec.source.kind, id=spec.source.id, revision=spec.source.revision),
        precision=precision.name,
        dims=dims,
        window_s=dims.n_frames * HOP_SAMPLES / SAMPLE_RATE_HZ,
        tokens=special,
        suppress_tokens=_ids(generation.get("suppress_tokens"), dims.n_vocab),
        suppress_begin=_ids(generation.get("begin_suppress_tokens"), dims.n_vocab),
        max_initial_timestamp_index=begin_limit if _is_index(begin_limit, dims.n_vocab) else None,
        alignment_heads=(),
        graphs={
            graph: signature(folder, graph) for graph in (*(SPEECH_GRAPHS if is_speech else GRAPH_NAMES), *more_graphs)
        },
        quantisation=precision.to_json(),
        selfcheck={},
        vocabulary_sha256=Tokenizer(ranks, special, _pattern(spec)).fingerprint,
        files={path.relative_to(folder).as_posix(): file_entry(path) for path in _files(folder)},
        kind=SPEECH if is_speech else WHISPER,
    )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def without_graph(manifest: Manifest, folder: Path, graph: str) -> Manifest:
    """The manifest without an optional graph, whose file goes too."""
    file = manifest.graphs[graph].file
    (folder / file).unlink()
    return replace(
        manifest,
        graphs={name: spec for name, spec in manifest.graphs.items() if name != graph},
        files={name: entry for name, entry in manifest.files.items() if name != file},
    )


def _ids(value: object, n_vocab: int) -> tuple[int, ...]:
    """The token ids of a suppress list, without the placeholder -1 and ids beyond a smaller vocabulary."""
    ids = value if isinstance(value, list) else []
    return tuple(sorted({token for token in ids if _is_index(token, n_vocab)}))


def _heads(value: object, dims: Dims) -> tuple[tuple[int, int], ...]:
    """The (layer, head) pairs this decoder has: distilled checkpoints carry the list of their deeper teacher."""
    limits = (dims.n_text_layer, dims.n_text_head)
    pairs = [pair for pair in (value if isinstance(value, list) else []) if isinstance(pair, list) and len(pair) == 2]
    return tuple((pair[0], pair[1]) for pair in pairs if all(map(_is_index, pair, limits)))


def _is_index(value: object, n: int) -> bool:
    return type(value) is int and 0 <= value < n


def check_target(out: Path, *, replace_existing: bool) -> None:
    """Refuse an `out` that must not be written, after taking away what exports that died left beside it.

    Raises UsageError when it exists and `replace_existing` is false, or is no bundle, or holds files that its manifest
    does not list.
    """
    _sweep(out)
    if not os.path.lexists(out):
        return
    if not replace_existing:
        raise UsageError(f"{out}: exists already; give another -o, remove it, or add --force to replace a bundle")
    if not (out / MANIFEST_NAME).is_file():
        raise UsageError(f"{out}: exists and is no bundle, so it is not replaced; give another -o")
    if not out.is_symlink():  # of a link, what it points to stays
        listed = {MANIFEST_NAME, *_listed(out / MANIFEST_NAME)}
        check_folder(out, lambda name: name in listed or _LEFTOVER.fullmatch(name) is not None, "bundle")


def _listed(manifest: Path) -> Iterable[str]:
    """The files that a manifest of any version names; none where it cannot be read."""
    try:
        files = parse_object(manifest.read_bytes(), str(manifest)).get("files")
    except (OSError, BundleError):
        return ()
    return files if isinstance(files, dict) else ()


def _check_space(out: Path, checkpoint: Checkpoint, precision: str, *, encoder_plain: bool) -> None:
    n_weights = sum(
        int(np.prod(shape)) * (2 if encoder_plain and name.startswith("model.encoder.") else 1)
        for name, shape in checkpoint.spec.shapes()
    )
    needed = int(n_weights * BYTES_PER_WEIGHT[precision])
    free = shutil.disk_usage(out.parent).free
    if free < needed:
        raise ResourceError(
            f"{out.parent}: {free / 1e6:.0f} MB free, but the bundle needs about {needed / 1e6:.0f} MB; "
            "make room or give another -o"
        )


def _publish(folder: Path, out: Path, *, replace_existing: bool) -> None:
    for path in _files(folder):
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
    if not os.path.lexists(out):
        os.rename(folder, out)
        return
    check_target(out, replace_existing=replace_existing)  # it may have come into being meanwhile
    with _hidden_folder(out) as old:
        os.rename(out, old / REPLACED)
        try:
            os.rename(folder, out)
        except BaseException:
            os.rename(old / REPLACED, out)
            raise


def _names(out: Path) -> leftovers.Names:
    return leftovers.Names(
        parent=out.parent, prefix=f".{out.name}.", suffix=".unfinished", tokens="[a-z0-9_]{8}(?:[0-9a-f]{8})?"
    )


def _hidden_folder(out: Path) -> contextlib.AbstractContextManager[Path]:
    return leftovers.temporary_folder(_names(out))


def _sweep(out: Path) -> None:
    """Remove what exports to `out` left behind that were killed; a bundle they were about to replace comes back."""

    def put_back(folder: Path) -> None:
        if (folder / REPLACED).is_dir() and not os.path.lexists(out):
            os.rename(folder / REPLACED, out)

    leftovers.sweep(_names(out), put_back)


@contextlib.contextmanager
def _parents(out: Path) -> Iterator[None]:
    """Make the folders above `out`, and take them away again when the export fails."""
    made = [folder for folder in out.parents if not folder.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):  # something else is in it by now
                folder.rmdir()
        raise


@contextlib.contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except SpecedgeError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = "make room or give another -o" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "give another -o"
        raise ResourceError(f"{out}: cannot write the bundle: {reason}; nothing was left behind; {hint}") from error


def add_align_graph(folder: Path) -> Bundle:
    """Give the bundle `folder` the graph for word timestamps that bundles of earlier exports lack, and return it.

    Raises BundleError when it is no whole bundle of this format, or its decoder graph is none of ours, UsageError when
    it has the graph, ResourceError when the folder cannot be written.
    """
    bundle = Bundle.open(folder)
    manifest = bundle.manifest
    if ALIGN_GRAPH in manifest.graphs:
        raise UsageError(f"{folder}: this bundle has the graph for word timestamps already")
    heads = manifest.alignment_heads or default_heads(manifest.dims)

    def write(unfinished: Mapping[str, Path]) -> None:
        decoder = bundle.file(manifest.graphs["decoder"].file)
        write_align_graph(decoder, unfinished[ALIGN_GRAPH], manifest.dims, heads)

    return _add(folder, bundle, [ALIGN_GRAPH], write, replace(manifest, alignment_heads=heads))


def add_ctc_head(folder: Path, head: Path) -> Bundle:
    """Give the bundle `folder` the trained head in the file `head`, in place of one it may have, and return it.

    Raises BundleError when it is no whole bundle of this format, or the file is no head for its encoder, ResourceError
    when the folder cannot be written.
    """
    bundle = Bundle.open(folder)

    def write(unfinished: Mapping[str, Path]) -> None:
        write_head_for(bundle.manifest, bundle.path, head, unfinished[CTC_GRAPH])

    return _add(folder, bundle, [CTC_GRAPH], write, bundle.manifest)


def add_learn_graphs(folder: Path) -> Bundle:
    """Give the bundle `folder` the graphs that a draft needs to learn (`--learn`), and return it.

    Raises as `add_align_graph`.
    """
    bundle = Bundle.open(folder)
    if LEARN_GRAPH in bundle.manifest.graphs:
        raise UsageError(f"{folder}: this bundle has the graphs to learn with already")

    def write(unfinished: Mapping[str, Path]) -> None:
        find("learn graphs")(bundle.file(bundle.manifest.graphs["decoder"].file), unfinished)

    return _add(folder, bundle, [LEARN_GRAPH, VECTORS_GRAPH], write, bundle.manifest)


def has_draft(manifest: Manifest) -> bool:
    """Whether a bundle brings a draft of its own."""
    return f"{DRAFT_FOLDER}/{MANIFEST_NAME}" in manifest.files


def add_draft(folder: Path, draft: Bundle) -> Bundle:
    """Give the bundle `folder` a copy of the bundle `draft` for the drafter draft, and return it.

    Raises UsageError for a draft that cannot serve it, or when it has one, BundleError when it is no whole bundle of
    this format, ResourceError when the folder cannot be written.
    """
    bundle = Bundle.open(folder)
    if has_draft(bundle.manifest):
        raise UsageError(f"{folder}: this bundle brings a draft already")
    unfinished, told = bundle.path / ".draft.unfinished", bundle.path / f".{MANIFEST_NAME}.unfinished"
    made = bundle.path / DRAFT_FOLDER
    shutil.rmtree(unfinished, ignore_errors=True)  # of one that was killed
    try:
        manifest = with_draft(bundle.manifest, draft, unfinished)
        for path in _files(unfinished):
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        os.rename(unfinished / DRAFT_FOLDER, made)
        write_durably(told, manifest.to_bytes())
        os.replace(told, bundle.path / MANIFEST_NAME)
    except BaseException as error:
        shutil.rmtree(made, ignore_errors=True)
        told.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, SpecedgeError):
            raise ResourceError(f"{folder}: cannot be changed: {error.strerror}; nothing was left behind") from error
        raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return Bundle.open(folder)


def mark_short_windows(folder: Path) -> Bundle:
    """Have the manifest of `folder` say that the model was trained with short windows too, and return the bundle.

    Raises as `add_align_graph`.
    """
    bundle = Bundle.open(folder)
    if bundle.manifest.short_windows:
        raise UsageError(f"{folder}: this bundle is already marked as trained with short windows")
    return _add(folder, bundle, [], lambda _: None, replace(bundle.manifest, short_windows=True))


def _add(
    given: Path,
    bundle: Bundle,
    graphs: Sequence[str],
    write: Callable[[Mapping[str, Path]], None],
    manifest: Manifest,
) -> Bundle:
    """Write the graphs, then `manifest` with them; whatever fails leaves the bundle as it was."""
    # Other names until all are whole; a bundle overlooks names that begin with a dot.
    unfinished = {graph: bundle.path / f".{graph}.unfinished" for graph in graphs}
    old = {graph: bundle.path / f".{graph}.old" for graph in graphs if graph in bundle.manifest.graphs}
    told = bundle.path / f".{MANIFEST_NAME}.unfinished"
    try:
        write(unfinished)
        grown = manifest
        for graph, path in unfinished.items():
            write_durably(path, path.read_bytes())
            made = bundle.path / f"{graph}.onnx"
            if graph in old:
                os.replace(made, old[graph])
            os.replace(path, made)
            grown = replace(
                grown,
                graphs={**grown.graphs, graph: signature(bundle.path, graph)},
                files={**grown.files, made.name: file_entry(made)},
            )
        write_durably(told, grown.to_bytes())
        os.replace(told, bundle.path / MANIFEST_NAME)
        for path in old.values():
            path.unlink(missing_ok=True)
    except BaseException as error:
        told.unlink(missing_ok=True)
        for graph, path in unfinished.items():
            path.unlink(missing_ok=True)
            made = bundle.path / f"{graph}.onnx"
            if graph not in old:
                made.unlink(missing_ok=True)
            elif old[graph].exists():
                os.replace(old[graph], made)
        if isinstance(error, OSError) and not isinstance(error, SpecedgeError):
            raise ResourceError(f"{given}: cannot be changed: {error.strerror}; nothing was left behind") from error
        raise
    return Bundle.open(given)
