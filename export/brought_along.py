"""What a bundle brings along besides its model: token maps in maps/, and a smaller model in draft/ that drafts for it.

Each is checked before it is copied. Does not know: graphs, checkpoints.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specedge.maps.token_map import TokenMap
from specedge.runtime.bundles.bundle import MANIFEST_NAME, Bundle, FileEntry, Manifest, hash_file
from specedge.runtime.drafters.draft_fit import DRAFT_FOLDER, check_fit
from specedge.runtime.errors import UsageError

__all__ = ["copy_maps", "with_draft"]


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
