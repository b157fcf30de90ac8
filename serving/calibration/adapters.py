"""Adapters with random weights, whose digest says their rank: `r16-0003`."""

from __future__ import annotations

import torch

from lora_kernels import AdapterTensors, LoraPair
from serving.adapter_stats import LevelSeconds
from serving.adapters.gate import Pause, go_on
from serving.errors import AdapterUnavailable
from serving.models.config import ModelConfig
from serving.models.llama import pool_spec


def digest_of(rank: int, number: int) -> str:
    """Return the name of the `number`-th adapter of a rank."""
    return f"r{rank}-{number:05d}"


class RandomAdapters:
    """`serving.adapters.source.AdapterSource` that copies weights, as a sealed package's decryption does."""

    leased = False

    def __init__(self, model: ModelConfig) -> None:
        self.seconds = LevelSeconds()
        self._model = model
        self._weights: dict[int, dict[tuple[int, str, int], LoraPair]] = {}

    def load(self, digest: str, pause: Pause = go_on) -> AdapterTensors:
        """Return a copy of the weights of the digest's rank. Raises AdapterUnavailable for a digest without one."""
        rank, _, _ = digest.removeprefix("r").partition("-")
        if not rank.isdigit() or not 0 < int(rank) <= 256:
            raise AdapterUnavailable(f"no adapter {digest[:12]}")
        copies: dict[tuple[int, str, int], LoraPair] = {}
        for place, pair in self._of_rank(int(rank)).items():
            pause()
            copies[place] = LoraPair(pair.a.clone(), pair.b.clone(), pair.scale)
        return copies

    def copied(self, digest: str) -> None: ...

    def release(self, digest: str) -> None: ...

    def locked_bytes(self) -> int:
        return 0

    def _of_rank(self, rank: int) -> dict[tuple[int, str, int], LoraPair]:
        if rank not in self._weights:
            generator = torch.Generator().manual_seed(rank)
            self._weights[rank] = {
                (layer, site.name, index): LoraPair(
                    (torch.randn(rank, site.in_features, generator=generator) * site.in_features**-0.5).bfloat16(),
                    (torch.randn(width, rank, generator=generator) * 0.01).bfloat16(),
                    1.0,
                )
                for site in pool_spec(self._model).sites
                for layer in range(self._model.num_layers)
                for index, width in enumerate(site.slices)
            }
        return self._weights[rank]
