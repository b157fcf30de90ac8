"""The forward pass of every served family for a GPU: torch's matrix products, our kernels between them, and no waiting
on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from lora_kernels import BatchMetadata, lora_apply, lora_write
from lora_kernels.extras import RowExtras
from serving.kernels.grouped import GroupedWeight
from serving.kernels.scaled import ScaledWeight
from serving.kernels.triton.activation import gelu_mul, silu_mul
from serving.kernels.triton.attention_decode import attend_tokens
from serving.kernels.triton.attention_prefill import attend_chunks
from serving.kernels.triton.attention_work import AttentionWork
from serving.kernels.triton.grouped_gemm import grouped_linear
from serving.kernels.triton.norm import add_rms_norm
from serving.kernels.triton.rope import rope_and_store
from serving.kernels.triton.scaled_gemm import scaled_linear
from serving.kv.paged import PagedKV
from serving.models.config import ModelConfig
from serving.models.llama import capped, embed_scale
from serving.models.loader import LayerWeights, Linear, ModelWeights
from serving.models.rope import rope_halves

# Steps of at least so many rows, which are prompts above all, take the adapters' part first and add the base product
# onto it: y is not read and written a second time. Predicted: 5 to 7 % of a prompt's time in place of 11 to 18 %.
FIRST_WRITE_ROWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStep:
    """One step's rows on the device, all int32: single tokens of sequences, then chunks, then padding.

    token_ids, positions, slots: [rows]; slots index KV by block · block_size + offset
    row_tables: [rows], the block table of each single-token row
    units: [most tiles, 4], the chunks' tiles as `serving.kernels.triton.attention_prefill` reads them; empty where the
        step cannot have chunks
    tables: [sequences, blocks], block ids
    counts: [8], read on the device alone: single-token rows, tiles, rows without padding
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    row_tables: torch.Tensor
    units: torch.Tensor
    tables: torch.Tensor
    counts: torch.Tensor


def _linear(x: torch.Tensor, weight: Linear, site: str, layer: int, adapters: BatchMetadata | None) -> torch.Tensor:
    long = len(x) >= FIRST_WRITE_ROWS and adapters is not None and adapters.has_adapters and adapters.extras is None
    if long and isinstance(weight, torch.Tensor):
        assert adapters is not None
        y = lora_write(x.new_empty(len(x), len(weight)), x, site, layer, adapters)
        return torch.addmm(y, x, weight.T, out=y)
    if isinstance(weight, GroupedWeight):
        y = grouped_linear(x, weight)
    else:
        y = scaled_linear(x, weight) if isinstance(weight, ScaledWeight) else functional.linear(x, weight)
    if adapters is not None:
        lora_apply(y, x, site, layer, adapters)
    return y


class GpuLlama:
    """A model whose only state is its weights and scratch: KV and adapters come with each call.

    interpreted: under Triton's interpreter, on CPU tensors

    Layers give to the residual through `_output_linear`, as those of `serving.models.llama.Llama` do.
    """

    _output_linear = staticmethod(_linear)

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, max_len: int, max_tokens: int, *, interpreted: bool = False
    ) -> None:
        self.config, self.weights = config, weights
        device = weights.embed.device
        self._ropes = {rope: rope_halves(rope, max_len).to(device) for rope in config.ropes}
        self._embed_scale = embed_scale(config, weights.embed.dtype)
        self._activate = gelu_mul if config.family.activation == "gelu_tanh" else silu_mul
        self._work = AttentionWork(max_tokens, config.num_heads, config.head_dim, max_len, device)
        self._upcast = interpreted

    def forward(self, step: DeviceStep, kv: PagedKV, adapters: BatchMetadata | None, out: torch.Tensor) -> None:
        """Write hidden states after the final norm to out [rows, hidden], and the KV of every row."""
        config, eps = self.config, self.config.rms_norm_eps
        residual = functional.embedding(step.token_ids, self.weights.embed)
        if adapters is not None and adapters.extras is not None:
            adapters.extras.embed(residual, step.token_ids)
        if self._embed_scale != 1.0:
            residual *= self._embed_scale
        x = torch.empty_like(residual)
        delta: torch.Tensor | None = None
        self._work.fill(step.positions, step.row_tables, step.counts)
        for index, layer in enumerate(self.weights.layers):
            add_rms_norm(residual, delta, layer.input_norm, eps, x)
            attended = self._attention(_linear(x, layer.qkv, "qkv", index, adapters), layer, index, step, kv)
            delta = self._output_linear(attended, layer.o, "o", index, adapters)
            if layer.attended_norm is not None:
                add_rms_norm(delta, None, layer.attended_norm, eps, delta)
            add_rms_norm(residual, delta, layer.post_norm, eps, x)
            both = _linear(x, layer.gate_up, "gate_up", index, adapters)
            active = self._activate(both, both.new_empty(len(both), config.intermediate_size))
            delta = self._output_linear(active, layer.down, "down", index, adapters)
            if layer.fed_norm is not None:
                add_rms_norm(delta, None, layer.fed_norm, eps, delta)
        add_rms_norm(residual, delta, self.weights.norm, eps, out)

    def logits(self, final: torch.Tensor, extras: RowExtras | None = None) -> torch.Tensor:
        """Return logits [rows, vocab] in the weights' dtype, from hidden states after the final norm.

        extras: of these rows
        """
        logits = functional.linear(final, self.weights.head)
        if extras is not None:
            extras.logits(logits, final)
        return capped(logits, self.config.logit_cap)

    def _attention(
        self, qkv: torch.Tensor, layer: LayerWeights, index: int, step: DeviceStep, kv: PagedKV
    ) -> torch.Tensor:
        config, cache, tables, counts = self.config, kv.layer(index), step.tables, step.counts
        heads, size, kind = config.num_heads, kv.block_size, config.layers[index]
        scores: Any = {"scale": config.score_scale, "cap": config.score_cap, "window": kind.window}
        scores["upcast"] = self._upcast
        rope_and_store(
            qkv,
            step.positions,
            step.slots,
            None if kind.rope is None else self._ropes[kind.rope],
            cache,
            heads,
            bias=layer.qkv_bias,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=config.rms_norm_eps,
        )
        out = qkv.new_empty(len(qkv), config.q_size)
        attend_tokens(qkv, cache, step.positions, tables, counts, out, heads, size, self._work, **scores)
        if len(step.units):
            attend_chunks(qkv, cache, step.units, tables, counts, out, heads, size, **scores)
        return out
