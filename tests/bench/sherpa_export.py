"""A checkpoint in the layout that sherpa-onnx's Whisper recogniser loads, int8: for peers.py --sherpa.

    python tests/bench/sherpa_export.py CHECKPOINT BUNDLE OUT

sherpa-onnx's own exporter knows openai-whisper's model names and windows of 30 s alone. This one writes the same two
graphs (encoder with the cross-attention keys and values, decoder with its caches as inputs and outputs) for any window,
quantised as theirs is. BUNDLE is the checkpoint's export and says its vocabulary. Needs torch and openai-whisper. It
does not check that sherpa-onnx likes the result.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import onnx  # noqa: E402
import torch  # noqa: E402
import whisper  # noqa: E402
from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: E402
from torch import nn  # noqa: E402

from specedge.runtime.bundle.bundle import Bundle  # noqa: E402
from support.openai_model import model_of  # noqa: E402

OPSET = 13
CACHES = ("n_layer_self_k_cache", "n_layer_self_v_cache")
CROSS = ("n_layer_cross_k", "n_layer_cross_v")


class Encoder(nn.Module):
    """mel [1, n_mels, n_frames] to keys and values [n_layer, 1, n_ctx, n_state]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, mel: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See the class."""
        encoder, blocks = self.model.encoder, self.model.decoder.blocks
        x = nn.functional.gelu(encoder.conv1(mel))
        x = nn.functional.gelu(encoder.conv2(x)).permute(0, 2, 1)
        x = x + encoder.positional_embedding[: x.shape[1]]
        for block in encoder.blocks:
            x = block(x)
        x = encoder.ln_post(x)
        keys, values = ([getattr(block.cross_attn, name)(x) for block in blocks] for name in ("key", "value"))
        return torch.stack(keys), torch.stack(values)


class Decoder(nn.Module):
    """Tokens [1, n] behind `offset` rows, caches and cross keys and values, to logits and the caches."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cross_k: Any, cross_v: Any, offset: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See the class."""
        decoder, n = self.model.decoder, tokens.shape[-1]
        end = offset[0] + n
        x = decoder.token_embedding(tokens) + decoder.positional_embedding[offset[0] : end]
        for i, block in enumerate(decoder.blocks):
            y = block.attn_ln(x)
            keys, values = k[i, :, :end, :], v[i, :, :end, :]
            keys[:, -n:, :], values[:, -n:, :] = block.attn.key(y), block.attn.value(y)
            k[i, :, :end, :], v[i, :, :end, :] = keys, values
            x = x + block.attn.out(block.attn.qkv_attention(block.attn.query(y), keys, values, decoder.mask)[0])
            cross, y = block.cross_attn, block.cross_attn_ln(x)
            x = x + cross.out(cross.qkv_attention(cross.query(y), cross_k[i], cross_v[i])[0])
            x = x + block.mlp(block.mlp_ln(x))
        return (decoder.ln(x) @ decoder.token_embedding.weight.T).float(), k, v


def metadata(model: Any, bundle: Bundle) -> dict[str, Any]:
    """What the recogniser reads off the encoder."""
    special, tokenizer = bundle.manifest.tokens, bundle.tokenizer
    languages = special.languages
    return {
        "model_type": f"whisper-{bundle.manifest.name}", "version": "1", "maintainer": "k2-fsa",
        **vars(model.dims),
        "sot_sequence": f"{special.sot},{languages['en']},{special.transcribe}", "sot_index": 0,
        "all_language_tokens": ",".join(map(str, languages.values())), "all_language_codes": ",".join(languages),
        "non_speech_tokens": ",".join(map(str, bundle.manifest.suppress_tokens)),
        "blank_id": tokenizer.encode(" ")[0], "is_multilingual": 1,
        **{name: getattr(special, name) for name in (
            "sot", "eot", "no_speech", "transcribe", "translate", "sot_prev", "sot_lm", "no_timestamps",
        )},
    }  # fmt: skip


def export(checkpoint: Path, bundle: Bundle, out: Path) -> None:
    """Write the graphs, the tokens, and the graphs in int8."""
    whisper.model.MultiHeadAttention.use_sdpa = False
    model = model_of(checkpoint).eval().requires_grad_(False)
    dims, name = model.dims, bundle.manifest.name
    out.mkdir(parents=True)
    mel = torch.zeros(1, dims.n_mels, 2 * dims.n_audio_ctx)
    cross = Encoder(model)(mel)
    caches = tuple(torch.zeros(dims.n_text_layer, 1, dims.n_text_ctx, dims.n_text_state) for _ in CACHES)
    axes = dict.fromkeys(CROSS, {1: "n_audio", 2: "T"})
    files = {part: out / f"{name}-{part}.onnx" for part in ("encoder", "decoder")}
    torch.onnx.export(
        Encoder(model), (mel,), str(files["encoder"]), input_names=["mel"], output_names=list(CROSS),
        dynamic_axes={"mel": {0: "n_audio", 2: "T"}, **axes}, opset_version=OPSET, dynamo=False,
    )  # fmt: skip
    torch.onnx.export(
        Decoder(model), (torch.tensor([[0]]), *caches, *cross, torch.tensor([3])), str(files["decoder"]),
        input_names=["tokens", *(f"in_{cache}" for cache in CACHES), *CROSS, "offset"],
        output_names=["logits", *(f"out_{cache}" for cache in CACHES)],
        dynamic_axes={"tokens": {0: "n_audio", 1: "n_tokens"}, **{f"in_{c}": {1: "n_audio"} for c in CACHES}, **axes},
        opset_version=OPSET, dynamo=False,
    )  # fmt: skip
    graph = onnx.load(files["encoder"])
    for key, value in metadata(model, bundle).items():
        graph.metadata_props.add(key=key, value=str(value))
    onnx.save(graph, files["encoder"])
    ranks = bundle.tokenizer.ranks[: bundle.manifest.tokens.eot]
    lines = [f"{base64.b64encode(token).decode()} {i}\n" for i, token in enumerate(ranks)]
    (out / f"{name}-tokens.txt").write_text("".join(lines), encoding="ascii")
    for file in files.values():
        target = file.with_suffix(".int8.onnx")
        quantize_dynamic(file, target, op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8)


if __name__ == "__main__":
    export(Path(sys.argv[1]), Bundle.open(sys.argv[2]), Path(sys.argv[3]))
