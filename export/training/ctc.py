"""`specedge train ctc`: from a model and unlabelled audio to a head for the drafter ctc.

The loss is CTC's (Graves et al. 2006) over bytes and blank, blank by a question of its own (export/ctc_graph.py), on
cached features of the frozen encoder with the target's own transcripts, and the cross-entropy of the frames at which
the target's timestamps have segments begin and end, each among the frames nearer to it than to others. Every tenth
window of audio is held out: the weights kept are those with the lowest loss on it, and training ends when that has not
fallen for some evaluations.
A work folder keeps what is expensive (bundle, features, training state), and the same command goes on where it was
stopped.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from specedge.errors import UsageError
from specedge.files import check_output, identities
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.bundle.manifest import SPEECH
from specedge.runtime.drafters.ctc.head import BLANK
from specedge.runtime.drafters.registry import costs_here
from specedge.runtime.text.words import edit_distance

from ..ctc_graph import HEAD, CtcWeights, encoder_weights_sha256, write_head
from .early_stopping import EarlyStopping, Plan, split
from .features import Course, Window, bundle_of, collect_features
from .worth import Worth, of_flags, right_tokens

Float = NDArray[np.float32]
_NORMED_WINDOWS = 200
CHUNK_PARTS = 4  # frames that each of the 13 rows a second of Qwen's encoder is cut into: nearly Whisper's 50


@dataclass(frozen=True, kw_only=True)
class CtcPlan(Plan):
    """Shape of the head and course of its training.

    n_trunk, n_blocks, n_taps: width, depth and reach of what runs over all frames; n_hidden: width of what tells bytes;
    n_told, n_told_taps: width and reach of what tells times;
    noise: of the normalised features, a standard deviation; times: weight of the loss of a window's timestamps.
    """

    n_trunk: int = 96
    n_blocks: int = 4
    n_taps: int = 21
    n_hidden: int = 256
    n_told: int = 32
    n_told_taps: int = 15
    times: float = 0.05
    steps: int = 2400
    n_batch: int = 16
    learning_rate: float = 2e-3
    warm_up: int = 100
    every: int = 200
    patience: int = 4
    noise: float = 0.2
    dropout: float = 0.15


class HeadNet(nn.Module):
    """The head in torch: features float32 [B, T, n_state] to log-probabilities [B, F, 1 + n_bytes], blank first, then
    the bytes `said`, and times [B, F, 2], of F = `n_parts` * T frames."""

    def __init__(self, plan: CtcPlan, mean: Tensor, spread: Tensor, said: range = range(256), n_parts: int = 1) -> None:
        super().__init__()
        self.said, self.n_parts = said, n_parts
        n_state, n_trunk = len(mean), plan.n_trunk
        self.register_buffer("mean", mean)
        self.register_buffer("spread", spread)
        self.noise = plan.noise
        self.trunk = nn.Linear(n_state, n_parts * n_trunk)
        reach = plan.n_taps // 2
        # In two dimensions, since features lie as channels last there, for which PyTorch is seven times as fast.
        self.taps = nn.ModuleList(
            nn.Conv2d(n_trunk, n_trunk, (plan.n_taps, 1), padding=(reach, 0), groups=n_trunk, bias=False)
            for _ in range(plan.n_blocks)
        )
        self.mixes = nn.ModuleList(nn.Linear(n_trunk, n_trunk) for _ in range(plan.n_blocks))
        self.gate = nn.Linear(n_trunk, 1)
        told_reach = plan.n_told_taps // 2
        self.times_in = nn.Conv2d(n_trunk, plan.n_told, (plan.n_told_taps, 1), padding=(told_reach, 0))
        self.times_out = nn.Linear(plan.n_told, 2)
        self.unit_in = nn.Linear(n_state + n_trunk, plan.n_hidden)
        self.drop = nn.Dropout(plan.dropout)
        self.unit_out = nn.Linear(plan.n_hidden, len(said))
        nn.init.constant_(self.gate.bias, 1.0)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        x = (features - self.get_buffer("mean")) / self.get_buffer("spread")
        if self.training:
            x = x + self.noise * torch.randn_like(x)
        z = F.gelu(self.trunk(x)).reshape(len(x), self.n_parts * x.shape[1], -1)
        x = x.repeat_interleave(self.n_parts, 1)
        for taps, mix in zip(self.taps, self.mixes, strict=True):
            z = z + F.gelu(mix(_over_frames(taps, z)))
        blank = self.gate(z)
        units = self.unit_out(self.drop(F.gelu(self.unit_in(torch.cat([x, z], -1)))))
        log_probs = torch.cat([F.logsigmoid(blank), F.logsigmoid(-blank) + F.log_softmax(units, -1)], -1)
        return log_probs, self.times_out(F.gelu(_over_frames(self.times_in, z)))

    def weights(self) -> CtcWeights:
        """The weights for the graph, which takes features as they are."""
        arrays = {name: value.detach().clone().numpy() for name, value in self.state_dict().items()}
        mean, spread = (torch.from_numpy(arrays.pop(name)).double() for name in ("mean", "spread"))
        for name in ("trunk", "unit_in"):  # what reads the features takes on that they are normalised
            weight = torch.from_numpy(arrays[f"{name}.weight"]).double().T.clone()
            weight[: len(mean)] /= spread[:, None]
            bias = torch.from_numpy(arrays[f"{name}.bias"]).double() - mean @ weight[: len(mean)]
            arrays[f"{name}.weight"], arrays[f"{name}.bias"] = weight.T.float().numpy(), bias.float().numpy()
        return CtcWeights(arrays=arrays, first_byte=self.said.start)


class CtcTrainer(EarlyStopping[Window, HeadNet]):
    """Training in `folder`, which keeps `ctc.pt`, the resumable state."""

    def __init__(self, plan: CtcPlan, windows: Sequence[Window], folder: Path, n_parts: int = 1) -> None:
        self.plan = plan
        torch.manual_seed(plan.seed)
        net = HeadNet(plan, *_moments(split(windows)[0]), _said(windows), n_parts)
        super().__init__(plan, net, windows, folder / "ctc.pt")

    def loss(self, batch: Sequence[Window]) -> Tensor:
        return _loss(self.net, batch, self.plan.times)


def spelt(net: HeadNet, window: Window) -> bytes:
    """The bytes of the likeliest unit of each frame, repeats in a row and blanks taken out (greedy decoding)."""
    with torch.no_grad():
        log_probs, _ = net.eval()(torch.from_numpy(window.features.astype(np.float32))[None])
    best = log_probs[0].argmax(-1)
    kept = best[(best != BLANK) & (best != torch.cat([best.new_tensor([BLANK]), best[:-1]]))]
    return bytes((kept - 1 + net.said.start).tolist())


def _loss(net: HeadNet, batch: Sequence[Window], times: float) -> Tensor:
    """CTC loss for each byte, mean over the windows, of one without text for each frame; and `times` that of times.

    A window with more bytes than frames has none.
    """
    lengths = [len(window.features) for window in batch]
    features = torch.zeros(len(batch), max(lengths), batch[0].features.shape[1])
    for row, window in zip(features, batch, strict=True):
        row[: len(window.features)] = torch.as_tensor(window.features.astype(np.float32))
    texts = [torch.tensor(list(window.text), dtype=torch.long) - net.said.start + 1 for window in batch]
    log_probs, logits = net(features)
    losses = F.ctc_loss(  # on the CPU: Apple's GPUs have none
        log_probs.transpose(0, 1).cpu(),
        torch.cat(texts).cpu(),
        torch.tensor(lengths, device="cpu") * net.n_parts,
        torch.tensor([len(text) for text in texts], device="cpu"),
        reduction="none",
        zero_infinity=True,
    )
    weights = torch.tensor([len(window.text) or len(window.features) for window in batch], device="cpu")
    return (losses / weights).mean().to(logits.device) + times * _times_loss(logits, batch)


def _times_loss(logits: Tensor, batch: Sequence[Window]) -> Tensor:
    """Cross-entropy of each timestamp's frame among those that are nearer to it than to others of its kind, mean.

    Of a row that is several frames there are no timestamps: a speech LLM says none.
    """
    losses = []
    for row, window in zip(logits, batch, strict=True):
        for kind, frames in enumerate((window.starts, window.ends)):
            borders = [0, *[(a + b + 1) // 2 for a, b in itertools.pairwise(frames)], len(window.features)]
            for frame, low, high in zip(frames, borders, borders[1:], strict=False):
                if low <= frame < high:
                    losses.append(row[low:high, kind].logsumexp(0) - row[frame, kind])
    return torch.stack(losses).mean() if losses else logits.new_zeros(())


def _over_frames(layer: nn.Conv2d, z: Tensor) -> Tensor:
    """A convolution over the frames of [B, T, n]."""
    found: Tensor = layer(z.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)
    return found


def _said(windows: Sequence[Window]) -> range:
    """The bytes from the least that a window holds to the greatest."""
    found = {byte for window in windows for byte in window.text}
    return range(min(found, default=0), max(found, default=255) + 1)


def _moments(windows: Sequence[Window]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, float32 [n_state], over an even sample of the windows."""
    chosen = windows[:: max(1, len(windows) // _NORMED_WINDOWS)]
    frames = np.concatenate([window.features.astype(np.float32) for window in chosen])
    return torch.from_numpy(frames.mean(0)), torch.from_numpy(frames.std(0) + 1e-3)


_MOST_SCORED = 40  # held-out windows whose greedy text is compared at the end


def train_ctc(course: Course, out: Path, plan: CtcPlan, *, n_rough: int, max_bytes: int) -> str:
    """Train a head for the encoder of `course` and write it to `out`.

    Returns a line with the greedy byte error rates against the target's text on held-out windows, as they are and made
    rough; what drafts would save on the former is said, too.

    n_rough: rough copies of each window; max_bytes: of features on disk. Raises AudioError when there is no audio,
    ModelError when the model cannot be used, UsageError when the audio is too little or a file at `out` is no head,
    ResourceError when a file cannot be written.
    """
    if out.suffix != ".onnx":
        raise UsageError(f"-o {out}: expected a name that ends in .onnx")
    check_output(out, HEAD, inputs=identities(course.audio))
    bundle = bundle_of(course.source, course.work)
    encoder = encoder_weights_sha256(bundle.manifest, bundle.path)
    found = collect_features(course, bundle, n_rough=n_rough, max_bytes=max_bytes, seed=plan.seed, encoder=encoder)
    torch.set_num_threads(course.n_threads)
    n_parts = CHUNK_PARTS if bundle.manifest.kind == SPEECH else 1
    trainer = CtcTrainer(plan, found, course.work, n_parts)
    trainer.run("train", course.notify, course.device)
    write_head(out, trainer.best.weights(), encoder)
    held = split(found)[1]
    clean, rough = (
        [(window, spelt(trainer.best, window)) for window in held if window.is_rough == is_rough][:_MOST_SCORED]
        for is_rough in (False, True)
    )
    course.notify(f"{out}: {_worth(clean, bundle, course.n_threads).sentence('head', trainer.lacks)}")
    return (
        f"{out}: {len(trainer.train)} windows, {trainer.step} steps; on held-out windows {byte_errors(clean):.1%} of "
        f"the bytes of the target's text wrong, {byte_errors(rough):.1%} in noise"
    )


def byte_errors(found: Sequence[tuple[Window, bytes]]) -> float:
    """Edits for each byte of the target's texts."""
    n_errors = sum(edit_distance(window.text, text) for window, text in found)
    return n_errors / max(1, sum(len(window.text) for window, _ in found))


def _worth(found: Sequence[tuple[Window, bytes]], bundle: Bundle, n_threads: int) -> Worth:
    """What drafts of the head's texts would save."""
    flags = []
    for window, text in found:
        ids = bundle.tokenizer.encode(window.text.decode("utf-8", "replace"))
        flags.append(right_tokens([bundle.tokenizer.decode_bytes([token]) for token in ids], text))
    return of_flags(flags, costs_here(bundle, n_threads))
