"""Which part of a model and of an adapter each rank holds (Megatron-LM, Shoeybi et al., arXiv 1909.08053).

qkv and gate_up are cut by outputs, o and down by inputs: whole heads, with their keys and values, and whole neurons
stay on one rank. A cut by inputs leaves partial sums, which one all-reduce per site adds up. An adapter follows its
site: where outputs are cut, its B is; where inputs are cut, its A is, and s · B · (A_r x_r) is part of the rank's
partial sum. So the sum over ranks holds the adapters too, and they add no collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from lora_kernels import AdapterTensors, Target
from serving.errors import ConfigError
from serving.models.config import ModelConfig
from serving.models.loader import LayerWeights, dense

# Sites whose inputs are cut; the others' outputs are.
_CUT_INPUTS = frozenset(("o", "down"))


@dataclass(frozen=True, slots=True, eq=False)
class PairShard:
    """One rank's part of an adapter's pair, as views: a [r, in]; parts of b [some outputs, r], stacked in order."""

    a: torch.Tensor
    b: tuple[torch.Tensor, ...]
    scale: float

    @property
    def outputs(self) -> int:
        """Return the rows of b."""
        return sum(len(part) for part in self.b)


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of rank `rank` of `ranks`."""

    rank: int
    ranks: int

    def config(self, model: ModelConfig) -> ModelConfig:
        """Return the model as one rank computes it: fewer heads and neurons, everything else the same."""
        return replace(
            model,
            num_heads=model.num_heads // self.ranks,
            num_kv_heads=model.num_kv_heads // self.ranks,
            intermediate_size=model.intermediate_size // self.ranks,
        )

    def layer(self, model: ModelConfig, layer: LayerWeights) -> LayerWeights:
        """Return this rank's part of a layer; linears in 4 and 8 bits are dequantised."""
        (qkv, _), (gate_up, _) = _outputs(model)
        return replace(
            layer,
            qkv=torch.cat(self._rows(dense(layer.qkv), qkv)),
            o=self._columns(dense(layer.o)),
            gate_up=torch.cat(self._rows(dense(layer.gate_up), gate_up)),
            down=self._columns(dense(layer.down)),
            qkv_bias=None if layer.qkv_bias is None else torch.cat(self._rows(layer.qkv_bias, qkv)),
        )

    def adapter(self, model: ModelConfig, tensors: AdapterTensors) -> Iterator[tuple[Target, PairShard]]:
        """Yield this rank's part of each pair. Shapes are those of the whole model; nothing is copied."""
        slices = _slices(model)
        for key, pair in tensors.items():
            target = Target(*key)
            if target.site in _CUT_INPUTS:
                yield target, PairShard(self._columns(pair.a), (pair.b,), pair.scale)
            else:
                parts = slices[target.site][target.slice_index]
                yield target, PairShard(pair.a, self._rows(pair.b, parts), pair.scale)

    def _rows(self, tensor: torch.Tensor, parts: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """Return this rank's share of each part of the first dimension, as views."""
        return tuple(part.chunk(self.ranks)[self.rank] for part in tensor.split(list(parts)))

    def _columns(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.chunk(self.ranks, 1)[self.rank]


def check_ranks(model: ModelConfig, ranks: int) -> None:
    """Raise ConfigError, naming the numbers that are possible, unless `ranks` divide heads, KV heads and neurons."""
    possible = possible_ranks(model)
    if ranks not in possible:
        raise ConfigError(
            f"--tensor-parallel {ranks}: this model has {model.num_heads} heads, {model.num_kv_heads} KV heads and "
            f"{model.intermediate_size} neurons in a layer, which can be divided among "
            f"{' or '.join(map(str, possible))} {'ranks' if possible != [1] else 'rank'}"
        )


def possible_ranks(model: ModelConfig) -> list[int]:
    """Return every number of ranks that divides the model, ascending."""
    sizes = model.num_heads, model.num_kv_heads, model.intermediate_size
    return [n for n in range(1, model.num_kv_heads + 1) if not any(size % n for size in sizes)]


def _outputs(model: ModelConfig) -> tuple[tuple[tuple[int, ...], int], tuple[tuple[int, ...], int]]:
    """Return the parts of the outputs of qkv and of gate_up, each with the number of the checkpoint's modules."""
    qkv, gate_up = (model.q_size, model.kv_size, model.kv_size), (model.intermediate_size,) * 2
    return (qkv, len(model.family.qkv)), (gate_up, len(model.family.gate_up))


def _slices(model: ModelConfig) -> Mapping[str, list[tuple[int, ...]]]:
    """Return the parts of each slice of the sites whose outputs are cut: one slice has all where a module does."""
    return {
        site: [(part,) for part in parts] if modules > 1 else [parts]
        for site, (parts, modules) in zip(("qkv", "gate_up"), _outputs(model), strict=True)
    }
