"""From a checkpoint to a bundle: `specedge export` and `specedge models pull`, for programs too."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specedge.errors import UsageError
from specedge.models import catalogue, store
from specedge.runtime.bundle.bundle import MANIFEST_NAME, Bundle, read_manifest
from specedge.runtime.console import Progress, notify
from specedge.version import __version__

if TYPE_CHECKING:
    from .checkpoint import Checkpoint


def export_to(
    source: str,
    out: Path | None = None,
    *,
    precision: str = "int8",
    name: str | None = None,
    origin: str = "auto",
    adapter: Path | None = None,
    revision: str | None = None,
    force: bool = False,
    maps: Sequence[Path] = (),
    draft: Path | None = None,
    heads: Sequence[Path] = (),
    ctc: Path | None = None,
    learnable: bool = False,
    encoder_plain: bool | None = None,
) -> Bundle:
    """Export `source` into the folder `out`, by default into the store under its name; returns the opened bundle.

    source: a checkpoint folder or file, a hub id or a catalogue name. origin: "auto", or "optimum" for a folder of ONNX
    files. adapter: a LoRA folder to merge. maps, draft, heads, ctc: what the bundle brings along, token maps, the
    folder of a smaller bundle that drafts for it or a file of draft layers, files of trained heads, one of each kind,
    and of a CTC head. A published model gets the layers that are shipped for it, unless it brings something else.
    learnable: with the graphs that a draft learns with. encoder_plain: with a second encoder in plain operators, for
    execution providers other than the CPU's; by default where OpenVINO is installed, which runs it.

    Raises SpecedgeError as `bundling.write_bundle` and `checkpoint.open_checkpoint` say.
    """
    from specedge.runtime.engine.providers import has_openvino

    from .bundling import check_target, write_bundle
    from .checkpoint import open_heads
    from .draft_layers import open_layers, shipped
    from .qwen3_asr import SpeechSpec
    from .sources import forget

    name = store.check_name(name or _with_precision(_base_name(source), precision))
    target = out if out is not None else store.folder() / name
    check_target(target, replace_existing=force)  # before a download of gigabytes
    checkpoint = _open(source, origin, revision, adapter)
    is_llm = isinstance(checkpoint.spec, SpeechSpec)
    if encoder_plain is None:
        encoder_plain = has_openvino() and not is_llm
    if encoder_plain and is_llm:
        checkpoint.close()
        raise UsageError(f"{source}: has Qwen's encoder, which is not written in plain operators")
    brought = draft if draft is not None else None if heads or ctc or adapter else shipped(checkpoint)
    layers = None if brought is None or brought.is_dir() else open_layers(brought, checkpoint)
    # Each is read for the graphs, and for their check.
    with checkpoint, Progress(2 * len(checkpoint.shapes), "weights", f"export {name}") as progress:
        checkpoint.on_read = progress.update
        made = write_bundle(
            checkpoint,
            target,
            precision=precision,
            name=name,
            version=__version__,
            replace_existing=force,
            maps=maps,
            draft=None if draft is None or layers is not None else Bundle.open(draft),
            layers=layers,
            heads=[open_heads(file, checkpoint.spec) for file in heads],
            ctc=ctc,
            learnable=learnable,
            encoder_plain=encoder_plain,
        )
    forget(checkpoint.spec.source, checkpoint.folder)
    return made


def download_model(
    size_or_id: str,
    output_dir: str | None = None,
    local_files_only: bool = False,
    cache_dir: str | None = None,
    revision: str | None = None,
    use_auth_token: str | bool | None = None,
) -> str:
    """The folder of the bundle of `size_or_id`, which is fetched and exported first unless it is installed.

    size_or_id: a short name ("small") or a hub id of a checkpoint in Hugging Face layout. output_dir: the folder to
    make instead of one in the store. local_files_only: do not fetch. revision: a branch, tag or commit of the hub.
    cache_dir and use_auth_token are not taken: HF_HOME and HF_TOKEN set them for huggingface_hub.

    Raises UsageError for what cannot be, ModelError when there is no such model, CheckpointError when it cannot be
    fetched or is none.
    """
    if cache_dir is not None or use_auth_token is not None:
        raise UsageError("cache_dir and use_auth_token: set HF_HOME and HF_TOKEN instead, which the hub's client reads")
    if local_files_only:
        return os.path.abspath(store.find(size_or_id) if output_dir is None else store.find(Path(output_dir)))
    out = None if output_dir is None else Path(output_dir)
    if out is None and revision is None and any(path.name == size_or_id for path in store.installed()):
        return os.path.abspath(store.find(size_or_id))
    return os.path.abspath(pull_model(size_or_id, out=out, revision=revision)[0])


def pull_model(
    name: str,
    *,
    precision: str = "int8",
    out: Path | None = None,
    revision: str | None = None,
    draft: Path | None = None,
) -> tuple[Path, bool]:
    """Export the checkpoint `name` into the store, or into the folder `out`; where, and whether it is new.

    name: a catalogue name or a hub id, which is fetched, or the path of a checkpoint on this machine, or of a bundle,
    which is copied. In the store another precision than int8 is added to the name. draft: as for `export_to`; a bundle
    that is there already gets it too, unless it has one. Raises as `download_model`.
    """
    from .bundling import add_to_bundle, copy_bundle, has_draft
    from .hub import resolve

    known = catalogue.find(name)
    is_here = known is None and os.path.exists(os.path.expanduser(name))
    source = name if is_here else resolve(name)
    bundle, base = Path(source).expanduser(), _base_name(name) if known or is_here else source.split("/")[1]
    is_bundle = (bundle / MANIFEST_NAME).is_file()
    stored = store.check_name(base if is_bundle else _with_precision(base, precision))
    target = store.folder() / stored if out is None else out
    is_new = not os.path.lexists(target)
    if is_new and out is None:
        store.make_folder()
    if is_new and is_bundle:
        copy_bundle(Bundle.open(bundle), target)
    elif is_new:
        export_to(source, target, precision=precision, name=stored, revision=revision, draft=draft)
    if draft is not None and not has_draft(read_manifest(target)[0]):
        add_to_bundle(target, draft=Bundle.open(draft))
    return target, is_new


def pull_draft(name: str, *, precision: str = "int8") -> Path:
    """The bundle of the best known draft for the checkpoint `name`, exported into the store unless it is there.

    Raises ModelError where none is known, and as `pull_model`.
    """
    return pull_model(catalogue.draft_for(name), precision=precision)[0]


def _open(source: str, origin: str, revision: str | None, adapter: Path | None) -> Checkpoint:
    from .checkpoint import open_checkpoint

    if origin == "optimum":
        if revision is not None:
            raise UsageError("--revision goes with a hub id; --from optimum reads a local folder")
        if adapter is not None:
            raise UsageError("--adapter goes with weights; --from optimum reads graphs")
        from .optimum_onnx import open_optimum

        return open_optimum(Path(source))
    checkpoint = open_checkpoint(source, adapter=adapter, revision=revision)
    told = checkpoint.spec.source
    if told.kind == "hub" and not catalogue.is_commit(revision or catalogue.pinned(told.id)):
        notify(
            f"{told.id} is not pinned: this is commit {told.revision}, and --revision with it gets the same one again"
        )
    if checkpoint.spec.warning:
        notify(f"{source}: {checkpoint.spec.warning}")
    if checkpoint.spec.heads is not None and checkpoint.spec.heads.replaces_base:
        notify(
            f"{source}: its head 0 makes the next token in the place of the model's own (Medusa-Linear): drafts change "
            "none of its text, but that is not the text of the Whisper it was made from"
        )
    return checkpoint


def _base_name(source: str) -> str:
    """The name of a checkpoint, or of a folder or a file as a bundle's, which must fit every file system."""
    known = catalogue.find(source)
    if known is not None:
        return known.name
    name = re.sub(r"\.(pt|bin)$", "", Path(source).expanduser().resolve().name)
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name)[:80].strip("._+-") or "model"


def _with_precision(name: str, precision: str) -> str:
    return name if precision == "int8" else f"{name}-{precision}"  # int8 is the default and owns the plain name
