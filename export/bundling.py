"""A checkpoint becomes a bundle: graphs, tokenizer, manifest, self-check, and one rename at the end.

A new bundle is written into a hidden folder beside the target, which takes the target's name only when it is complete
and has passed the self-check; whatever fails leaves nothing behind. It may bring token maps in maps/ and a smaller
model in draft/, each checked before it is copied. A finished bundle is changed by writing only the new graphs and the
manifest, so its other files need not be distributed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from specedge.errors import BundleError, UsageError
from specedge.files import check_folder, disk_errors, publish_folder, scratch_folder, sweep
from specedge.maps.tmap_format import text_fingerprint
from specedge.maps.token_map import TokenMap
from specedge.runtime.bundle.bundle import Bundle, hash_file
from specedge.runtime.bundle.dims import Dims
from specedge.runtime.bundle.manifest import (
    ALIGN_GRAPH,
    CTC_GRAPH,
    DRAFT_FOLDER,
    GRAPH_NAMES,
    HOP_SAMPLES,
    LEARN_GRAPH,
    MANIFEST_NAME,
    MANY_GRAPH,
    SAMPLE_RATE_HZ,
    SHORT_ENCODER_GRAPH,
    SHORTLIST_GRAPH,
    SPEECH,
    SPEECH_GRAPHS,
    TOKENIZER_NAME,
    VECTORS_GRAPH,
    WHISPER,
    Manifest,
    check_fit,
    graph_files,
)
from specedge.runtime.bundle.typed_json import parse_object
from specedge.runtime.engine.shortlist import shortlist_spans
from specedge.runtime.options import BLOCK_KIND
from specedge.runtime.text.tokenizer import Tokenizer, write_table

from .checkpoint import Checkpoint
from .chunk_encoder_graph import build_chunk_encoder
from .ctc_graph import write_head_for
from .decoder_graph import build_decoder, padded_vocabulary
from .derived_graphs import default_heads, write_align_graph, write_many, write_shortlist_graphs
from .encoder_graph import build_cross_kv, build_encoder, write_short_encoder
from .heads import Heads, write_heads
from .hub import check_space
from .layers import PRECISIONS, Precision, of_draft
from .llama_graph import build_llama, build_projector
from .onnx_builder import GraphBuilder, signature
from .plain_encoder import write_plain_encoder
from .qwen3_asr import SpeechSpec
from .registered import find
from .selfcheck import check_bundle


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


def copy_bundle(bundle: Bundle, out: Path) -> None:
    """Copy an opened bundle to `out`, where nothing is. Raises ResourceError, UsageError when something is."""
    with _new_folder(out) as folder:
        _copy_files(bundle, folder)
        _publish(folder, out, replace_existing=False)


def _copy_files(bundle: Bundle, folder: Path) -> None:
    for name in (MANIFEST_NAME, *bundle.manifest.files):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.path / name, target)


def _write_more(
    manifest: Manifest, folder: Path, *, draft: Bundle | None, ctc: Path | None, learnable: bool
) -> list[str]:
    """Write into `folder`, where a model's own files are, what it is to bring besides; the graphs among it.

    Raises UsageError for a draft that cannot serve this model, or brings one itself.
    """
    graphs = list[str]()
    if draft is not None:
        check_fit(draft.manifest, manifest)
        if any(name.startswith(_INSIDE) for name in draft.manifest.files):
            raise UsageError(f"{draft.path}: brings a draft of its own; export that model again without --draft")
        _copy_files(draft, folder / DRAFT_FOLDER)
    if ctc is not None:
        graphs.append(CTC_GRAPH)
        write_head_for(manifest, folder, ctc, folder / f"{CTC_GRAPH}.onnx")
    if learnable:
        learning = {graph: folder / f"{graph}.onnx" for graph in (LEARN_GRAPH, VECTORS_GRAPH)}
        find("learn graphs")(folder / manifest.graphs["decoder"].file, learning)
        graphs += learning
    return graphs


def listed(manifest: Manifest, folder: Path, graphs: Iterable[str]) -> Manifest:
    """`manifest` with these graphs, and the files in `folder` that it does not name yet. What a draft there has in
    common with the model is linked."""
    files = dict(manifest.files)
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        if name not in files and name != MANIFEST_NAME:
            files[name] = hash_file(path)
            own = name.removeprefix(_INSIDE)
            if own != name and files[name] == files.get(own):
                path.unlink()
                _link(folder / own, path)
    return replace(
        manifest, graphs={**manifest.graphs, **{name: signature(folder, name) for name in graphs}}, files=files
    )


def _link(source: Path, target: Path) -> None:
    """Give a file a second name; where the file system has none, a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


