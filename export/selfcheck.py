"""The self-check of a new bundle: its graphs against the same graphs in float32, and whether its rows are exact.

It runs on made-up audio of about 2.5 s and a sentence behind the prompt that every window has, so it costs a few passes
of the model. It proves that files and rounding give what the weights say; accuracy on speech is measured elsewhere: on
made-up audio published base in 4 bits has the best token of float32 in 6 of 20 rows, and on speech in 17. That the
float32 graphs are Whisper's is for the tests, which compare them with transformers. Rows that are not exact here are
noted, not refused: they may be exact where the bundle will run, and the runtime asks there before it drafts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import ExactnessError
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import PLAIN_ENCODER_GRAPH, PROJECTOR_GRAPH, Dims, Manifest
from specedge.runtime.device import isa
from specedge.runtime.engine.doctor import golden_logits
from specedge.runtime.engine.engine import encoder_output
from specedge.runtime.engine.exactness import Invariance, probe_rows
from specedge.runtime.engine.made_up import probe_ids, probe_mel
from specedge.runtime.engine.session import RUNTIME_VERSION, Canceller, load_graph
from specedge.runtime.engine.speech import open_engine

from .chunk_encoder_graph import build_chunk_encoder
from .decoder_graph import PROJECTION, VOCABULARY, build_decoder
from .encoder_graph import build_cross_kv, build_encoder
from .layers import PRECISIONS, Precision, Weights, parts_of, rows_of
from .llama_graph import build_llama, build_projector
from .qwen3_asr import SpeechSpec
from .reference import Reference
from .spec import Spec

Array = NDArray[np.float32]
PROBE_THREADS = 1  # the runtime asks again with those that it has
# Without a prompt a Whisper is beside itself: 12 random ids were off by 1.2 of their size in 4 bits, these by 0.34.
TEST_TEXT = " And so, my fellow Americans, ask not what your country can do for you."
N_LLM_IDS = 12


def check_ids(bundle: Bundle) -> list[int]:
    """A prompt and the ids of a sentence, as far as the text context goes."""
    special = bundle.manifest.whisper_tokens
    language = "en" if "en" in special.languages else next(iter(special.languages), None)
    ids = [*special.prompt(language, timestamps=False), *bundle.tokenizer.encode(TEST_TEXT)]
    return ids[: bundle.manifest.dims.n_text_ctx]


def check_bundle(bundle: Bundle, weights: Weights, spec: Spec, precision: Precision) -> dict[str, Any]:
    """Numbers for the manifest's `selfcheck`.

    Raises ExactnessError when the graphs do not compute what the weights say.
    """
    dims, is_llm, canceller = bundle.manifest.dims, isinstance(spec, SpeechSpec), Canceller()
    mel = probe_mel(dims)
    ids = probe_ids(dims, N_LLM_IDS) if is_llm else check_ids(bundle)
    with canceller.on_sigint():
        # The reference is last, so that the largest models stay within the export's memory.
        engine = open_engine(bundle, threads=PROBE_THREADS, canceller=canceller, loads=())
        features = engine.encode(mel)
        engine.unload("encoder", "cross_kv", PROJECTOR_GRAPH)
        golden = golden_logits(engine, features)
        asked = [*range(dims.n_vocab, dims.n_vocab + features.n_audio), *ids]
        logits = engine.forward(engine.start(features), asked, range(features.n_audio, len(asked))).copy()
        rows, _ = probe_rows(engine, features)
        found = {"row_invariance": Invariance(results=tuple(row for row in rows if row.n_paths == 1))}
        if not is_llm:
            found["tree_invariance"] = Invariance(results=tuple(row for row in rows if row.n_paths > 1))
        engine.unload("decoder", "many")
        measured: dict[str, Array] = {"features": features.hidden, "logits": logits}
        if isinstance(spec, SpeechSpec):
            measured["audio"] = features.cross["audio"][0]
            wanted = _speech_llm(mel, ids, spec, weights, canceller)
        else:
            measured["scores"] = engine.align_scores(features, ids)
            engine.unload("align")
            wanted = _whisper(mel, ids, bundle.manifest, weights, canceller)
        if PLAIN_ENCODER_GRAPH in bundle.manifest.graphs:
            session = load_graph(bundle, PLAIN_ENCODER_GRAPH, canceller, threads=PROBE_THREADS)
            measured["plain_features"] = encoder_output(session, mel[None], dims.n_audio_state)[0]
            wanted["plain_features"] = wanted["features"]
    numbers = {f"{part}_relative_error": relative_error(measured[part], wanted[part]) for part in measured}
    for part in ("features", "logits"):
        numbers[f"{part}_max_error"] = float(np.abs(measured[part] - wanted[part]).max())
    numbers["argmax_agreement"] = float((measured["logits"].argmax(-1) == wanted["logits"].argmax(-1)).mean())
    check_errors(numbers, precision)
    return {
        "onnxruntime": RUNTIME_VERSION,
        "isa": " ".join((isa().machine, *isa().features)),
        **{key: round(value, 9) for key, value in numbers.items()},
        **{key: invariance.to_json() for key, invariance in found.items()},
        "golden": golden,
    }


def _whisper(
    mel: Array, ids: list[int], manifest: Manifest, weights: Weights, canceller: Canceller
) -> dict[str, Array]:
    """What the float32 graphs give; "scores" are those of the alignment heads."""
    dims = manifest.dims
    encoder = Reference({"mel": mel[None]}, canceller)
    build_encoder(encoder, dims, weights, "fp32")
    cross = Reference({"features": encoder.values["features"]}, canceller)
    build_cross_kv(cross, dims, weights, "fp32", int8_attention=False)
    positions = np.arange(len(ids), dtype=np.int64)
    keys = {name: value for name, value in cross.values.items() if name.startswith("cross_")}
    decoder = Reference({**_text(ids, dims, len(ids)), **keys, "positions": positions[None]}, canceller)
    build_decoder(decoder, replace(dims, n_vocab=len(ids)), _SomeRows(weights, ids), "fp32", int8_attention=False)
    scores = []
    for layer, head in manifest.alignment_heads:
        name = next(node.input[0] for node in decoder.ran if node.input[1:2] == [f"cross_k_{layer}"])
        queries = decoder.values[name][0].reshape(len(ids), dims.n_text_head, -1)[:, head]
        scores.append(queries @ keys[f"cross_k_{layer}"][0, head].T / np.float32(math.sqrt(dims.head_dim)))
    return {"features": encoder.values["features"][0], "logits": _logits(decoder, weights), "scores": np.stack(scores)}


def _speech_llm(
    mel: Array, ids: list[int], spec: SpeechSpec, weights: Weights, canceller: Canceller
) -> dict[str, Array]:
    """What the float32 graphs give: features, rows of audio, and logits of `ids` behind them."""
    dims, parts = spec.dims, []
    for first in range(0, mel.shape[1], dims.n_window_frames):
        encoder = Reference({"mel": mel[None, :, first : first + dims.n_window_frames]}, canceller)
        build_chunk_encoder(encoder, dims, weights, "fp32")
        parts.append(encoder.values["features"])
    features = np.concatenate(parts, axis=1)
    projector = Reference({"features": features}, canceller)
    build_projector(projector, dims, weights, "fp32")
    audio = projector.values["audio"]
    text = _text(ids, dims, audio.shape[1] + len(ids))
    decoder = Reference({**text, "audio": audio, "logit_rows": text["logit_rows"] + audio.shape[1]}, canceller)
    few = _SomeRows(weights, ids)
    build_llama(decoder, replace(dims, n_vocab=len(ids)), few, "fp32", rope_theta=spec.rope_theta, epsilon=spec.epsilon)
    return {"features": features[0], "audio": audio[0], "logits": _logits(decoder, weights)}


class _SomeRows:
    """A decoder's weights, of the vocabulary only the rows of `ids`: the whole would be most of what is in memory."""

    def __init__(self, weights: Weights, ids: list[int]) -> None:
        self._weights, self._ids = weights, ids

    def has(self, name: str) -> bool:
        return self._weights.has(name)

    def tensor(self, name: str) -> Array:
        if name in (VOCABULARY, PROJECTION):
            return rows_of(self._weights, name, self._ids)
        return self._weights.tensor(name)


