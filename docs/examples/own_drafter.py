"""A drafter of one's own: it repeats what followed the same two tokens earlier in this audio.

    python docs/examples/own_drafter.py docs/examples/jfk.flac

It cannot change the text: the verifier decides every token, and a drafter that raises is dropped.
"""

import sys

from specedge import DraftContext, Drafter, DraftTree, Verdict, WhisperModel, WindowContext


class RepeatDrafter(Drafter):
    """Drafts up to eight tokens that followed the last two tokens before."""

    name = "repeat"

    def __init__(self) -> None:
        self.before: tuple[int, ...] = ()
        self.n_accepted = 0

    def begin(self, window: WindowContext) -> None:
        self.before = window.history  # the text of the audio before this window

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        text = [*self.before, *context.sampled]
        for at in range(len(text) - 3, 0, -1):
            if text[at - 1 : at + 1] == text[-2:]:
                return DraftTree(text[at + 1 : at + 9][:budget])
        return DraftTree([])

    def observe(self, verdict: Verdict) -> None:
        self.n_accepted += verdict.n_accepted


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    drafter = RepeatDrafter()
    segments, info = WhisperModel("tiny.en").transcribe(sys.argv[1], language="en", drafter=drafter)
    for segment in segments:
        print(f"[{segment.start:.2f} - {segment.end:.2f}] {segment.text.strip()}")
    print(f"accepted {drafter.n_accepted} draft tokens in {info.speculation['passes']} passes", file=sys.stderr)
