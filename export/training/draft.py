"""`specedge train draft`: from a target and unlabelled audio to a smaller Whisper that drafts for it.

The draft begins as a checkpoint of any Whisper vocabulary, as some of the target's own decoder layers over its encoder,
or as the decoder of a checkpoint over the target's encoder (`draft_layers`). The last hears through keys and values
that at first make the checkpoint's own encoder of the target's, as far as a linear map can (`encoders_alike`). The
loss is Distil-Whisper's (Gandhi et al. 2023, arXiv 2311.00430, section 3.2): the cross-entropy against the
target's own transcripts, and 0.8 times the divergence KL(p || q) from the target's distribution p at each of their
tokens, where draft and target cut text alike. p is that of the target's hidden rows as its bundle computes them, before
any rules. Every tenth window is held out: the weights kept are those with the lowest loss on it, those at the beginning
included. A work folder keeps bundles, the target's texts and the training state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

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
from specedge.runtime.engine.draft_model import averaged
from specedge.runtime.papers.across_words import AcrossWords
from specedge.runtime.text.tokenizer import Tokenizer

from ..checkpoint import Checkpoint, open_checkpoint
from ..decoder_graph import VOCABULARY
from ..draft_layers import LAYERS, SUFFIX, compact_layout, fingerprint, write_layers
from ..layers import POSITIONS_A_KEY
from .checkpoint_files import DRAFT, check_out, write_checkpoint
from .early_stopping import EarlyStopping, Plan
from .features import Course, HiddenText, bundle_in, bundle_of, encoders_alike, heard_texts, is_checkpoint
from .nets import IGNORE, DraftNet, decoder_of, over_another_encoder, vocabulary_matrix


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


_N_TEXT = 12_288  # tokens of a compact vocabulary: 93 % of those of English that is not of its training
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

    teacher: None where there is only the target's text to learn from; n_averaged: positions of the encoder that the
    draft hears as one. `figures`: the share of the held-out tokens that
    are the draft's likeliest behind the ones before.
    """

    def __init__(
        self,
        plan: DraftPlan,
        net: DraftNet,
        texts: Sequence[DraftText],
        teacher: Teacher | None,
        folder: Path,
        *,
        n_averaged: int = 1,
    ) -> None:
        self.plan, self._teacher, self._n_averaged = plan, teacher, n_averaged
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
        heard = [averaged(text.features, None, self._n_averaged)[0] for text in texts]
        features = torch.as_tensor(np.stack(heard).astype(np.float32))
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

    It begins as the checkpoint `start`, or as `n_layers` of the target's decoder layers. Where `out` is a file, it is
    the decoder of `start`, or `n_layers` of it, over the target's encoder.

    Raises AudioError when there is no audio, ModelError when a model cannot be used, UsageError when draft and target
    do not fit, `out` is something else or the audio too little, ResourceError when a file cannot be written.
    """
    is_file = out.suffix == SUFFIX
    if is_file:
        check_output(out, LAYERS, inputs=identities(course.audio))
    else:
        check_out(out, DRAFT)
    source, work = course.source, course.work
    with ExitStack() as stack:
        own = stack.enter_context(open_checkpoint(source)) if is_checkpoint(source) else None
        begun = _begun(start, n_layers, own, source, is_file=is_file)
        begun = begun or stack.enter_context(open_checkpoint(start or ""))
        target = bundle_of(source, work)
        _ = target.manifest.whisper_tokens  # of another kind: UsageError
        draft = target if begun is own else bundle_in(work / f"draft-{fingerprint(begun)[:16]}", begun, "draft")
        translation = _between(draft, target)
        shares = is_file or encoder_fingerprint(draft.manifest) == encoder_fingerprint(target.manifest)
        heard = heard_texts(course, target, plan.seed, ear=None if shares else draft)
        net, compact = decoder_of(begun, n_layers), None
        if is_file:
            compact = compact_vocabulary(draft.tokenizer, target.tokenizer, heard)
            net = _over_target(net, draft, compact.tokenizer, encoders_alike(course, target, draft, plan.seed))
            translation = compact.translation
        n_vocab = len(net.get_buffer("table"))
        is_alike = isinstance(translation, Remapped)
        texts = draft_texts(heard, translation, draft.manifest.dims.n_text_ctx, is_alike=is_alike)
        torch.set_num_threads(course.n_threads)
        torch.manual_seed(plan.seed)
        teacher = _teacher(own, translation, n_vocab) if is_alike else None
        if is_alike and teacher is None:
            course.notify(
                f"{source}: no checkpoint of plain logits, so its texts are learned and not its probabilities"
            )
        plan = replace(plan, student=f"{draft.digest} layers {len(net.layers)} tokens {n_vocab}")
        trainer = DraftTrainer(plan, net, texts, teacher, work, n_averaged=POSITIONS_A_KEY if is_file else 1)
        trainer.run("train draft", course.notify, course.device)
        weights = {name: value.numpy() for name, value in trainer.best.named_weights()}
        if compact is not None and own is not None:
            weights[VOCABULARY] = net.get_buffer("table").numpy()
            n_text_head, special = draft.manifest.dims.n_text_head, compact.tokenizer.whisper_special
            write_layers(out, own, weights, n_text_head=n_text_head, tokens=compact.tokens, special=special)
        else:
            target_id = target.manifest.source.id
            write_checkpoint(out, begun, weights, n_layers=len(net.layers), mark=DRAFT, target=target_id)
    return _ending(out, trainer, course, ", with the target's encoder" if shares else "")


def _ending(out: Path, trainer: DraftTrainer, course: Course, shared: str) -> str:
    """What came of the training, in a line."""
    (before,), (after,) = trainer.first, trainer.figures
    if after < _FEWEST_RIGHT:
        course.notify(
            f"{out}: a draft whose tokens are right so rarely will not save time: more audio and more voices are "
            "needed, or a larger --from"
        )
    return (
        f"{out}: {len(trainer.train)} texts, {trainer.step} steps{shared}; on held-out windows its likeliest token is "
        f"the target's in {after:.1%} ({before:.1%} before)"
    )


class Compact(NamedTuple):
    """A vocabulary of some of a target's tokens of text, their ids there, and the translation between the two."""

    tokenizer: Tokenizer
    tokens: list[int]
    translation: Remapped


