"""`rules="hf"` against transformers' generate on the same weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.sampling import Noise
from specedge.runtime.engine.engine import Engine
from specedge.runtime.longform.transcribe import transcribe
from specedge.runtime.options import TranscribeOptions
from support.checkpoints import make_checkpoint
from support.demo import checkpoint
from support.exported import load_transformers
from support.longform import LONG, MAINTENANCE, NOTES, Samples, joined, noise, silence, tones
from support.openai_peer import caller

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


PLAIN: dict[str, Any] = {
    "language": "en",
    "rules": "hf",
    "temperature": (0.0,),
    "best_of": 1,
    "condition_on_previous_text": False,
    "no_speech_threshold": None,
    "log_prob_threshold": None,
    "compression_ratio_threshold": None,
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A segment as it is compared; seconds."""

    start: float
    end: float
    tokens: list[int]


@dataclass(frozen=True, kw_only=True)
class Hf:
    """A checkpoint folder in both runtimes; `peer` is transformers' model."""

    engine: Engine
    bundle: Bundle
    peer: Any

    @classmethod
    def of(cls, folder: Path, work: Path) -> Hf:
        with open_checkpoint(folder) as source:
            bundle = write_bundle(source, work / "bundle", precision="fp32", name="compared", version="0")
        return cls(engine=Engine(bundle, threads=1, cache=False), bundle=bundle, peer=load_transformers(folder))

    def theirs(self, samples: Samples, options: dict[str, Any]) -> list[Found]:
        """generate's segments, but for those that say nothing; sampling uses the keyed noise of this project."""
        transformers: Any = pytest.importorskip("transformers")
        manifest = self.bundle.manifest
        extractor = transformers.WhisperFeatureExtractor(feature_size=manifest.dims.n_mels)
        extractor.n_samples = manifest.n_frames * 160
        is_long = len(samples) > manifest.n_frames * 160
        padding: dict[str, Any] = {"truncation": False, "padding": "longest"} if is_long else {}
        features = extractor(samples, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True, **padding)
        import torch

        with mock.patch.object(torch, "multinomial", _keyed_multinomial):
            generated = self.peer.generate(
                features.input_features,
                attention_mask=features.attention_mask,
                return_timestamps=True,
                return_segments=True,
                num_beams=1,
                top_k=0,
                **({"do_sample": False} | options),
            )
        tokenizer, eot = self.bundle.tokenizer, manifest.tokens.eot
        found = [
            Found(
                start=round(float(one["start"]), 2),
                end=round(float(one["end"]), 2),
                tokens=[token for token in one["tokens"].tolist() if token != eot],
            )
            for one in generated["segments"][0]
        ]
        return [one for one in found if one.start != one.end and tokenizer.decode(one.tokens).strip()]

    def ours(self, samples: Samples, **options: Any) -> list[Found]:
        with open_audio(np.asarray(samples)) as stream:
            segments = transcribe(self.engine, self.bundle, stream, TranscribeOptions(**(PLAIN | options)))
            return [Found(start=round(s.start, 2), end=round(s.end, 2), tokens=s.tokens) for s in segments]


def _keyed_multinomial(probs: Any, num_samples: int) -> Any:
    """`torch.multinomial` as generate calls it, with the noise of `runtime/decoding/sampling.py`."""
    import torch

    assert num_samples == 1 and len(probs) == 1
    seek = int(caller("generate_with_fallback", "seek")[0])
    temperature = caller("generate_with_fallback", "temperature")
    position = caller("_sample", "input_ids").shape[1]
    noise = Noise(seed=0, window_key=seek, temperature=temperature, sample=0)
    with np.errstate(divide="ignore"):
        row = np.log(probs[0].numpy().astype(np.float64))
    return torch.tensor([[int((row + noise.gumbel(position, len(row))).argmax())]])


CASES = {
    "short": (MAINTENANCE, {}, {}),
    "another short": (NOTES, {}, {}),
    "two": (joined(MAINTENANCE, silence(1), NOTES), {}, {}),
    "long": (LONG, {}, {}),
    "silence": (silence(6), {}, {}),
    "long silence": (silence(23), {}, {}),
    "noise": (noise(14), {}, {}),
    "behind the text before": (
        joined(LONG, LONG),
        {"condition_on_previous_text": True},
        {"condition_on_prev_tokens": True},
    ),
    "no speech": (
        joined(LONG, silence(25), NOTES),
        {
            "condition_on_previous_text": True,
            "no_speech_threshold": 0.4,
            "log_prob_threshold": -0.4,
            "temperature": (0.0,),
        },
        {
            "condition_on_prev_tokens": True,
            "no_speech_threshold": 0.4,
            "logprob_threshold": -0.4,
            "temperature": (0.0,),
        },
    ),
    "ids that repeat": (
        joined(LONG, MAINTENANCE),
        {"compression_ratio_threshold": 0.95, "temperature": (0.0, 0.3, 0.6), "condition_on_previous_text": True},
        {
            "compression_ratio_threshold": 0.95,
            "temperature": (0.0, 0.3, 0.6),
            "condition_on_prev_tokens": True,
            "logprob_threshold": -9.0,
        },
    ),
    "never sure": (
        LONG,
        {"log_prob_threshold": 0.0, "temperature": (0.0, 0.4, 0.5), "condition_on_previous_text": True},
        {"logprob_threshold": 0.0, "temperature": (0.0, 0.4, 0.5), "condition_on_prev_tokens": True},
    ),
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Hf:
    return Hf.of(checkpoint(), tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module", params=[False, True], ids=["multilingual", "en"])
def random(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Hf:
    work = tmp_path_factory.mktemp("random")
    return Hf.of(make_checkpoint(work / "checkpoint", en=request.param, dtype="float32"), work)


@pytest.mark.parametrize("case", CASES)
def test_segments_are_those_of_generate(demo: Hf, case: str) -> None:
    audio, ours, theirs = CASES[case]
    samples = audio()
    expected = demo.theirs(samples, {"language": "en", "task": "transcribe", **theirs})
    assert demo.ours(samples, **ours) == expected
    assert len(expected) > 3 or len(samples) < 20 * 16_000 or "silence" in case


@pytest.mark.parametrize("conditions", [False, True])
def test_a_prompt_stands_where_generate_puts_it(demo: Hf, conditions: bool) -> None:
    import torch

    samples, prompt = LONG(), " Generator two, Maria."
    special = demo.bundle.manifest.tokens
    ids = torch.tensor([special.sot_prev, *demo.bundle.tokenizer.encode(prompt)])
    theirs = {"language": "en", "task": "transcribe", "prompt_ids": ids, "condition_on_prev_tokens": conditions}
    expected = demo.theirs(samples, theirs)
    assert demo.ours(samples, initial_prompt=prompt, condition_on_previous_text=conditions) == expected


@pytest.mark.parametrize("case", CASES)
def test_random_weights(random: Hf, case: str) -> None:
    _, ours, theirs = CASES[case]
    for seed, seconds in ((1, 1.7), (2, 5.03), (3, 9.31)):
        samples = tones(seconds, seed)()
        named = {"language": "en", "task": "transcribe"} if random.bundle.manifest.tokens.is_multilingual else {}
        expected = random.theirs(samples, {**named, **theirs})
        assert random.ours(samples, **ours) == expected, seed
