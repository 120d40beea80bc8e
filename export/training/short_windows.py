"""`specedge train short-windows`: a Whisper that hears windows cut behind the speech as it hears whole ones.

Audio-context fine-tuning (ACFT, futo-org/whisper-acft): the model on whole windows is the teacher. The student is the
same model on windows whose positions are cut to the speech and up to 64 more or fewer, a third of it at most. Both are
told the target's own text; the loss is the mean square of the difference of all decoder layers' hidden rows. Encoder
and decoder learn, the token table does not. Every tenth window is held out: the weights kept are those with the lowest
loss on it. At the end held-out windows are transcribed, whole and cut, before and after.
"""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from specedge.errors import UsageError
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.console import Progress
from specedge.runtime.longform.windows import AudioContext
from specedge.runtime.text.words import word_errors

from ..checkpoint import open_checkpoint
from .checkpoint_files import SHORT_WINDOWS, check_out, write_checkpoint
from .corpus import RATE_HZ
from .curve import EVERY_S
from .early_stopping import EarlyStopping, Plan, split
from .features import LEFT_OUT, Course, Float, Target, bundle_in, collect_mels, is_checkpoint, load_mels
from .nets import DraftNet, EncoderNet, decoder_of, encoder_of

_MARGIN = 64  # positions more or fewer than the speech takes
_SHARE = 3  # at most so much of them: 1 / _SHARE
_LONGEST = 0.6  # of a window: longer speech leaves little to cut
SHORTEST_S = 1.0
_MUCH_WORSE = 0.02  # word errors of cut windows more than of whole ones
_MOST_JUDGED, _MOST_HEARD = 40, 60  # held-out windows of a judgement, and of the word errors at the end
_MOST_KEPT_BYTES = 2 << 30  # of the teacher's rows


