"""A bundle's contents in words, for `specedge models show`, and tables and sizes as commands print them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..bundle.bundle import Bundle
    from ..bundle.dims import Dims
    from ..bundle.manifest import Manifest
    from ..text.special import TokenLayout

# Languages of the published layouts: openai-whisper's tokenizer.py; v3 added Cantonese and so moved every id behind it.
_LAYOUTS = {99: "v2", 100: "v3"}


def layout(tokens: TokenLayout) -> str:
    """The special-token layout: "en", "v2", "v3", or "custom"; "speech" of a speech LLM."""
    if not tokens.n_timestamps:
        return "speech"
    if not tokens.is_multilingual:
        return "en"
    return _LAYOUTS.get(len(tokens.languages), "custom")


def format_size(n_bytes: int) -> str:
    """Bytes for people, in powers of 1000 as disks are sold: 999 B, 1.2 kB, 30.4 MB, 1.55 GB."""
    if n_bytes < 1000:
        return f"{n_bytes} B"
    for unit_bytes, unit in ((10**3, "kB"), (10**6, "MB")):
        if n_bytes < 999.95 * unit_bytes:
            return f"{n_bytes / unit_bytes:.1f} {unit}"
    return f"{n_bytes / 10**9:.2f} GB"


def describe_json(bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "path": str(bundle.path),
        "digest": bundle.digest,
        "size_bytes": bundle.size_bytes,
        "layout": layout(manifest.tokens),
        "n_languages": len(manifest.tokens.languages),
        **manifest.to_json(),
    }


def _speech_facts(dims: Dims) -> dict[str, str]:
    """What a speech LLM has besides."""
    from ..bundle.dims import SpeechDims

    if not isinstance(dims, SpeechDims):
        return {}
    return {
        "audio": f"{dims.n_audio_ctx} rows of the decoder a window, in stretches of {dims.n_window_frames} frames",
        "cache": f"{dims.n_kv_head} heads of keys and values, {dims.head_dim} wide",
    }


def _quantisation(manifest: Manifest) -> Mapping[str, Any]:
    """As the manifest has it; a speech LLM has a projector in the place of cross-attention."""
    if not _speech_facts(manifest.dims):
        return manifest.quantisation
    return {
        "projector" if key == "cross_kv" else key: value
        for key, value in manifest.quantisation.items()
        if key != "int8_attention"
    }


def describe(bundle: Bundle) -> str:
    from ..bundle.manifest import HOP_SAMPLES, N_FFT, SAMPLE_RATE_HZ, VERSION

    manifest = bundle.manifest
    dims, tokens, source = manifest.dims, manifest.tokens, manifest.source
    revision = f" at {source.revision}" if source.revision else ""
    languages = f"{len(tokens.languages)} languages" if tokens.is_multilingual else "one language"
    facts = {
        "name": manifest.name,
        "path": bundle.path,
        "source": f"{source.kind} {source.id}{revision}",
        "format": f"version {VERSION}, written by specedge {manifest.specedge_version}",
        "digest": bundle.digest,
        "precision": manifest.precision,
        "size": format_size(bundle.size_bytes),
        "vocabulary": f"{dims.n_vocab} tokens, layout {layout(tokens)}, {languages}",
        "window": f"{manifest.window_s:g} s, {manifest.n_frames} frames of {dims.n_mels} mels",
        "mel": f"{SAMPLE_RATE_HZ} Hz, n_fft {N_FFT}, hop {HOP_SAMPLES} samples",
        "encoder": _shape(dims.n_audio_layer, dims.n_audio_head, dims.n_audio_state, dims.n_audio_ctx),
        "decoder": _shape(dims.n_text_layer, dims.n_text_head, dims.n_text_state, dims.n_text_ctx),
    }
    facts |= _speech_facts(dims) or {
        "alignment": f"{len(manifest.alignment_heads)} heads",
        "suppressed": f"{len(manifest.suppress_tokens)} tokens, {len(manifest.suppress_begin)} at the beginning",
    }
    lines = [f"{key:<12}{value}" for key, value in facts.items()]
    for title, values in (("quantisation", _quantisation(manifest)), ("self-check", manifest.selfcheck)):
        lines += ["", title, *_indented(_flat(values))]
    lines += ["", "files"]
    files = sorted(manifest.files.items())
    lines += _indented([(name, format_size(entry.size), entry.sha256) for name, entry in files])
    return "\n".join(lines)


def _shape(n_layer: int, n_head: int, n_state: int, n_ctx: int) -> str:
    return f"{n_layer} layers, {n_head} heads, width {n_state}, {n_ctx} positions"


def _indented(rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in table(rows)]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    if not values and not prefix:
        yield "none", ""
    for key in sorted(values):
        value = values[key]
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            yield _one_line(prefix + key), _one_line(text)


def _one_line(text: str) -> str:
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= 100 else text[:97] + "..."


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines with the cells of `rows` in columns, all to the left (`output.report.aligned` is for figures)."""
    rows = list(rows)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
