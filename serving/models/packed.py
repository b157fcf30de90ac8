"""A model's weights as the C kernels read them: packed once, layer by layer, never held twice."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from serving.kernels.forward import SITES, CLayer
from serving.kernels.grouped_linear import GroupedLinear, stays_packed
from serving.kernels.library import KernelLibrary
from serving.kernels.linear import PackedLinear, WeightArena, packed_bytes
from serving.models.config import ModelConfig
from serving.models.loader import Checkpoint, LayerWeights, Linear, dense, part_sizes

log = logging.getLogger(__name__)

_VECTORS = ("input_norm", "post_norm", "qkv_bias", "q_norm", "k_norm", "attended_norm", "fed_norm")
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int8: "int8"}


@dataclass(frozen=True, slots=True, eq=False)
class PackedModel:
    """Packed weights of a model.

    embed: [vocab, hidden], float32 or bfloat16; None if the head holds the same numbers
    norm: float32 [hidden]
    exact: weights are float32
    nbytes: memory of linears, head and embedding
    layers: `sk_layer`s without their adapter sites; `kept` owns the memory that their pointers refer to
    """

    config: ModelConfig
    embed: torch.Tensor | None
    norm: torch.Tensor
    exact: bool
    nbytes: int
    layers: ctypes.Array[CLayer]
    head: PackedLinear
    kept: tuple[object, ...]


def load_packed(
    library: KernelLibrary, folder: Path, config: ModelConfig, weights: torch.dtype, threads: int
) -> PackedModel:
    """Read a Hugging Face folder into packed weights of type float32, bfloat16 or int8.

    The embedding is kept in float32 with float32 weights, else in bfloat16; tied to a head of that type, or of fewer
    bits, it is not held a second time. With bfloat16, weights in 4 and 8 bits stay as they are and give the products
    of their numbers in bfloat16; with other types they are dequantised one at a time. Raises ModelConfigError for a
    missing or misshapen tensor.
    """
    checkpoint, name = Checkpoint(folder, config), _NAMES[weights]
    packs = weights == torch.bfloat16
    # Address space for all weights in this type; those of fewer bits leave most of it untouched.
    arena = WeightArena(sum(packed_bytes(n, k, name) for n, k in _linear_sizes(config)))

    def pack(linear: Linear) -> PackedLinear:
        if packs and not isinstance(linear, torch.Tensor):
            if stays_packed(linear):
                return GroupedLinear(linear, library, arena, threads)
            log.info("%s: a weight of %s is dequantised: its inputs are no whole units of 8", folder, linear.shape)
        weight = dense(linear)
        source = weight if weight.dtype == torch.bfloat16 else weight.float()
        return PackedLinear(source, name, library, arena, threads)

    layers = (CLayer * config.num_layers)()
    kept: list[object] = [arena]
    nbytes = 0
    for index, target in enumerate(layers):
        layer = checkpoint.layer(index)
        for site, fused in enumerate(SITES):
            packed = pack(getattr(layer, fused))
            target.linear[site] = packed.c
            nbytes += packed.nbytes
        kept += [_set_vector(target, layer, vector) for vector in _VECTORS]
    embed = None
    if weights == torch.int8 or not config.tied_embeddings:
        embed = dense(checkpoint.embed()).to(torch.float32 if weights == torch.float32 else torch.bfloat16, copy=True)
        nbytes += embed.nbytes
    head, norm = pack(checkpoint.head()), checkpoint.norm().to(torch.float32, copy=True)
    checkpoint.check_all_read()
    return PackedModel(
        config=config,
        embed=embed,
        norm=norm,
        exact=weights == torch.float32,
        layers=layers,
        nbytes=nbytes + head.nbytes,
        head=head,
        kept=tuple(kept),
    )


def _linear_sizes(config: ModelConfig) -> Iterator[tuple[int, int]]:
    """Yield (outputs, inputs) of every linear."""
    for width, sizes in part_sizes(config).values():
        for _ in range(config.num_layers):
            yield sum(sizes), width
    yield config.vocab_size, config.hidden_size


def _set_vector(target: CLayer, layer: LayerWeights, name: str) -> torch.Tensor | None:
    vector = getattr(layer, name)
    if vector is None:
        return None
    vector = vector.to(torch.float32, copy=True).contiguous()
    setattr(target, name, vector.data_ptr())
    return vector
