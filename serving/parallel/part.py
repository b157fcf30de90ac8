"""The weights of one rank."""

from __future__ import annotations

from pathlib import Path

import torch

from serving.models.config import ModelConfig
from serving.models.loader import LayerWeights, ModelWeights, load_weights
from serving.parallel.shards import Shard


def load_part(folder: Path, model: ModelConfig, shard: Shard, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    """Load a rank's part of every layer, the whole embedding, and on rank 0 the whole head.

    The head stays on rank 0, which samples: no logits are gathered, and its adapters' part needs no other rank.
    """

    def part(layer: LayerWeights) -> LayerWeights:
        return shard.layer(model, layer)

    return load_weights(folder, model, dtype, device, part=part, head=shard.rank == 0)
