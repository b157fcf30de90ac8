"""A model of random weights, its adapters and its runner on a GPU, for benchmarks: `build_runner` is the one place that
knows how a runner is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lora_kernels import AdapterPool, LoraPair
from serving.kv.paged import PagedKV
from serving.models.config import ModelConfig
from serving.models.llama import pool_spec
from serving.models.loader import LayerWeights, ModelWeights, part_sizes

if TYPE_CHECKING:
    from serving.runner.gpu import GpuRunner
    from serving.runner.graphs import Graphs

BLOCK, RANK = 16, 16


def llama_3_8b(layers: int = 32) -> ModelConfig:
    """Return the published shape (arXiv 2407.21783, table 3), with room for long contexts."""
    return ModelConfig.from_hf(
        {
            "model_type": "llama",
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": layers,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "tie_word_embeddings": False,
        }
    )


def random_weights(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> ModelWeights:
    """Return small random weights, which cannot overflow; speed does not depend on the values."""

    def tensor(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device=device, dtype=dtype).normal_(0, 0.02)

    sizes = {name: (sum(outs), width) for name, (width, outs) in part_sizes(config).items()}
    hidden = config.hidden_size
    layers = tuple(
        LayerWeights(
            input_norm=tensor(hidden), post_norm=tensor(hidden), **{name: tensor(*size) for name, size in sizes.items()}
        )
        for _ in range(config.num_layers)
    )
    return ModelWeights(tensor(config.vocab_size, hidden), layers, tensor(hidden), tensor(config.vocab_size, hidden))


def random_adapter(config: ModelConfig, dtype: torch.dtype) -> dict[tuple[int, str, int], LoraPair]:
    """Return an adapter of rank `RANK` on every site of every layer, in host memory.

    One may be loaded into many slots: its values lie at other addresses in each, and speed depends on those.
    """
    out = {}
    for site in pool_spec(config).sites:
        for layer in range(config.num_layers):
            for index, width in enumerate(site.slices):
                a = torch.empty(RANK, site.in_features, dtype=dtype).normal_(0, 0.01)
                b = torch.empty(width, RANK, dtype=dtype).normal_(0, 0.01)
                out[layer, site.name, index] = LoraPair(a, b, 2.0)
    return out


class Slots:
    """A pool in which adapter "3" has slot 3."""

    def __init__(self, pool: AdapterPool) -> None:
        self.pool = pool

    def slot(self, digest: str | None) -> int:
        """Return the slot, -1 for the bare base."""
        return -1 if digest is None else int(digest)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes that a runner is built for.

    sequences: the most sequences of a step; rows: the most tokens of a step
    length: positions of the longest sequence; blocks: KV blocks, the padding block included; adapters: pool slots
    """

    sequences: int
    rows: int
    length: int
    blocks: int
    adapters: int


def build_runner(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    sizes: Sizes,
    graphs: Graphs | None,
    *,
    interpreted: bool = False,
) -> GpuRunner:
    """Return a runner with random weights, and an adapter in each slot; its graphs are captured.

    interpreted: under Triton's interpreter, on CPU tensors
    """
    # Imported late: a machine without a GPU may lack Triton, and a command should still explain itself.
    from serving.models.llama_gpu import GpuLlama
    from serving.runner.gpu import GpuRunner

    with torch.inference_mode():
        pool = AdapterPool(pool_spec(config), sizes.adapters, sizes.adapters, dtype, device, backend="triton")
        kv = PagedKV(config, sizes.blocks, BLOCK, dtype, device)
        weights = random_weights(config, device, dtype)
        model = GpuLlama(config, weights, sizes.length, sizes.sequences, interpreted=interpreted)
        runner = GpuRunner(
            model,
            kv,
            Slots(pool),
            max_rows=sizes.rows,
            max_samples=sizes.sequences,
            max_blocks=-(-sizes.length // BLOCK),
            graphs=graphs,
        )
        adapter = random_adapter(config, dtype)
        for slot in range(sizes.adapters):
            pool.load(slot, adapter)
        pool.settle()
    return runner