def compact_vocabulary(draft: Tokenizer, target: Tokenizer, texts: Sequence[HiddenText]) -> Compact:
    """Text that `draft` and `target` have: single bytes, tokens of `texts`, those that come often before others, and
    then the common ones of `draft`, whose special tokens it has."""
    special, theirs = draft.whisper_special, target.ranks[: target.special.eot]
    mine = {text for text in draft.ranks[: special.eot] if text}
    said = Counter(token for text in texts for token in text.ids[text.n_prompt :] if token < len(theirs))
    ids = {text: token for token, text in enumerate(theirs) if text in mine}
    wanted = [theirs[token] for token, _ in said.most_common()] + [*draft.ranks[: special.eot]]
    singles = [bytes([byte]) for byte in range(256)]
    chosen = [*dict.fromkeys(text for text in (*singles, *wanted) if text in ids)][:_N_TEXT]
    tokens = sorted(ids[text] for text in chosen)
    made = Tokenizer([theirs[token] for token in tokens], compact_layout(special, len(tokens)), draft.pattern)
    return Compact(made, tokens, Remapped(made.special, target.special, tokens))


def _over_target(net: DraftNet, draft: Bundle, tokenizer: Tokenizer, alike: tuple[Any, Any]) -> DraftNet:
    """The decoder `net` of `draft` over the target's encoder, with the tokens of `tokenizer`. alike: see
    `encoders_alike`."""
    own = {text: token for token, text in enumerate(draft.tokenizer.ranks) if text}
    rows = [own[text] for text in tokenizer.ranks[: tokenizer.special.eot]]
    table = net.get_buffer("table")
    kept = torch.tensor([*rows, *range(draft.tokenizer.special.eot, len(table))])
    return over_another_encoder(net, table[kept].clone(), *map(torch.from_numpy, alike))


def _begun(
    start: str | None, n_layers: int | None, own: Checkpoint | None, source: str, *, is_file: bool
) -> Checkpoint | None:
    """The target's checkpoint where the draft begins as layers of it. Raises UsageError where it cannot."""
    if is_file:
        if start is None or own is None:
            raise UsageError(
                f"a {SUFFIX} file holds the decoder of a smaller Whisper, --from, for a target that is a checkpoint; "
                "give both, or a folder"
            )
        return None
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
