"""The llama forward pass over packed rows, with LoRA applied at four fused sites of every layer."""

from __future__ import annotations

import torch
from torch.nn import functional

from lora_kernels import BatchMetadata, PoolSpec, SiteSpec, lora_apply
from serving.kv.inputs import StepInputs
from serving.kv.paged import PagedKV
from serving.models.config import ModelConfig
from serving.models.loader import Linear, ModelWeights, part_sizes
from serving.models.rope import rope_tables, rotate


def pool_spec(config: ModelConfig) -> PoolSpec:
    """Return the adapter sites of this model: one per fused linear, slices in the order the parts are stacked."""
    sites = tuple(SiteSpec(name, width, sizes) for name, (width, sizes) in part_sizes(config).items())
    return PoolSpec(sites=sites, num_layers=config.num_layers)


class Llama:
    """A llama whose only state is its weights: KV and adapters come with each call."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, max_len: int) -> None:
        self.config, self.weights = config, weights
        self._rope = rope_tables(config, max_len, weights.embed.dtype, weights.embed.device)

    def forward(self, step: StepInputs, kv: PagedKV, adapters: BatchMetadata | None) -> torch.Tensor:
        """Return hidden states [rows, hidden] before the final norm. adapters is None if all rows use the bare base."""
        config, eps = self.config, self.config.rms_norm_eps
        q_end, k_end = config.q_size, config.q_size + config.kv_size
        cos, sin = self._rope[step.positions].unsqueeze(2).unbind(1)
        hidden = functional.embedding(step.token_ids, self.weights.embed)
        for index, layer in enumerate(self.weights.layers):
            x = rms_norm(hidden, layer.input_norm, eps)
            qkv = _linear(x, layer.qkv, "qkv", index, adapters)
            if layer.qkv_bias is not None:
                qkv = qkv + layer.qkv_bias
            heads = qkv[:, :k_end].view(len(qkv), -1, config.head_dim)
            if layer.q_norm is not None and layer.k_norm is not None:
                heads = torch.cat(
                    (
                        rms_norm(heads[:, : config.num_heads], layer.q_norm, eps),
                        rms_norm(heads[:, config.num_heads :], layer.k_norm, eps),
                    ),
                    1,
                )
            q, k = rotate(heads, cos, sin).split((config.num_heads, config.num_kv_heads), 1)
            attended = kv.attend(index, q, k, qkv[:, k_end:].view(len(qkv), -1, config.head_dim), step)
            hidden = hidden + _linear(attended.view(len(qkv), q_end), layer.o, "o", index, adapters)
            x = rms_norm(hidden, layer.post_norm, eps)
            gate, up = _linear(x, layer.gate_up, "gate_up", index, adapters).chunk(2, -1)
            hidden = hidden + _linear(functional.silu(gate) * up, layer.down, "down", index, adapters)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of the given hidden states, float32 [rows, vocab]."""
        return functional.linear(self.final_norm(hidden), self.weights.head).float()

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the normed hidden states, the input of the head and of embeddings."""
        return rms_norm(hidden, self.weights.norm, self.config.rms_norm_eps)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x · weight / rms(x), computed in float32 (Zhang & Sennrich, arXiv 1910.07467)."""
    return functional.rms_norm(x, weight.shape, weight, eps)


def _linear(x: torch.Tensor, weight: Linear, site: str, layer: int, adapters: BatchMetadata | None) -> torch.Tensor:
    assert isinstance(weight, torch.Tensor)  # this reference computes with dequantised weights
    y = functional.linear(x, weight)
    if adapters is not None:
        lora_apply(y, x, site, layer, adapters)
    return y
