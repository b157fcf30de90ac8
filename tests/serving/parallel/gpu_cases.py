"""Two ranks of the GPU runner against plain torch, under Triton's interpreter and over gloo. A program: Triton comes in
folders of its own, and each rank is a process."""

from __future__ import annotations

import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import torch

from lora_kernels import AdapterPool, LoraPair
from serving.kv.paged import PagedKV
from serving.models.config import ModelConfig
from serving.models.llama import pool_spec
from serving.parallel import wire
from serving.parallel.cargo import Cargo, read_cargo
from serving.parallel.collectives import Collectives
from serving.parallel.gpu import LeadingGpuRunner, ShardedGpuLlama, follow_step
from serving.parallel.part import load_part
from serving.parallel.ranks import Ranks
from serving.parallel.shards import Shard
from serving.runner.gpu import GpuRunner
from tests.serving.models.families import build
from tests.serving.runner.driver import Adapters, Driver, make_torch_driver, random_adapter

CPU, F32 = torch.device("cpu"), torch.float32
BLOCKS, BLOCK, LENGTH, ROWS, SEQUENCES = 20, 16, 64, 32, 3
RANKS_OF_ADAPTERS = (4, 20)


class Telling:
    """As much of `Ranks` as the leading runner uses: commands go through a pipe, encoded as always."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def tell(self, command: wire.Command) -> None:
        self._pipe.send_bytes(wire.encode(command))

    def abandon(self, error: BaseException) -> None:
        raise AssertionError("the leading rank failed in a step") from error


def part_of(folder: Path, rank: int) -> tuple[ShardedGpuLlama, PagedKV, AdapterPool]:
    """One rank's model, KV and adapters; the ranks have met when it returns."""
    model, shard = ModelConfig.from_dir(folder), Shard(rank, 2)
    local = shard.config(model)
    llama = ShardedGpuLlama(local, load_part(folder, model, shard, F32, CPU), LENGTH, SEQUENCES, interpreted=True)
    llama.collectives = Collectives(folder / "meeting", rank, 2, CPU, 60)
    pool = AdapterPool(pool_spec(local), 6, 2, F32, backend="triton")
    for slot, size in enumerate(RANKS_OF_ADAPTERS):
        pool.load(slot, travelled(model, shard, random_adapter(model, size, size)))
    return llama, PagedKV(local, BLOCKS, BLOCK, F32, CPU), pool


def travelled(model: ModelConfig, shard: Shard, pairs: dict[tuple[int, str, int], LoraPair]) -> object:
    cargo = Cargo(list(shard.adapter(model, pairs)))
    memory = torch.zeros(cargo.nbytes, dtype=torch.uint8)
    cargo.write(memory)
    return read_cargo(memory)


def follow(folder: Path, pipe: Connection) -> None:
    """Be rank 1 until the pipe closes."""
    llama, kv, pool = part_of(folder, 1)
    blocks = -(-LENGTH // BLOCK)
    adapters = Adapters(pool)
    runner = GpuRunner(llama, kv, adapters, max_rows=ROWS, max_samples=SEQUENCES, max_blocks=blocks, graphs=None)
    while True:
        try:
            command = wire.decode(pipe.recv_bytes())
        except EOFError:
            return
        assert isinstance(command, wire.GpuStep)
        follow_step(runner, command)


def answers(driver: Driver) -> list[list[int]]:
    """Chunks beside single tokens, two adapters and the base."""
    a, b, c = driver.start(range(5, 30), 0), driver.start(range(40, 48)), driver.start(range(60, 79), 1)
    driver.step((a, 20), (b, 8))
    driver.step((a, 5), (b, 1), (c, 10))
    driver.step((a, 1), (b, 1), (c, 9))
    for _ in range(2):
        driver.step((a, 1), (b, 1), (c, 1))
    return [sequence.tokens for sequence in (a, b, c)]


def two_ranks_give_the_reference_s_tokens(folder: Path) -> None:
    build("qwen2").save_pretrained(folder)
    truth = make_torch_driver(folder)
    for slot, size in enumerate(RANKS_OF_ADAPTERS):
        truth.adapters.pool.load(slot, random_adapter(truth.model, size, size))
    expected = answers(truth)

    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=follow, args=(folder, theirs), daemon=True)
    child.start()
    theirs.close()
    llama, kv, pool = part_of(folder, 0)
    adapters = Adapters(pool)
    runner = LeadingGpuRunner(
        cast(Ranks, Telling(ours)),
        llama,
        kv,
        adapters,
        max_rows=ROWS,
        max_samples=SEQUENCES,
        max_blocks=-(-LENGTH // BLOCK),
        graphs=None,
    )
    assert runner.depth == 0 and runner.max_draft_rows == 0
    found = answers(Driver(runner, adapters, llama.config, list(range(1, BLOCKS))))
    ours.close()
    child.join(60)
    assert child.exitcode == 0
    assert found == expected, (found, expected)


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temporary, torch.inference_mode():
        two_ranks_give_the_reference_s_tokens(Path(temporary) / "model")
        print("ok two_ranks_give_the_reference_s_tokens")
