"""The speech of an audio stream as transcription reads it: once, or again from its beginning.

The loudest frame of the whole speech is found in a reading of its own (mel.py); where the audio can be read again, so
can its speech, at the price of finding it twice. Does not know: how speech is found, what is done with it.
"""

from __future__ import annotations

from specedge.runtime.sound.audio import AudioStream
from specedge.runtime.speech.vad import SpeechStream
from specedge.runtime.speech.vad_spans import VadOptions

__all__ = ["SpeechAudio"]


class SpeechAudio(SpeechStream):
    """A SpeechStream over an AudioStream, which stays the caller's to close."""

    def __init__(self, stream: AudioStream, options: VadOptions, *, is_owner: bool = False) -> None:
        super().__init__(stream, options)
        self._source, self._is_owner = stream, is_owner

    def again(self) -> SpeechAudio | None:
        """The same speech from its beginning, to be closed; None where the audio can be read once only."""
        source = self._source.again()
        return None if source is None else SpeechAudio(source, self.options, is_owner=True)

    def close(self) -> None:
        """Close what `again` opened."""
        if self._is_owner:
            self._source.close()