@dataclass(frozen=True, kw_only=True)
class HeardMel:
    """A window and what the target says of it.

    mel: float16 [n_frames, n_mels], the log-mel of the speech, memory-mapped; ids: prompt, text and end; source: its
    number.
    """

    mel: NDArray[np.float16]
    ids: tuple[int, ...]
    source: int

    @property
    def n_ctx(self) -> int:
        """Encoder positions of the speech."""
        return -(-len(self.mel) // 2)


@dataclass(frozen=True, kw_only=True)
class ShortPlan(Plan):
    """What to train and how."""

    steps: int = 5000
    n_batch: int = 4
    learning_rate: float = 1e-6
    warm_up: int = 50
    every: int = 100
    patience: int = 5


class WhisperNet(nn.Module):
    """Encoder and decoder together."""

    def __init__(self, encoder: EncoderNet, decoder: DraftNet) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def states(self, mel: Tensor, ids: Tensor) -> Tensor:
        """The rows behind each decoder layer and behind the last norm, [n_layers + 1, T, d], for a log-mel
        [1, n_mels, n_frames] and ids int64 [1, T]."""
        return self.decoder.states(ids, self.encoder(mel))[:, 0]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The trained weights under transformers' names."""
        yield from self.encoder.named_weights()
        yield from self.decoder.named_weights()


class ShortWindowTrainer(EarlyStopping[HeardMel, WhisperNet]):
    """Training in `folder`, which keeps `short-windows.pt`, the resumable state. Raises UsageError for too few windows.

    `figures` are the held-out losses of the weights of the beginning and of those kept.
    """

    judges_first = True

    def __init__(self, plan: ShortPlan, net: WhisperNet, windows: Sequence[HeardMel], folder: Path) -> None:
        train, held = split(windows)
        if not train or not held:
            raise UsageError(f"{len(windows)} windows to train on, expected 20 or more; {LEFT_OUT}")
        self.plan, self._teacher = plan, copy.deepcopy(net).eval().requires_grad_(False)
        self._n_frames = 2 * net.encoder.n_ctx
        self._wanted: dict[int, Tensor] = {}
        self._n_kept_bytes = 0
        held = held[:: max(1, len(held) // _MOST_JUDGED)]
        super().__init__(plan, net, train, held, folder / "short-windows.pt")

    def move(self, device: str) -> None:
        super().move(device)
        self._teacher.to(self._device)

    def loss(self, batch: Sequence[HeardMel]) -> Tensor:
        rng = random.Random(f"cut {self.plan.seed} {self.step}")
        return torch.stack([self._difference(one, _cut(one.n_ctx, rng)) for one in batch]).mean()

    def judge(self) -> None:
        self.net.eval()
        with torch.no_grad():
            losses = []
            for one in self.held:
                losses.append(float(self._difference(one, one.n_ctx)))
                self.tick()
        loss = sum(losses) / len(losses)
        if self.keep(loss):
            self.figures = [*(self.figures[:1] or [loss]), loss]

    def _difference(self, window: HeardMel, n_ctx: int) -> Tensor:
        """The mean square of what `n_ctx` positions of the window change."""
        ids = torch.tensor([window.ids])
        whole = torch.zeros(1, window.mel.shape[1], self._n_frames)
        whole[0, :, : len(window.mel)] = torch.from_numpy(window.mel.astype(np.float32).T)
        wanted = self._wanted_rows(window.source, whole, ids)
        difference: Tensor = (self.net.states(whole[:, :, : 2 * n_ctx], ids) - wanted).square().mean()
        return difference

    def _wanted_rows(self, source: int, whole: Tensor, ids: Tensor) -> Tensor:
        """The teacher's rows. It alone hears whole windows, so they are kept for the next time, as far as they fit."""
        found = self._wanted.get(source)
        if found is None:
            with torch.no_grad():
                found = self._teacher.states(whole, ids)
            if self._n_kept_bytes + found.nbytes <= _MOST_KEPT_BYTES:
                self._wanted[source] = found
                self._n_kept_bytes += found.nbytes
        return found


def _cut(n_ctx: int, rng: random.Random) -> int:
    """The positions of a student's window whose speech takes `n_ctx`."""
    most = min(_MARGIN, n_ctx // _SHARE)
    return max(1, n_ctx + rng.randint(-most, most))


@dataclass(frozen=True, kw_only=True)
class TrainedForShortWindows:
    """The finished checkpoint: its folder, steps, windows trained on and held out, held-out losses before and after,
    and word errors against the target's text of whole windows: of the target on cut ones, and of the trained model on
    whole and on cut ones."""

    path: Path
    n_steps: int
    n_windows: int
    n_held_out: int
    loss_before: float
    loss: float
    cut_before: float
    whole: float
    cut: float

    @property
    def line(self) -> str:
        return (
            f"{self.path}: {self.n_windows} windows, {self.n_steps} steps; held-out loss {self.loss:.3g} "
            f"({self.loss_before:.3g} before); word errors on {self.n_held_out} held-out windows against its own text "
            f"of whole ones: cut {self.cut:.2%} (before {self.cut_before:.2%}), whole {self.whole:.2%}"
        )

    @property
    def sentence(self) -> str:
        """A judgement."""
        if self.cut > self.whole + _MUCH_WORSE:
            return "cut windows still cost words: this needs more steps, more audio or a higher --rate"
        return "cut windows are transcribed as well as whole ones, or nearly so"


def train_short_windows(course: Course, out: Path, plan: ShortPlan) -> TrainedForShortWindows:
    """Train the checkpoint of `course` into the folder `out`.

    Raises AudioError when there is no audio, ModelError when the checkpoint cannot be used, UsageError when it is none,
    the work folder or `out` is of something else or the audio too little, ResourceError when a file cannot be written.
    """
    check_out(out, SHORT_WINDOWS)
    if not is_checkpoint(course.source):
        raise UsageError(f"{course.source}: short windows are trained into a checkpoint, and this is none")
    with open_checkpoint(course.source) as checkpoint:
        target = bundle_in(course.work, checkpoint, "target")
        _ = target.manifest.whisper_tokens  # of another kind: UsageError
        windows = _heard(course, target, plan.seed)
        torch.set_num_threads(course.n_threads)
        torch.manual_seed(plan.seed)
        net = WhisperNet(encoder_of(checkpoint), decoder_of(checkpoint))
        trainer = ShortWindowTrainer(plan, net, windows, course.work)
        trainer.run_or_go_on("train short-windows", course.notify, course.device)
        weights = {name: value.numpy() for name, value in trainer.best.named_weights()}
        n_layers, named = checkpoint.spec.dims.n_text_layer, target.manifest.source.id
        write_checkpoint(out, checkpoint, weights, n_layers=n_layers, mark=SHORT_WINDOWS, target=named)
    _, held = split(windows)
    return _finished(course, out, trainer, target, held[:: max(1, len(held) // _MOST_HEARD)])


def _heard(course: Course, bundle: Bundle, seed: int) -> list[HeardMel]:
    """The audio in pieces of many lengths and what the target says of them, from the work folder as far as there."""
    identity = {**course.identity(bundle), "seed": str(seed)}
    with course.progress("transcribe") as progress:
        windows = _shortened(course.windows(bundle, seed), bundle.manifest.n_samples, seed)
        collect_mels(course.collection(bundle, windows, course.work / "mels", identity, progress))
    return [HeardMel(mel=mel, ids=ids, source=source) for mel, ids, source in load_mels(course.work / "mels")]


def _shortened(windows: Iterator[Float], n_window: int, seed: int) -> Iterator[Float]:
    """The beginnings of windows, from a second to `_LONGEST` of one. Words may be cut: the teacher hears the same."""
    for number, samples in enumerate(windows):
        rng = random.Random(f"shortened {seed} {number}")
        n_most = min(len(samples), int(_LONGEST * n_window))
        n_least = min(n_most, int(SHORTEST_S * RATE_HZ))
        yield samples[: rng.choice((n_most, rng.randint(n_least, n_most)))]


class Listener:
    """What a target says of whole windows and of cut ones."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._context = AudioContext("auto", target.manifest)

    def text(self, speech: NDArray[Any], *, is_cut: bool) -> str:
        """The text of a window that begins with the log-mel `speech` [n_frames, n_mels], without timestamps."""
        n_content = len(speech)
        n_frames = self._context.n_frames(n_content) if is_cut else self._target.manifest.n_frames
        mel = np.zeros((speech.shape[1], n_frames), np.float32)
        mel[:, :n_content] = speech.astype(np.float32).T
        features = self._target.engine.encode(mel)
        _, result = self._target.say(features, self._target.language_of(features))
        return self._target.tokenizer.decode(result.tokens)


def _finished(
    course: Course, out: Path, trainer: ShortWindowTrainer, before: Bundle, held: Sequence[HeardMel]
) -> TrainedForShortWindows:
    """Transcribe held-out windows with the bundles of the checkpoint before and after."""
    with open_checkpoint(str(out)) as trained, tempfile.TemporaryDirectory(dir=course.work) as folder:
        after = bundle_in(Path(folder), trained, "trained")
        texts: dict[tuple[bool, bool], list[str]] = {}
        with Progress(4 * len(held), "windows", "word errors", every_s=EVERY_S) as progress:
            for is_trained, bundle in ((False, before), (True, after)):
                listener = Listener(course.target(bundle))
                for is_cut in (False, True):
                    texts[is_trained, is_cut] = found = []
                    for window in held:
                        found.append(listener.text(window.mel, is_cut=is_cut))
                        progress.update()
    own = texts[False, False]
    rates = {key: word_errors(zip(own, said, strict=True)).rate or 0.0 for key, said in texts.items()}
    return TrainedForShortWindows(
        path=out,
        n_steps=trainer.step,
        n_windows=len(trainer.train),
        n_held_out=len(held),
        loss_before=trainer.figures[0],
        loss=trainer.figures[-1],
        cut_before=rates[False, True],
        whole=rates[True, False],
        cut=rates[True, True],
    )
