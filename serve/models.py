"""The models that are served: found by name, loaded when first used, unloaded when nobody used them for a while."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from specedge.export.default_model import default_model
from specedge.models import catalogue, store
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.engine.providers import require_provider
from specedge.runtime.model import WhisperModel

from .failures import Failure
from .settings import Settings

_DEFAULT_NAMES = ("", "whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe")


class Models:
    """One engine for each model in use, whoever asks. Raises ModelError for a model of the settings that is not there,
    or that has no encoder for the settings' provider, UsageError for a provider that is not there.

    A client can name what is served, and nothing else: never a path.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.paths = _served(settings)
        self.names = list(self.paths)  # the default one first
        self.languages: dict[str, list[str]] = {}
        for name, path in self.paths.items():
            bundle = Bundle.open(path, verify=False)
            require_provider(settings.encoder_provider, bundle)
            self.languages[name] = sorted(bundle.manifest.tokens.languages) or ["en"]
        self._loaded: dict[str, WhisperModel] = {}
        self._uses: dict[str, int] = {}
        self._used_s: dict[str, float] = {}
        self._loading = asyncio.Lock()

    @property
    def n_loaded(self) -> int:
        """How many are in memory."""
        return len(self._loaded)

    def name_of(self, asked: str) -> str:
        """The served name that a client means. Raises Failure 404."""
        if asked in _DEFAULT_NAMES:
            return self.names[0]
        if asked in self.paths:
            return asked
        known = catalogue.find(asked)
        for name in (f"whisper-{asked}", asked.rpartition("/")[2], "" if known is None else known.name):
            for served in self.paths:
                if name and served in (name, name.removeprefix("whisper-")):
                    return served
        there = ", ".join(self.names)
        raise Failure(404, "model_not_found", f"the model {asked[:80]!r} is not served here: {there}", param="model")

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[WhisperModel]:
        """The model, loaded; it stays so inside."""
        self._uses[name] = self._uses.get(name, 0) + 1
        try:
            async with self._loading:
                model = self._loaded.get(name)
                if model is None:
                    threads, provider = self._settings.threads, self._settings.encoder_provider
                    opened = partial(WhisperModel, cpu_threads=threads, encoder_provider=provider)
                    load = asyncio.to_thread(opened, self.paths[name])
                    model = self._loaded[name] = await asyncio.shield(load)
            yield model
        finally:
            self._uses[name] -= 1
            self._used_s[name] = time.monotonic()

    async def unload_unused(self) -> None:
        """Free the models that nobody used for `unload_after_s`, for ever."""
        after_s = self._settings.unload_after_s
        while after_s:
            await asyncio.sleep(min(after_s / 4, 10))
            for name in list(self._loaded):
                if not self._uses[name] and time.monotonic() - self._used_s[name] > after_s:
                    self._loaded.pop(name).kept_drafters.close()


def _served(settings: Settings) -> dict[str, Path]:
    if settings.models:
        return {Path(name).name if Path(name).is_dir() else name: store.find(name) for name in settings.models}
    default = default_model(download=settings.downloads, quiet=True)
    return {default.name: default} | {path.name: path for path in store.installed()}
