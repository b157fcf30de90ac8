"""Prefill: what adapters cost beside the base model's own matmuls, for 8192 tokens of eight prompts at every site."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.kernels.gpu_grid import SITES
from lora_kernels import AdapterPool, BatchMetadata, LoraPair, PoolSpec, lora_apply, lora_write

TOKENS = 8192
PROMPTS = 8
RANK = 16
REPEATS = 20
# The promise, as a share of the time of the four base GEMMs of a layer.
PREFILL_SHARE = 0.08


@dataclass(frozen=True)
class Prefill:
    """Milliseconds for one layer's four sites.

    base: y = x Wᵀ alone; added: and y += ΔW x afterwards; first: y = ΔW x, then y += x Wᵀ in the GEMM (beta = 1)
    """

    base_ms: float
    added_ms: float
    first_ms: float

    @property
    def share(self) -> float:
        """Return the share of the base's time that adapters add, the better way."""
        return min(self.added_ms, self.first_ms) / self.base_ms - 1


def measure_prefill(seed: int, device: torch.device | str = "cuda") -> Prefill:
    """Rank 16 on every site, one adapter a prompt."""
    spec = PoolSpec(tuple(SITES.values()), 1, max_rank=RANK)
    pool = AdapterPool(spec, PROMPTS, PROMPTS, torch.bfloat16, device, backend="triton")
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*size: int, over: float = 1) -> torch.Tensor:
        return (torch.randn(*size, generator=generator, device=device) / over**0.5).bfloat16()

    for slot in range(PROMPTS):
        pool.load(
            slot,
            {
                (0, site.name, index): LoraPair(
                    normal(RANK, site.in_features, over=site.in_features), normal(width, RANK, over=RANK), 1.0
                )
                for site in SITES.values()
                for index, width in enumerate(site.slices)
            },
        )
    meta = BatchMetadata.build(list(range(PROMPTS)), [TOKENS // PROMPTS] * PROMPTS, pool)
    x = {site.name: normal(TOKENS, site.in_features) for site in SITES.values()}
    w = {site.name: normal(site.in_features, site.out_features, over=site.in_features) for site in SITES.values()}
    y = {
        site.name: torch.empty(TOKENS, site.out_features, device=device, dtype=torch.bfloat16)
        for site in SITES.values()
    }

    def base() -> None:
        for name in SITES:
            torch.mm(x[name], w[name], out=y[name])

    def added() -> None:
        for name in SITES:
            torch.mm(x[name], w[name], out=y[name])
            lora_apply(y[name], x[name], name, 0, meta)

    def first() -> None:
        for name in SITES:
            lora_write(y[name], x[name], name, 0, meta)
            torch.addmm(y[name], x[name], w[name], out=y[name])

    times = interleaved_ms({"base": base, "added": added, "first": first})
    return Prefill(times["base"], times["added"], times["first"])


def interleaved_ms(calls: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median milliseconds of each, in turns: clocks that drift drift for all."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(REPEATS + 3):
        for name, call in calls.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            if repeat >= 3:
                samples[name].append(begin.elapsed_time(end))
    return {name: statistics.median(values) for name, values in samples.items()}
