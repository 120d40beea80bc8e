"""A checkpoint becomes a bundle: graphs, tokenizer, manifest, self-check, and one rename at the end.

A new bundle is written into a hidden folder beside the target, which takes the target's name only when it is complete
and has passed the self-check; whatever fails leaves nothing behind. It may bring token maps in maps/ and a smaller
model in draft/, each checked before it is copied. A finished bundle is changed in place by writing only the new graphs
and the manifest, so its other files need not be distributed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from specedge import leftovers
from specedge.errors import BundleError, UsageError
from specedge.files import check_folder, disk_errors, publish_folder, scratch_folder, sweep
from specedge.maps.tmap_format import text_fingerprint
from specedge.maps.token_map import TokenMap
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.dims import Dims
from specedge.runtime.bundle.manifest import (
    CTC_GRAPH,
    DERIVED_GRAPHS,
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
)
from specedge.runtime.bundle.typed_json import parse_object
from specedge.runtime.engine.shortlist import picked_ids, shortlist_spans
from specedge.runtime.options import BLOCK_KIND
from specedge.runtime.text.tokenizer import Tokenizer, write_table

from .checkpoint import Checkpoint
from .chunk_encoder_graph import build_chunk_encoder
from .ctc_graph import write_head_for
from .decoder_graph import build_decoder, padded_vocabulary
from .derived_graphs import default_heads, write_align_graph, write_many, write_shortlist_graphs
from .draft_layers import SHORTLIST
from .encoder_graph import build_cross_kv, build_encoder, write_short_encoder
from .heads import Heads, write_heads
from .hub import check_space
from .layers import PRECISIONS, Precision, Weights
from .llama_graph import build_llama, build_projector
from .onnx_builder import GraphBuilder, file_entry, signature
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
    """Copy an opened bundle to `out`, where nothing is. Raises ResourceError."""
    with _new_folder(out) as folder:
        _copy_files(bundle, folder)
        _sync(folder)
        publish_folder(folder, out)


def _copy_files(bundle: Bundle, folder: Path) -> None:
    for name in (MANIFEST_NAME, *bundle.manifest.files):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.path / name, target)


def _write_more(
    manifest: Manifest,
    folder: Path,
    new: Path,
    *,
    draft: Bundle | None,
    ctc: Path | None,
    learnable: bool,
    short_audio: bool = False,
) -> list[str]:
    """Write into `new` what a bundle, of the graphs in `folder`, is to bring besides; the graphs among it.

    Raises UsageError for a draft that cannot serve this model, or brings one itself.
    """
    graphs = list[str]()
    if draft is not None:
        check_fit(draft.manifest, manifest)
        if any(name.startswith(_INSIDE) for name in draft.manifest.files):
            raise UsageError(f"{draft.path}: brings a draft of its own; export that model again without --draft")
        _copy_files(draft, new / DRAFT_FOLDER)
    if ctc is not None:
        graphs.append(CTC_GRAPH)
        write_head_for(manifest, folder, ctc, new / f"{CTC_GRAPH}.onnx")
    if learnable:
        learning = {graph: new / f"{graph}.onnx" for graph in (LEARN_GRAPH, VECTORS_GRAPH)}
        find("learn graphs")(folder / manifest.graphs["decoder"].file, learning)
        graphs += learning
    if short_audio:
        graphs.append(SHORT_ENCODER_GRAPH)
        write_short_encoder(folder, manifest.dims, new)
    return graphs


def listed(manifest: Manifest, new: Path, graphs: Iterable[str], before: Iterable[Path] = ()) -> Manifest:
    """`manifest` with these graphs, and the files in `new` but those of `before`. What a draft there has in common with
    the model is linked."""
    files = dict(manifest.files)
    for path in sorted({*_files(new)} - {*before}):
        name = path.relative_to(new).as_posix()
        entry, own = file_entry(path), name.removeprefix(_INSIDE)
        files[name] = entry
        if own != name and entry == manifest.files.get(own) and (new / own).exists():
            with contextlib.suppress(OSError):  # a file system without links keeps the copy
                os.link(new / own, path.with_name(f"{path.name}.link"))
                os.replace(path.with_name(f"{path.name}.link"), path)
    return replace(manifest, graphs={**manifest.graphs, **{name: signature(new, name) for name in graphs}}, files=files)


_INSIDE = f"{DRAFT_FOLDER}/"
_LEFTOVER = re.compile(r"\.[0-9a-f]{16}\.unfinished(/.*)?")  # of a change in place that was killed
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
) -> Bundle:
    """Build the bundle `out` from an opened checkpoint and return it, checked.

    maps, draft, heads, ctc: what it brings along for the drafters of these names, heads besides the checkpoint's, ctc
    the file of a trained head; layers: a draft over the same encoder (`draft_layers`), in the place of `draft`;
    learnable: with graphs that a draft learns with; encoder_plain: with an encoder for execution providers.

    Raises BundleError and MapError when what it is to bring is none, or of another model, CheckpointError when weights
    or vocabulary cannot be used, Interrupted on Ctrl-C during the self-check, ExactnessError when the graphs do not
    compute what the weights say, UsageError when `out` must not be replaced, ResourceError when it cannot be written.
    """
    if precision not in PRECISIONS:
        raise UsageError(f"precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
    check_target(out, replace_existing=replace_existing)
    with _new_folder(out) as folder:
        n_weights = sum(map(math.prod, checkpoint.shapes.values()))
        if encoder_plain:  # which has its weights once more
            shapes = checkpoint.shapes.items()
            n_weights += sum(math.prod(shape) for name, shape in shapes if name.startswith("model.encoder."))
        check_space("the bundle", int(n_weights * BYTES_PER_WEIGHT[precision]), out.parent, "give another -o")
        manifest = _write_files(checkpoint, folder, PRECISIONS[precision], name, version, maps, heads)
        before = _files(folder)
        graphs = _write_more(manifest, folder, folder, draft=draft, ctc=ctc, learnable=learnable)
        if encoder_plain:
            graphs.append(write_plain_encoder(manifest, checkpoint, folder))
        if layers is not None:
            inside = folder / DRAFT_FOLDER
            write_bundle(layers, inside, precision=precision, name=f"{name}-draft", version=version)
        manifest = listed(manifest, folder, graphs, before)
        made = Bundle(path=folder, manifest=manifest, digest="")
        numbers = check_bundle(made, checkpoint, checkpoint.spec, PRECISIONS[precision])
        has_exact_paths = numbers.get("tree_invariance", {"exact": True})["exact"]
        if not has_exact_paths and numbers["row_invariance"]["exact"]:
            # The graph's fault and not this machine's; the bundle is a good one without it.
            manifest = without_graph(manifest, folder, MANY_GRAPH)
        manifest = replace(manifest, selfcheck=numbers)
        data = manifest.to_bytes()
        (folder / MANIFEST_NAME).write_bytes(data)
        _sync(folder)
        if os.path.lexists(out):
            check_target(out, replace_existing=replace_existing)  # it may have come into being meanwhile
        publish_folder(folder, out)
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
        files={path.relative_to(folder).as_posix(): file_entry(path) for path in _files(folder)},
        kind=SPEECH if isinstance(spec, SpeechSpec) else WHISPER,
    )


def _write_graphs(
    checkpoint: Checkpoint, folder: Path, precision: Precision, eot: int, heads: Sequence[Heads]
) -> tuple[list[str], tuple[tuple[int, int], ...]]:
    """Write all graphs; their names, and the alignment heads of a Whisper, as (layer, head)."""
    spec, dims = checkpoint.spec, checkpoint.spec.dims
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
            build_decoder(g, dims, checkpoint, precision.decoder, int8_attention=precision.int8_attention)
        write_many(folder)
        write_short_encoder(folder, dims, folder)
        seen_by = _heads(spec.generation.get("alignment_heads"), dims) or default_heads(dims)
        write_align_graph(folder, dims, seen_by)
        shortlist = _write_shortlist(folder, dims, eot, precision, checkpoint)
        graphs = [*GRAPH_NAMES, *DERIVED_GRAPHS, SHORT_ENCODER_GRAPH, *shortlist]
    return [*graphs, *write_heads(folder, sets, dims, checkpoint, precision)], seen_by


def _write_shortlist(folder: Path, dims: Dims, eot: int, precision: Precision, weights: Weights) -> list[str]:
    """Write the graphs with which the model drafts, and return their names; none where the vocabulary is small."""
    spans, picked = shortlist_spans(padded_vocabulary(dims, precision.decoder), eot), None
    if spans is None:
        return []
    if weights.has(SHORTLIST):
        picked = picked_ids(weights.tensor(SHORTLIST), eot)
    write_shortlist_graphs(folder, spans, picked)
    return [SHORTLIST_GRAPH, VECTORS_GRAPH]


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
    sweep(out)
    if not os.path.lexists(out):
        return
    if not replace_existing:
        raise UsageError(f"{out}: exists already; give another -o, remove it, or add --force to replace a bundle")
    if not (out / MANIFEST_NAME).is_file():
        raise UsageError(f"{out}: exists and is no bundle, so it is not replaced; give another -o")
    if not out.is_symlink():  # of a link, what it points to stays
        named = {MANIFEST_NAME, *_named(out / MANIFEST_NAME)}
        check_folder(out, lambda name: name in named or _LEFTOVER.fullmatch(name) is not None, "bundle")


def _named(manifest: Path) -> Iterable[str]:
    """The files that a manifest of any version names; none where it cannot be read."""
    try:
        files = parse_object(manifest.read_bytes(), str(manifest)).get("files")
    except (OSError, BundleError):
        return ()
    return files if isinstance(files, dict) else ()


@contextlib.contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A scratch folder for `out`. Folders above `out` are made, and taken away again when the export fails."""
    made = [folder for folder in out.parents if not folder.exists()]
    try:
        with disk_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(out) as folder:
            folder.chmod(0o755)
            yield folder
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):  # something else is in it by now
                folder.rmdir()
        raise


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

    Raises BundleError when it is no whole bundle of this format, or the file is no head for its encoder, UsageError for
    a draft that cannot serve it, for what it has already and for short audio of a speech LLM, ResourceError when the
    folder cannot be written.
    """
    bundle = Bundle.open(folder)
    if short_audio and bundle.manifest.kind != WHISPER:
        raise UsageError(f"{folder}: this speech LLM hears short audio as it is")
    if learnable and LEARN_GRAPH in bundle.manifest.graphs:
        raise UsageError(f"{folder}: this bundle has the graphs to learn with already")
    if draft is not None and has_draft(bundle.manifest):
        raise UsageError(f"{folder}: this bundle brings a draft already")
    inside = leftovers.Names(parent=bundle.path, prefix=".", suffix=".unfinished")  # a bundle overlooks such names
    with disk_errors(folder), leftovers.temporary_folder(inside) as new, leftovers.temporary_folder(inside) as old:
        graphs = _write_more(
            bundle.manifest, bundle.path, new, draft=draft, ctc=ctc, learnable=learnable, short_audio=short_audio
        )
        manifest = listed(bundle.manifest, new, graphs)
        names = [path.relative_to(new).as_posix() for path in _files(new)]
        (new / MANIFEST_NAME).write_bytes(manifest.to_bytes())
        _sync(new)
        try:
            for name in names:
                for place in (bundle.path / name, old / name):
                    place.parent.mkdir(parents=True, exist_ok=True)
                if (bundle.path / name).exists():
                    os.replace(bundle.path / name, old / name)
                os.replace(new / name, bundle.path / name)
            os.replace(new / MANIFEST_NAME, bundle.path / MANIFEST_NAME)
        except BaseException:
            for name in names:
                if (old / name).exists():
                    os.replace(old / name, bundle.path / name)
                elif name not in bundle.manifest.files:
                    (bundle.path / name).unlink(missing_ok=True)
            if not has_draft(bundle.manifest):
                shutil.rmtree(bundle.path / DRAFT_FOLDER, ignore_errors=True)
            raise
    return Bundle.open(folder)


def _sync(folder: Path) -> None:
    """Have the files of a folder on the disk. Raises OSError."""
    for path in _files(folder):
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
