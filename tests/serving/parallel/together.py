"""Ranks as threads of one process, each with its own part of a model: real collectives, no second start of torch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from lora_kernels import AdapterPool, LoraPair
from serving.kv.paged import PagedKV
from serving.models.config import ModelConfig
from serving.models.llama import Llama, pool_spec
from serving.models.loader import load_weights
from serving.parallel.cargo import Cargo, read_cargo
from serving.parallel.collectives import Collectives, ShardedLlama
from serving.parallel.part import load_part
from serving.parallel.shards import Shard
from serving.runner import TorchRunner
from serving.runner.work import StepWork

CPU, F32 = torch.device("cpu"), torch.float32
BLOCKS, BLOCK, LENGTH = 40, 4, 120
Pairs = dict[tuple[int, str, int], LoraPair]


class SlotsAlone:
    """Adapters by their slots: work names them."""

    def __init__(self, pool: AdapterPool) -> None:
        self.pool = pool

    def slot(self, digest: str | None) -> int:
        return -1


def whole_runner(folder: Path, adapters: list[Pairs]) -> TorchRunner:
    """The model in one part."""
    model = ModelConfig.from_dir(folder)
    return _runner(Llama(model, load_weights(folder, model, F32, CPU), LENGTH), model, adapters)


def rank_runner(folder: Path, shard: Shard, adapters: list[Pairs], meeting: Path) -> TorchRunner:
    """One rank's part, with its part of each adapter as it travels. Returns when the ranks have met."""
    model = ModelConfig.from_dir(folder)
    local = shard.config(model)
    llama = ShardedLlama(local, load_part(folder, model, shard, F32, CPU), LENGTH)
    parts = []
    for pairs in adapters:
        cargo = Cargo(list(shard.adapter(model, pairs)))
        memory = torch.zeros(cargo.nbytes, dtype=torch.uint8)
        cargo.write(memory)
        parts.append(read_cargo(memory))
    llama.collectives = Collectives(meeting, shard.rank, shard.ranks, CPU, 20)
    return _runner(llama, local, parts)


def together(ranks: int, work: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
    """Run `work` for every rank at once; returns what each gives."""
    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(work, range(ranks)))


def hidden_states(runner: TorchRunner, steps: list[StepWork]) -> torch.Tensor:
    """The hidden states of some steps, one after the other."""
    with torch.inference_mode():
        return torch.cat([runner.compute(step)[0] for step in steps])


def _runner(llama: Llama, model: ModelConfig, adapters: list[Pairs]) -> TorchRunner:
    pool = AdapterPool(pool_spec(model), 12, max(1, len(adapters)), F32)
    for slot, pairs in enumerate(adapters):
        pool.load(slot, pairs)
    return TorchRunner(llama, PagedKV(model, BLOCKS, BLOCK, F32, CPU), SlotsAlone(pool))
