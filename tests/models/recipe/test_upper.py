"""The upper layers learn and the lower ones stay, over rows that are what the lower ones give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from specedge.export.training.corpus import Utterance  # noqa: E402
from specedge.models.recipe import upper  # noqa: E402
from specedge.models.recipe.german import german_lines  # noqa: E402
from specedge.models.recipe.network import MODELS, Net, export  # noqa: E402
from specedge.models.recipe.trainer import demo_vocabulary  # noqa: E402

SMALL = replace(MODELS["micro"], name="small", n_encoder=3, n_audio_ctx=50, language="de")


def _utterances(n: int) -> list[Utterance]:
    rng = np.random.default_rng(1)
    sounds = [(3000 * rng.standard_normal(8000 + 100 * at)).astype(np.int16) for at in range(n)]
    return [
        Utterance(samples=sound, text=german_lines()[0][at], voice="", source="", start=0, end=len(sound))
        for at, sound in enumerate(sounds)
    ]


@pytest.mark.slow
def test_upper_layers_learn_and_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "small", SMALL)
    torch.manual_seed(0)
    start, vocabulary = Net(SMALL, demo_vocabulary(SMALL)), demo_vocabulary(SMALL)
    known = start.whisper.model.decoder.embed_tokens.weight.data
    known[:100] = known[vocabulary.other]
    export(start, vocabulary, tmp_path / "start")
    net, vocabulary = upper.begin("small", tmp_path / "start")
    table = net.whisper.model.decoder.embed_tokens.weight
    assert len({tuple(row) for row in table[:-1].tolist()}) == vocabulary.n_rows - 1, "new tokens are told apart"
    before = {name: value.clone() for name, value in net.state_dict().items()}
    lessons = upper.lessons_of(net, vocabulary, _utterances(33))
    assert [lesson.rows.shape for lesson in lessons] == [(16, 50, 64), (16, lessons[1].rows.shape[1], 64)]
    trainer = upper.UpperTrainer(net, vocabulary, tmp_path, n_steps=3, minutes=10)
    first = trainer.loss(lessons[0])[0].item()
    trainer.run(lessons)
    assert trainer.step == 3 and trainer.loss(lessons[0])[0].item() < first
    changed = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert not any(".encoder.conv" in name or ".encoder.layers.0." in name for name in changed)
    assert any(".encoder.layers.1." in name for name in changed) and any(".decoder." in name for name in changed)
    assert (tmp_path / "hf" / "model.safetensors").is_file()
    again = upper.UpperTrainer(upper.begin("small", tmp_path / "start")[0], vocabulary, tmp_path, n_steps=4, minutes=10)
    assert again.step == 3
    again.run(lessons)
    assert again.step == 4
