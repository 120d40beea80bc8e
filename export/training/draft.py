"""`specedge train draft`: from a target and unlabelled audio to a smaller Whisper that drafts for it.

The draft begins as a checkpoint of any Whisper vocabulary, or as some of the target's own decoder layers over its
encoder. The loss is Distil-Whisper's (Gandhi et al. 2023, arXiv 2311.00430, section 3.2): the cross-entropy against the
target's own transcripts, and 0.8 times the divergence KL(p || q) from the target's distribution p at each of their
tokens, where draft and target cut text alike. p is that of the target's hidden rows as its bundle computes them, before
any rules. Every tenth window is held out: the weights kept are those with the lowest loss on it, those at the beginning
included. A work folder keeps bundles, the target's texts and the training state.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from specedge.errors import UsageError
from specedge.files import check_output, identities
from specedge.runtime.bundle.bundle import Bundle, encoder_fingerprint
from specedge.runtime.bundle.manifest import check_fit, check_share
from specedge.runtime.drafters.draft.translate import Remapped, Translation
from specedge.runtime.papers.across_words import AcrossWords

from ..checkpoint import Checkpoint, open_checkpoint
from ..draft_layers import LAYERS, SUFFIX, fingerprint, write_layers
from .checkpoint_files import DRAFT, check_out, write_checkpoint
from .early_stopping import EarlyStopping, Plan
from .features import Course, HiddenText, bundle_in, bundle_of, heard_texts, is_checkpoint
from .nets import IGNORE, DraftNet, decoder_of, vocabulary_matrix


@dataclass(frozen=True, kw_only=True)
class DraftText(HiddenText):
    """One text over one window, for a draft: as `HiddenText`, with ids of the draft's.

    rows: int64 [len(ids)], the row of `hidden` that gives the target's distribution of the token behind each id, -1 for
    none.
    """

    rows: NDArray[np.int64]


def draft_texts(
    texts: Sequence[HiddenText], translation: Translation, n_text_ctx: int, *, is_alike: bool
) -> list[DraftText]:
    """The texts that the draft can be asked for, at most `n_text_ctx` ids of each; `is_alike`: both cut text alike."""
    found = []
    for text in texts:
        prompt = translation.prompt(text.ids[: text.n_prompt])
        if prompt is None:
            continue
        said, places = translation.spelt(text.ids[text.n_prompt :])
        ids = [*prompt, *said][:n_text_ctx]
        rows = np.full(len(ids), -1, np.int64)
        if is_alike:
            behind = text.n_prompt - 1 + np.array(places, np.int64)  # the row before a token is the one that says it
            behind = np.where(behind < len(text.hidden), behind, -1)
            rows[len(prompt) - 1 : -1] = behind[: len(ids) - len(prompt)]
        given = vars(text) | {"ids": tuple(ids), "n_prompt": len(prompt), "rows": rows}
        found.append(DraftText(**given))
    return found


_FEWEST_RIGHT = 0.6  # of a draft's tokens; its own passes cost as well
_NEVER = -1e4  # a logit whose probability is 0, and whose product with 0 is a number


@dataclass(frozen=True, kw_only=True)
class DraftPlan(Plan):
    """What to train and how. student: what the draft began as, in a word; kl_weight: of the divergence."""

    student: str = ""
    kl_weight: float = 0.8
    steps: int = 2000
    n_batch: int = 8
    learning_rate: float = 3e-4
    warm_up: int = 50
    every: int = 50
    patience: int = 5


class Teacher(nn.Module):
    """The target's log-probabilities [N, n_vocab] of the draft's tokens, from its last hidden rows [N, d].

    matrix: float32 [n_target_vocab, d], its vocabulary; counterparts: int64 [n_target_vocab], the draft's id of each of
    its tokens, -1 for none; n_vocab: of the draft. A token that the target has not has no probability.
    """

    def __init__(self, matrix: Tensor, counterparts: NDArray[np.int64], n_vocab: int) -> None:
        super().__init__()
        there = np.full(n_vocab, -1, np.int64)
        known = np.flatnonzero(counterparts >= 0)
        there[counterparts[known]] = known
        self.register_buffer("bias", torch.from_numpy(np.where(there >= 0, 0.0, _NEVER).astype(np.float32)))
        is_same = np.array_equal(there, np.arange(len(matrix)))
        self.register_buffer("matrix", matrix if is_same else matrix[np.maximum(there, 0)])

    def forward(self, hidden: Tensor) -> Tensor:
        return F.log_softmax(hidden @ self.get_buffer("matrix").T + self.get_buffer("bias"), -1)


class DraftTrainer(EarlyStopping[DraftText, DraftNet]):
    """Training in `folder`, which keeps `draft.pt`, the resumable state.

    teacher: None where there is only the target's text to learn from. `figures`: the share of the held-out tokens that
    are the draft's likeliest behind the ones before.
    """

    def __init__(
        self, plan: DraftPlan, net: DraftNet, texts: Sequence[DraftText], teacher: Teacher | None, folder: Path
    ) -> None:
        self.plan, self._teacher = plan, teacher
        super().__init__(plan, net, texts, folder / "draft.pt", beside=teacher)

    def loss(self, batch: Sequence[DraftText]) -> Tensor:
        return self._losses(batch)[0]

    def measure(self, batch: Sequence[DraftText]) -> tuple[Tensor, Tensor]:
        loss, right, n = self._losses(batch)
        return torch.stack([loss, right]), n

    def _losses(self, texts: Sequence[DraftText]) -> tuple[Tensor, Tensor, Tensor]:
        """Loss a token, the share of tokens that are the likeliest, and tokens."""
        longest = max(len(text.ids) for text in texts)
        ids = np.zeros((len(texts), longest), np.int64)
        labels = np.full((len(texts), longest), IGNORE, np.int64)
        taught: list[NDArray[np.float16]] = []  # the target's rows, of all texts in the order of their labels
        is_taught: list[NDArray[np.bool_]] = []
        for at, text in enumerate(texts):
            ids[at, : len(text.ids)] = text.ids
            asked = slice(text.n_prompt - 1, len(text.ids) - 1)
            labels[at, asked] = text.ids[text.n_prompt :]
            rows = text.rows[asked]
            is_taught.append(rows >= 0)
            taught.append(text.hidden[rows[rows >= 0]])
        features = torch.as_tensor(np.stack([text.features for text in texts]).astype(np.float32))
        said = torch.as_tensor(labels)
        wanted = said != IGNORE
        log_probs = F.log_softmax(self.net.logits(self.net(torch.as_tensor(ids), features)[wanted]), -1)
        loss = F.nll_loss(log_probs, said[wanted])
        where = torch.as_tensor(np.concatenate(is_taught))
        if self._teacher is not None and self.plan.kl_weight and bool(where.any()):
            hidden = torch.as_tensor(np.concatenate(taught).astype(np.float32))
            known = self._teacher(hidden)
            loss = loss + self.plan.kl_weight * F.kl_div(
                log_probs[where], known, reduction="batchmean", log_target=True
            )
        right = (log_probs.detach().argmax(-1) == said[wanted]).float().mean()
        return loss, right, wanted.sum()


def train_draft(
    course: Course, out: Path, plan: DraftPlan, *, start: str | None = None, n_layers: int | None = None
) -> str:
    """Train a draft for the bundle or checkpoint of `course` into the folder `out`; `plan.student` is set here.

    It begins as the checkpoint `start`, or as `n_layers` of the target's decoder layers.

    Raises AudioError when there is no audio, ModelError when a model cannot be used, UsageError when draft and target
    do not fit, `out` is something else or the audio too little, ResourceError when a file cannot be written.
    """
    is_file = out.suffix == SUFFIX
    if is_file and n_layers is None:
        raise UsageError(f"-o {out}: a file holds layers of the target, --layers; give a folder for --from")
    if is_file:
        check_output(out, LAYERS, inputs=identities(course.audio))
    else:
        check_out(out, DRAFT)
    source, work = course.source, course.work
    with ExitStack() as stack:
        own = stack.enter_context(open_checkpoint(source)) if is_checkpoint(source) else None
        begun = _begun(start, n_layers, own, source) or stack.enter_context(open_checkpoint(start or ""))
        target = bundle_of(source, work)
        _ = target.manifest.whisper_tokens  # of another kind: UsageError
        draft = target if begun is own else bundle_in(work / f"draft-{fingerprint(begun)[:16]}", begun, "draft")
        translation = _between(draft, target)
        shares = encoder_fingerprint(draft.manifest) == encoder_fingerprint(target.manifest)
        heard = heard_texts(course, target, plan.seed, ear=None if shares else draft)
        dims = draft.manifest.dims
        is_alike = isinstance(translation, Remapped)
        texts = draft_texts(heard, translation, dims.n_text_ctx, is_alike=is_alike)
        torch.set_num_threads(course.n_threads)
        torch.manual_seed(plan.seed)
        teacher = _teacher(own, translation, dims.n_vocab) if is_alike else None
        if is_alike and teacher is None:
            course.notify(
                f"{source}: no checkpoint of plain logits, so its texts are learned and not its probabilities"
            )
        net = decoder_of(begun, n_layers)
        plan = replace(plan, student=f"{draft.digest} layers {len(net.layers)}")
        trainer = DraftTrainer(plan, net, texts, teacher, work)
        trainer.run("train draft", course.notify, course.device)
        weights = {name: value.numpy() for name, value in trainer.best.named_weights()}
        if is_file and n_layers is not None:
            eot = target.manifest.tokens.eot
            said = {token for text in texts for token in text.ids if token < eot}
            write_layers(out, begun, weights, n_layers, said)
        else:
            target_id = target.manifest.source.id
            write_checkpoint(out, begun, weights, n_layers=len(net.layers), mark=DRAFT, target=target_id)
    (before,), (after,) = trainer.first, trainer.figures
    shared = ", with the target's encoder" if shares else ""
    if after < _FEWEST_RIGHT:
        course.notify(
            f"{out}: a draft whose tokens are right so rarely will not save time: more audio and more voices are "
            "needed, or a larger --from"
        )
    return (
        f"{out}: {len(trainer.train)} texts, {trainer.step} steps{shared}; on held-out windows its likeliest token is "
        f"the target's in {after:.1%} ({before:.1%} before)"
    )


def _begun(start: str | None, n_layers: int | None, own: Checkpoint | None, source: str) -> Checkpoint | None:
    """The target's checkpoint where the draft begins as layers of it. Raises UsageError where it cannot."""
    if (start is None) == (n_layers is None):
        raise UsageError(
            "a draft begins as a checkpoint, --from, or as layers of the target, --layers: give one of them"
        )
    if n_layers is None:
        return None
    if own is None:
        raise UsageError(
            f"--layers copies weights of the target, and {source} is no checkpoint: give that, or a draft by --from"
        )
    n_there = own.spec.dims.n_text_layer
    if not 1 <= n_layers < n_there:
        most = f"1 to {n_there - 1}" if n_there > 1 else "--from, for there is no smaller one"
        raise UsageError(f"--layers {n_layers}: the target's decoder has {n_there}; expected {most}")
    return own


def _between(draft: Bundle, target: Bundle) -> Remapped | AcrossWords:
    """How the two understand each other when one drafts for the other. Raises UsageError where they cannot."""
    check_fit(draft.manifest, target.manifest, "--from")
    alike = Remapped.between(draft.tokenizer, target.tokenizer)
    if alike is not None:
        return alike
    made = AcrossWords(draft.tokenizer, target.tokenizer)
    check_share(made.share, draft.manifest, target.manifest, "--from")
    return made


def _teacher(own: Checkpoint | None, translation: Translation, n_vocab: int) -> Teacher | None:
    """The target's distributions over the draft's `n_vocab` tokens; None without its checkpoint, and where a head takes
    the place of its own."""
    if own is None or (own.spec.heads is not None and own.spec.heads.replaces_base):
        return None
    return Teacher(vocabulary_matrix(own), translation.counterparts(np.arange(own.spec.dims.n_vocab)), n_vocab)
