"""Download a large file of the Hugging Face hub so that a download that was stopped goes on where it was.

huggingface_hub removes what it has when its process ends. Here the bytes lie beside the place of the file in the hub's
cache, under the sha256 that the hub names, until all are there and have that sum; then huggingface_hub finds the file
in its place and downloads nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from specedge.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class LargeFile:
    """A file of the hub that is not in the cache. name: in its repository; blob: its place in the cache."""

    name: str
    url: str
    sha256: str
    size_bytes: int
    blob: Path
    lock: Path

    @property
    def part(self) -> Path:
        """Where the bytes lie until all are there."""
        return self.blob.with_name(f"{self.blob.name}.specedge.incomplete")

    @property
    def held_bytes(self) -> int:
        """How many bytes are there from an earlier download."""
        path = self.blob if self.blob.exists() else self.part
        return min(path.stat().st_size, self.size_bytes) if path.exists() else 0

    def fetch(self) -> None:
        """Put the file into its place in the cache, with the bytes that are there already.

        Raises CheckpointError for other bytes than the published ones, which are removed then, and what huggingface_hub
        and the file system raise; what came is kept then.
        """
        from huggingface_hub.utils import WeakFileLock

        for path in (self.blob, self.lock):
            path.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(self.lock):
            if self.blob.exists():  # another process was quicker
                return
            self._append()
            with open(self.part, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != self.sha256:
                self.part.unlink()
                raise CheckpointError(
                    f"{self.name}: {self.url} sent other bytes than the published ones (sha256 {self.sha256}); they "
                    "were removed: run the same command again, or use another hub"
                )
            os.replace(self.part, self.blob)

    def _append(self) -> None:
        """Download what is missing of the part, to its end."""
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        with open(self.part, "ab") as file:
            if file.tell() > self.size_bytes:
                file.truncate(0)
            held = file.seek(0, os.SEEK_END)
            http_get(
                self.url,
                file,
                resume_size=held,
                headers=build_hf_headers(),
                expected_size=self.size_bytes,
                displayed_filename=self.name,
            )
            file.flush()
            os.fsync(file.fileno())


def find_large_file(hub_id: str, name: str, *, commit: str, cache_dir: Path, endpoint: str) -> LargeFile | None:
    """What is to be downloaded of a file. None for one that the hub names no sha256 of, as of small ones, and where the
    cache has no links, because there a file lies in another place. Raises what huggingface_hub raises.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import are_symlinks_supported, repo_folder_name

    url = hf_hub_url(hub_id, name, revision=commit, endpoint=endpoint)
    about = get_hf_file_metadata(url)
    sha256, folder = about.etag or "", repo_folder_name(repo_id=hub_id, repo_type="model")
    if about.size is None or not re.fullmatch(r"[0-9a-f]{64}", sha256) or not are_symlinks_supported(cache_dir):
        return None
    return LargeFile(
        name=name,
        url=url,
        sha256=sha256,
        size_bytes=about.size,
        blob=cache_dir / folder / "blobs" / sha256,
        lock=cache_dir / ".locks" / folder / f"{sha256}.lock",
    )
