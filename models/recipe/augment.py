"""How training windows of the recipe are varied: warped mel filters, tempo, and masks over the mel.

The warp of the mel axis (vocal tract length perturbation) is a set of matrices [n_mels, n_bins] that replace the mel
filters: the power spectrum is read at `alpha` times each frequency. The acoustics of `specedge train` (room, band,
gain, noise) are in export/training/corpus.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from specedge.runtime.audio.mel import filterbank

Float = npt.NDArray[np.float32]
WARPS = tuple(float(a) for a in np.linspace(0.82, 1.18, 25))


def warped_filters(n_mels: int) -> Float:
    """float32 [len(WARPS), n_mels, 201]: the mel filters behind each warp; the warp 1.0 leaves them as they are."""
    plain = filterbank(n_mels)
    out = []
    for alpha in WARPS:
        warp = np.zeros((201, 201), np.float32)
        position = np.minimum(np.arange(201) * alpha, 200.0)
        low = np.minimum(position.astype(int), 199)
        part = (position - low).astype(np.float32)
        warp[np.arange(201), low] = 1 - part
        warp[np.arange(201), low + 1] = part
        out.append(plain @ warp)
    return np.stack(out)


def stretch(samples: Float, factor: float, *, frame: int = 512, search: int = 160) -> Float:
    """`samples` at `factor` times their length and the same pitch.

    Frames are taken at another pace than they are laid down, each moved by up to `search` samples to where it best
    goes on with the one before (Verhelst and Roelands 1993, "An overlap-add technique based on waveform similarity").
    """
    hop = frame // 2
    if samples.size < 2 * (frame + search) or factor == 1:
        return samples
    window = np.hanning(frame + 1)[:-1].astype(np.float32)
    n_frames = int((samples.size - frame) * factor / hop)
    out = np.zeros((n_frames + 1) * hop, np.float32)
    at = 0
    for number in range(n_frames):
        if number:
            wanted = samples[at + hop : at + hop + frame]
            low = max(0, min(int(number * hop / factor) - search, samples.size - frame - 2 * search - 1))
            near = samples[low : low + frame + 2 * search]
            n = min(wanted.size, frame)
            at = low + int(np.argmax(np.correlate(near[: n + 2 * search], wanted[:n], "valid")))
        piece = samples[at : at + frame]
        out[number * hop : number * hop + piece.size] += piece * window[: piece.size]
    return out


def mask(mel: torch.Tensor, n_content: list[int], generator: torch.Generator) -> None:
    """SpecAugment: up to two bands of mels and two stretches of frames of a sample's content set to its mean."""
    n_mels = mel.shape[1]
    for sample, n_frames in zip(mel, n_content, strict=True):
        content = sample[:, :n_frames]
        mean = content.mean()
        draws = torch.rand(2, 5, generator=generator).tolist()
        for chance, width, span, low, first in draws:
            if chance < 0.3:
                continue
            n_bands, n_gone = int(width * n_mels * 0.14), int(span * min(20, n_frames // 12))
            at_band, at_frame = int(low * (n_mels - n_bands)), int(first * (n_frames - n_gone))
            content[at_band : at_band + n_bands] = mean
            content[:, at_frame : at_frame + n_gone] = mean