def _logits(decoder: Reference, weights: Weights) -> Array:
    """Of the rows that the decoder multiplied with `_SomeRows`, by the whole vocabulary, some of it at a time."""
    rows = next(decoder.values[node.input[0]] for node in decoder.ran if node.op_type == "Gemm")
    name = PROJECTION if weights.has(PROJECTION) else VOCABULARY
    return np.concatenate([rows @ part.T for part in parts_of(weights, name)], axis=1)


def _text(ids: list[int], dims: Dims, n_rows: int) -> dict[str, NDArray[Any]]:
    """Inputs of a decoder for a text of `n_rows`, those of audio included, whose logits are wanted behind `ids`."""
    empty = np.zeros((1, dims.n_kv_head, n_rows, dims.head_dim), np.float32)
    return {
        "ids": np.arange(len(ids), dtype=np.int64)[None],  # their rows of `_SomeRows`
        "logit_rows": np.arange(len(ids), dtype=np.int64),
        "past_len": np.array([n_rows - 1], np.int32),
        "total_len": np.array(n_rows, np.int32),
        **{f"self_{part}_{layer}": empty for part in "kv" for layer in range(dims.n_text_layer)},
    }


def check_errors(numbers: dict[str, float], precision: Precision) -> None:
    """Raises ExactnessError where a part's relative error is above its bound."""
    # The plain encoder has weights of 8 bits at least.
    plain_bound = min(precision.max_features_error, PRECISIONS["int8"].max_features_error)
    bounds = {"features": precision.max_features_error, "plain_features": plain_bound}
    for part in ("features", "plain_features", "audio", "logits", "scores"):
        error, bound = numbers.get(f"{part}_relative_error", 0.0), bounds.get(part, precision.max_logits_error)
        if not error <= bound:  # NaN fails too
            raise ExactnessError(
                f"the {precision.name} graphs do not compute what the checkpoint's weights say: {part} are off by "
                f"{error:.3g} of their size, expected at most {bound:g}; nothing was written; try --precision fp32, "
                "and report the checkpoint if that fails too"
            )


def relative_error(measured: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Frobenius norm of the difference over that of `expected`."""
    return float(np.linalg.norm(measured - expected) / max(float(np.linalg.norm(expected)), 1e-20))
