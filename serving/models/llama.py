"""The forward pass of every served family over packed rows, with LoRA applied at four fused sites of every layer."""

from __future__ import annotations

import torch
from torch.nn import functional

from lora_kernels import BatchMetadata, PoolSpec, SiteSpec, lora_apply
from lora_kernels.extras import RowExtras
from serving.kv.inputs import StepInputs
from serving.kv.paged import PagedKV
from serving.kv.scores import Scores
from serving.models.config import ModelConfig
from serving.models.loader import LayerWeights, Linear, ModelWeights, part_sizes
from serving.models.rope import rope_tables, rotate

# cos and sin of a step's rows, [rows, 1, dims] each
Turn = tuple[torch.Tensor, torch.Tensor]


def pool_spec(config: ModelConfig) -> PoolSpec:
    """Return the adapter sites of this model: one per fused linear, slices in the order the parts are stacked."""
    sites = tuple(SiteSpec(name, width, sizes) for name, (width, sizes) in part_sizes(config).items())
    return PoolSpec(sites=sites, num_layers=config.num_layers)


def scores_of(config: ModelConfig) -> list[Scores]:
    """Return how each layer makes scores of queries and keys."""
    return [Scores(config.score_scale, config.score_cap, layer.window) for layer in config.layers]


def embed_scale(config: ModelConfig, dtype: torch.dtype) -> float:
    """Return what embeddings of `dtype` are multiplied by: rounded to that type, as the models were trained."""
    return float(torch.tensor(config.embed_scale, dtype=dtype))


def _linear(x: torch.Tensor, weight: Linear, site: str, layer: int, adapters: BatchMetadata | None) -> torch.Tensor:
    assert isinstance(weight, torch.Tensor)  # this reference computes with dequantised weights
    y = functional.linear(x, weight)
    if adapters is not None:
        lora_apply(y, x, site, layer, adapters)
    return y


class Llama:
    """A model whose only state is its weights: KV and adapters come with each call.

    Layers give to the residual through `_output_linear`, which the model of one rank among several sums over ranks.
    """

    _output_linear = staticmethod(_linear)

    def __init__(self, config: ModelConfig, weights: ModelWeights, max_len: int) -> None:
        self.config, self.weights = config, weights
        embed = weights.embed
        self._ropes = {rope: rope_tables(rope, max_len, embed.dtype, embed.device) for rope in config.ropes}
        self._scores = scores_of(config)
        self._embed_scale = embed_scale(config, embed.dtype)

    def forward(self, step: StepInputs, kv: PagedKV, adapters: BatchMetadata | None) -> torch.Tensor:
        """Return hidden states [rows, hidden] before the final norm. adapters is None if all rows use the bare base."""
        eps, family = self.config.rms_norm_eps, self.config.family
        activation = _gelu_tanh if family.activation == "gelu_tanh" else functional.silu
        turns: dict[object, Turn | None] = {None: None}
        for rope, table in self._ropes.items():
            cos, sin = table[step.positions].unsqueeze(2).unbind(1)
            turns[rope] = cos, sin
        hidden = functional.embedding(step.token_ids, self.weights.embed)
        if adapters is not None and adapters.extras is not None:
            adapters.extras.embed(hidden, step.token_ids)
        hidden = hidden * self._embed_scale
        for index, layer in enumerate(self.weights.layers):
            x = rms_norm(hidden, layer.input_norm, eps)
            qkv = _linear(x, layer.qkv, "qkv", index, adapters)
            attended = self._attention(qkv, layer, index, turns[self.config.layers[index].rope], step, kv)
            out = self._output_linear(attended, layer.o, "o", index, adapters)
            hidden = hidden + (out if layer.attended_norm is None else rms_norm(out, layer.attended_norm, eps))
            x = rms_norm(hidden, layer.post_norm, eps)
            gate, up = _linear(x, layer.gate_up, "gate_up", index, adapters).chunk(2, -1)
            out = self._output_linear(activation(gate) * up, layer.down, "down", index, adapters)
            hidden = hidden + (out if layer.fed_norm is None else rms_norm(out, layer.fed_norm, eps))
        return hidden

    def logits(self, hidden: torch.Tensor, extras: RowExtras | None = None) -> torch.Tensor:
        """Return the logits of the given hidden states, float32 [rows, vocab]. extras: of their rows"""
        final = self.final_norm(hidden)
        logits = functional.linear(final, self.weights.head).float()
        if extras is not None:
            extras.logits(logits, final)
        return capped(logits, self.config.logit_cap)

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the normed hidden states, the input of the head and of embeddings."""
        return rms_norm(hidden, self.weights.norm, self.config.rms_norm_eps)

    def _attention(
        self, qkv: torch.Tensor, layer: LayerWeights, index: int, turn: Turn | None, step: StepInputs, kv: PagedKV
    ) -> torch.Tensor:
        config, eps = self.config, self.config.rms_norm_eps
        if layer.qkv_bias is not None:
            qkv = qkv + layer.qkv_bias
        q, k, v = qkv.view(len(qkv), -1, config.head_dim).split((config.num_heads, *[config.num_kv_heads] * 2), 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = rms_norm(q, layer.q_norm, eps), rms_norm(k, layer.k_norm, eps)
        if turn is not None:
            q, k = rotate(q, *turn), rotate(k, *turn)
        return kv.attend(index, q, k, v, step, self._scores[index]).reshape(len(qkv), -1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x · weight / rms(x), computed in float32 (Zhang & Sennrich, arXiv 1910.07467)."""
    if weight.dtype != x.dtype:  # weights of 1 + w
        return functional.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)
    return functional.rms_norm(x, weight.shape, weight, eps)


def capped(x: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Return cap · tanh(x / cap) (Gemma 2, arXiv 2408.00118), or x without a cap."""
    return x if cap is None else cap * torch.tanh(x / cap)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")