_INSIDE = f"{DRAFT_FOLDER}/"
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
    layers: Checkpoint | None = None,
    heads: Sequence[Heads] = (),
    ctc: Path | None = None,
    learnable: bool = False,
    encoder_plain: bool = False,
    is_draft: bool = False,
) -> Bundle:
    """Build the bundle `out` from an opened checkpoint and return it, checked.

    maps, draft, heads, ctc: what it brings along for the drafters of these names, heads besides the checkpoint's, ctc
    the file of a trained head; layers: a draft over the same encoder (`draft_layers`), in the place of `draft`;
    learnable: with graphs that a draft learns with; encoder_plain: with an encoder for execution providers; is_draft:
    over the encoder of the model in the folder above (`layers.of_draft`).

    Raises BundleError and MapError when what it is to bring is none, or of another model, CheckpointError when weights
    or vocabulary cannot be used, Interrupted on Ctrl-C during the self-check, ExactnessError when the graphs do not
    compute what the weights say, UsageError when `out` must not be replaced, ResourceError when it cannot be written.
    """
    if precision not in PRECISIONS:
        raise UsageError(f"precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
    kinds = of_draft(PRECISIONS[precision]) if is_draft else PRECISIONS[precision]
    check_target(out, replace_existing=replace_existing)
    with _new_folder(out) as folder:
        n_weights = sum(map(math.prod, checkpoint.shapes.values()))
        if encoder_plain:  # which has its weights once more
            shapes = checkpoint.shapes.items()
            n_weights += sum(math.prod(shape) for name, shape in shapes if name.startswith("model.encoder."))
        check_space("the bundle", int(n_weights * BYTES_PER_WEIGHT[precision]), out.parent, "give another -o")
        manifest = _write_files(checkpoint, folder, kinds, name, version, maps, heads)
        graphs = _write_more(manifest, folder, draft=draft, ctc=ctc, learnable=learnable)
        if encoder_plain:
            graphs.append(write_plain_encoder(manifest, checkpoint, folder))
        if layers is not None:
            inside = folder / DRAFT_FOLDER
            write_bundle(layers, inside, precision=precision, name=f"{name}-draft", version=version, is_draft=True)
        manifest = listed(manifest, folder, graphs)
        made = Bundle(path=folder, manifest=manifest, digest="")
        numbers = check_bundle(made, checkpoint, checkpoint.spec, kinds)
        manifest = replace(manifest, selfcheck=numbers)
        data = manifest.to_bytes()
        (folder / MANIFEST_NAME).write_bytes(data)
        _publish(folder, out, replace_existing=replace_existing)
    return Bundle(path=out.resolve(), manifest=manifest, digest=hashlib.sha256(data).hexdigest())


def _write_files(
    checkpoint: Checkpoint,
    folder: Path,
    precision: Precision,
    name: str,
    version: str,
    maps: Sequence[Path],
    heads: Sequence[Heads],
) -> Manifest:
    """Write graphs and tokenizer into `folder`; the manifest comes back without its self-check."""
    spec, dims = checkpoint.spec, checkpoint.spec.dims
    ranks, special = checkpoint.vocabulary()
    copy_maps(maps, folder, text_fingerprint(ranks, special.eot))
    write_table(folder / TOKENIZER_NAME, ranks, spec.pattern)
    graphs, seen_by = _write_graphs(checkpoint, folder, precision, special.eot, heads)
    generation, n_vocab = spec.generation, dims.n_vocab
    begin_limit = generation.get("max_initial_timestamp_index")
    return Manifest(
        name=name,
        specedge_version=version,
        source=spec.source,
        precision=precision.name,
        dims=dims,
        window_s=dims.n_frames * HOP_SAMPLES / SAMPLE_RATE_HZ,
        tokens=special,
        suppress_tokens=_ids(generation.get("suppress_tokens"), n_vocab),
        suppress_begin=_ids(generation.get("begin_suppress_tokens"), n_vocab),
        max_initial_timestamp_index=begin_limit if _is_index(begin_limit, n_vocab) else None,
        alignment_heads=seen_by,
        graphs={graph: signature(folder, graph) for graph in graphs},
        quantisation=asdict(precision),
        selfcheck={},
        vocabulary_sha256=Tokenizer(ranks, special, spec.pattern).fingerprint,
        files={path.relative_to(folder).as_posix(): hash_file(path) for path in _files(folder)},
        kind=SPEECH if isinstance(spec, SpeechSpec) else WHISPER,
    )


def _write_graphs(
    checkpoint: Checkpoint, folder: Path, precision: Precision, eot: int, heads: Sequence[Heads]
) -> tuple[list[str], tuple[tuple[int, int], ...]]:
    """Write all graphs; their names, and the alignment heads of a Whisper, as (layer, head)."""
    spec, dims, is_draft = checkpoint.spec, checkpoint.spec.dims, precision.positions_a_key > 1
    sets = [*([] if spec.heads is None else [Heads(spec=spec.heads, weights=checkpoint)]), *heads]
    seen_by: tuple[tuple[int, int], ...] = ()
    if isinstance(spec, SpeechSpec):
        if any(each.spec.kind == BLOCK_KIND for each in sets):
            raise UsageError(f"heads of the kind {BLOCK_KIND} attend to the audio, which a speech LLM's decoder cannot")
        with GraphBuilder(folder, "encoder") as g:
            build_chunk_encoder(g, spec.dims, checkpoint, precision.encoder)
        with GraphBuilder(folder, "projector") as g:
            build_projector(g, spec.dims, checkpoint, precision.cross_kv)
        with GraphBuilder(folder, "decoder") as g:
            build_llama(g, spec.dims, checkpoint, precision.decoder, rope_theta=spec.rope_theta, epsilon=spec.epsilon)
        graphs = [*SPEECH_GRAPHS]
    else:
        with GraphBuilder(folder, "encoder") as g:
            build_encoder(g, dims, checkpoint, precision.encoder)
        with GraphBuilder(folder, "cross_kv") as g:
            build_cross_kv(g, dims, checkpoint, precision.cross_kv, int8_attention=precision.int8_attention)
        with GraphBuilder(folder, "decoder") as g:
            build_decoder(
                g,
                dims,
                checkpoint,
                precision.decoder,
                int8_attention=precision.int8_attention,
                is_draft=is_draft,
            )
        write_short_encoder(folder, dims)
        seen_by = _heads(spec.generation.get("alignment_heads"), dims) or default_heads(dims)
        write_align_graph(folder, dims, seen_by)
        graphs = [*GRAPH_NAMES, ALIGN_GRAPH, SHORT_ENCODER_GRAPH]
        if not is_draft:
            write_many(folder)
            graphs += [MANY_GRAPH, *_write_shortlist(folder, dims, eot, precision)]
    return [*graphs, *write_heads(folder, sets, dims, checkpoint, precision)], seen_by


def _write_shortlist(folder: Path, dims: Dims, eot: int, precision: Precision) -> list[str]:
    """Write the graphs with which the model drafts, and return their names; none where the vocabulary is small."""
    spans = shortlist_spans(padded_vocabulary(dims, precision.decoder), eot)
    if spans is None:
        return []
    write_shortlist_graphs(folder, spans)
    return [SHORTLIST_GRAPH, VECTORS_GRAPH]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


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
    sweep(out)
    if not os.path.lexists(out):
        return
    if not replace_existing:
        raise UsageError(f"{out}: exists already; give another -o, remove it, or add --force to replace a bundle")
    if not (out / MANIFEST_NAME).is_file():
        raise UsageError(f"{out}: exists and is no bundle, so it is not replaced; give another -o")
    if not out.is_symlink():  # of a link, what it points to stays
        named = {MANIFEST_NAME, *_named(out / MANIFEST_NAME)}
        check_folder(out, named.__contains__, "bundle")


def _named(manifest: Path) -> Iterable[str]:
    """The files that a manifest of any version names; none where it cannot be read."""
    try:
        files = parse_object(manifest.read_bytes(), str(manifest)).get("files")
    except (OSError, BundleError):
        return ()
    return files if isinstance(files, dict) else ()


@contextlib.contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A scratch folder for `out`, and the folders above it."""
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(out) as folder:
        folder.chmod(0o755)
        yield folder


def _publish(folder: Path, out: Path, *, replace_existing: bool) -> None:
    """Give a whole bundle its name once its files are on the disk. Raises OSError, and as `check_target`."""
    for path in _files(folder):
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
    check_target(out, replace_existing=replace_existing)  # it may have come into being meanwhile
    publish_folder(folder, out)


def has_draft(manifest: Manifest) -> bool:
    """Whether a bundle brings a draft of its own."""
    return f"{DRAFT_FOLDER}/{MANIFEST_NAME}" in manifest.files


def add_to_bundle(
    folder: Path,
    *,
    ctc: Path | None = None,
    learnable: bool = False,
    draft: Bundle | None = None,
    short_audio: bool = False,
) -> Bundle:
    """Give the bundle `folder` the trained head in the file `ctc` in place of one it may have, the graphs that a draft
    needs to learn (`--learn`), a copy of the bundle `draft`, or the encoder for short audio (in place of one it may
    have), and return it. Whatever fails leaves it as it was.

    The bundle is replaced by one in which its other files are the same ones, by another name. Raises BundleError when
    it is no whole bundle of this format, or the file is no head for its encoder, UsageError for a draft that cannot
    serve it, for what it has already, for short audio of a speech LLM and for a folder with other files, ResourceError
    when the folder cannot be replaced.
    """
    bundle = Bundle.open(folder)
    manifest = bundle.manifest
    if short_audio and manifest.kind != WHISPER:
        raise UsageError(f"{folder}: this speech LLM hears short audio as it is")
    if learnable and LEARN_GRAPH in manifest.graphs:
        raise UsageError(f"{folder}: this bundle has the graphs to learn with already")
    if draft is not None and has_draft(manifest):
        raise UsageError(f"{folder}: this bundle brings a draft already")
    check_target(bundle.path, replace_existing=True)
    made_again = {CTC_GRAPH: ctc is not None, VECTORS_GRAPH: learnable, SHORT_ENCODER_GRAPH: short_audio}
    for graph in (graph for graph, is_made in made_again.items() if is_made and graph in manifest.graphs):
        gone = graph_files(manifest, graph)
        manifest = replace(manifest, files={name: manifest.files[name] for name in manifest.files if name not in gone})
    with _new_folder(bundle.path) as new:
        for name in manifest.files:
            _link(bundle.path / name, new / name)
        graphs = _write_more(manifest, new, draft=draft, ctc=ctc, learnable=learnable)
        if short_audio:
            graphs.append(SHORT_ENCODER_GRAPH)
            write_short_encoder(new, manifest.dims)
        (new / MANIFEST_NAME).write_bytes(listed(manifest, new, graphs).to_bytes())
        _publish(new, bundle.path, replace_existing=True)
    return Bundle.open(folder)
