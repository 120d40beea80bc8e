"""How files of sound and video begin, whatever they are called.

Does not know: how they are decoded, by whom.
"""

from __future__ import annotations

__all__ = ["HEAD_BYTES", "begins_as_media"]

HEAD_BYTES = 16
# At which byte, and with what.
_SIGNATURES = (
    (0, (b"fLaC", b"OggS", b"ID3", b".snd", b"caff", b"#!AMR", b"\x1aE\xdf\xa3", b"riff")),
    (0, (b"\xff\xf1", b"\xff\xf9", b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", b"FLV\x01", b"wvPk", b"MAC ", b".RMF")),
    (4, (b"ftyp",)),
    (8, (b"WAVE", b"AIFF", b"AIFC", b"AVI ")),
)


def begins_as_media(head: bytes) -> bool:
    """Whether a file that begins with these 16 bytes is of one of the common formats."""
    return any(head.startswith(signatures, at) for at, signatures in _SIGNATURES)
