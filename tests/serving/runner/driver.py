"""Drives a runner without an engine: sequences by hand, blocks by hand, one plan after another."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lora_kernels import AdapterPool, LoraPair
from serving.core import AdapterRef, Request, SamplingParams, Sequence
from serving.models.config import ModelConfig
from serving.models.llama import pool_spec
from serving.ports import Runner
from serving.runner import Precision, RunnerSettings, TorchRunner, choose_runner
from serving.steps import Chunk, SampledToken, StepPlan

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0, ignore_eos=True)


class NoText:
    """An output that nobody reads."""

    stopped = False

    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


@dataclass
class Adapters:
    """As much of the adapter manager as a runner asks for: "3" is slot 3."""

    pool: AdapterPool

    def slot(self, digest: str | None) -> int:
        return -1 if digest is None else int(digest)


@dataclass
class Driver:
    """A runner, and sequences that take blocks in a scattered order and never give them back."""

    runner: Runner
    adapters: Adapters
    model: ModelConfig
    free: list[int] = field(default_factory=list)

    def start(
        self, prompt: Seq[int], slot: int | None = None, *, sampling: SamplingParams = GREEDY, embed: bool = False
    ) -> Sequence:
        ref = AdapterRef(None if slot is None else str(slot))
        request = Request("id", "tenant", "scope", ref, tuple(prompt), sampling, 1, embed=embed)
        return Sequence(request, 0.0, list(prompt), NoText(), random.Random(0))

    def step(self, *work: tuple[Sequence, int]) -> Seq[SampledToken]:
        """Computes the next `count` tokens of each sequence; sampled tokens are appended."""
        plan = StepPlan()
        for sequence, count in work:
            end = sequence.computed + count
            while len(sequence.blocks) * self.runner.block_size < end:
                sequence.blocks.append(self.free.pop())
                plan.fresh_blocks.append(sequence.blocks[-1])
            plan.chunks.append(Chunk(sequence, sequence.computed, count))
        answers = self.runner.launch(plan).result()
        rest = iter(answers)
        for chunk in plan.chunks:
            samples = chunk.samples
            chunk.sequence.computed += chunk.count
            if samples and (answer := next(rest)).token_id is not None:
                chunk.sequence.tokens.append(answer.token_id)
        assert next(rest, None) is None
        return answers

    def generate(self, sequence: Sequence, count: int, chunk: int = 1 << 20) -> list[int]:
        """Continue a sequence alone, its prompt computed `chunk` tokens at a time."""
        first = len(sequence.tokens)
        while len(sequence.tokens) < first + count:
            self.step((sequence, min(chunk, len(sequence.tokens) - sequence.computed)))
        return sequence.tokens[first:]


def make_driver(
    folder: Path,
    *,
    block_size: int = 16,
    num_blocks: int = 600,
    dtype: torch.dtype = torch.float32,
    slots: int = 8,
    max_rows: int = 256,
    weights: torch.dtype | None = None,
    resident: torch.dtype | None = None,
    threads: int = 2,
    max_len: int = 400,
) -> Driver:
    """The runner that a replica would get here. dtype: of the KV cache; weights, resident: of base and adapters, dtype
    unless they are given."""
    model = ModelConfig.from_dir(folder)
    adapters = Adapters(AdapterPool(pool_spec(model), slots * 4, slots, resident or dtype))
    settings = RunnerSettings(
        folder=folder,
        model=model,
        device=CPU,
        precision=Precision(weights or dtype, dtype, resident or dtype),
        num_blocks=num_blocks,
        block_size=block_size,
        max_len=max_len,
        max_rows=max_rows,
        max_sequences=64,
        threads=threads,
    )
    driver = Driver(choose_runner(settings, adapters), adapters, model, list(range(1, num_blocks)))
    assert driver.runner.elastic_memory  # the C kernels, not their reference
    random.Random(1).shuffle(driver.free)
    return driver


def make_torch_driver(folder: Path, *, block_size: int = 16, num_blocks: int = 600, slots: int = 8) -> Driver:
    """The same in plain torch, float32."""
    from serving.kv.paged import PagedKV
    from serving.models.llama import Llama
    from serving.models.loader import load_weights

    model = ModelConfig.from_dir(folder)
    adapters = Adapters(AdapterPool(pool_spec(model), slots * 4, slots, torch.float32))
    kv = PagedKV(model, num_blocks, block_size, torch.float32, CPU)
    runner = TorchRunner(Llama(model, load_weights(folder, model, torch.float32, CPU), 400), kv, adapters)
    return Driver(runner, adapters, model, list(range(1, num_blocks)))


def random_adapter(
    model: ModelConfig, rank: int, seed: int, scale: float = 0.2
) -> dict[tuple[int, str, int], LoraPair]:
    """All sites of all layers."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for site in pool_spec(model).sites:
        for layer in range(model.num_layers):
            for index, width in enumerate(site.slices):
                a = torch.randn(rank, site.in_features, generator=generator) * site.in_features**-0.5
                b = torch.randn(width, rank, generator=generator) * scale
                out[layer, site.name, index] = LoraPair(a, b, 1.0)
    return out
