"""Starts the ranks of a replica and builds rank 0's part."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from serving.errors import ConfigError
from serving.kv.paged import PagedKV
from serving.models.config import ModelConfig
from serving.parallel.collectives import ShardedLlama
from serving.parallel.part import load_part
from serving.parallel.ranks import Ranks, meeting_place
from serving.parallel.runner import LeadingRunner
from serving.parallel.shards import Shard
from serving.parallel.wire import Most, RankSettings
from serving.ports import ResidentAdapters, Runner
from serving.runner import RunnerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterMemory:
    """Each rank's adapter memory: pages of its part of 16 ranks of an adapter, slots, and whether it is private."""

    pages: int
    slots: int
    private: bool


def start_ranks(settings: RunnerSettings, ranks: int, adapters: AdapterMemory, seconds: float) -> Ranks:
    """Start ranks 1 to `ranks` - 1, which load their weights while rank 0 goes on.

    settings: of rank 0, with the whole model; seconds: how long ranks wait for one another

    Raises ConfigError.
    """
    s = settings
    if s.device.type == "cuda" and torch.cuda.device_count() < ranks:
        raise ConfigError(f"--tensor-parallel {ranks}: needs as many GPUs, there are {torch.cuda.device_count()}")
    blocks_each = -(-s.max_len // s.block_size)
    most = Most(s.max_rows, s.max_sequences, blocks_each, s.num_blocks)
    started = Ranks(
        RankSettings(
            rank=0,
            ranks=ranks,
            folder=str(s.folder.resolve()),
            device=s.device.type,
            weights=_name(s.precision.weights),
            cache=_name(s.precision.cache),
            adapters=_name(s.precision.adapters),
            num_blocks=s.num_blocks,
            block_size=s.block_size,
            max_len=s.max_len,
            max_rows=s.max_rows,
            max_sequences=s.max_sequences,
            threads=s.threads,
            pages=adapters.pages,
            slots=adapters.slots,
            private=adapters.private,
            meeting=meeting_place(),
            seconds=seconds,
            command_bytes=most.command_bytes,
        ),
        s.model,
    )
    started.start()
    return started


def lead(settings: RunnerSettings, ranks: Ranks, adapters: ResidentAdapters) -> Runner:
    """Load rank 0's part and meet the other ranks. Raises ConfigError or ModelConfigError.

    settings: with the whole model
    """
    s, shard = settings, Shard(0, ranks.count)
    local = shard.config(s.model)
    weights = load_part(s.folder, s.model, shard, s.precision.weights, s.device)
    ranks.wait_loaded()
    kv = PagedKV(local, s.num_blocks, s.block_size, s.precision.cache, s.device)
    if s.device.type == "cpu":
        model = ShardedLlama(local, weights, s.max_len)
        model.collectives = ranks.connect(s.device)
        return LeadingRunner(model, kv, adapters, ranks)
    # Imported late: Triton comes with CUDA builds of torch alone.
    from serving.parallel.gpu import LeadingGpuRunner, ShardedGpuLlama

    gpu_model = ShardedGpuLlama(local, weights, s.max_len, s.max_sequences)
    gpu_model.collectives = ranks.connect(s.device)
    return LeadingGpuRunner(
        ranks,
        gpu_model,
        kv,
        adapters,
        max_rows=s.max_rows,
        max_samples=s.max_sequences,
        max_blocks=-(-s.max_len // s.block_size),
        graphs=None,
    )


def serves_on(model: ModelConfig, ranks: int) -> ModelConfig:
    """Return the model as each of `ranks` computes it, the model itself where there is one."""
    return model if ranks == 1 else Shard(0, ranks).config(model)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
