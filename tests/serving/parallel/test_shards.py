"""The parts of all ranks, added up, are the model: for every family, with adapters, and with two sums a layer."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from lora_kernels import ShapeError
from serving.errors import ConfigError
from serving.models.config import ModelConfig
from serving.parallel.cargo import Cargo, read_cargo
from serving.parallel.collectives import Collectives
from serving.parallel.part import load_part
from serving.parallel.shards import Shard, check_ranks, possible_ranks
from serving.parallel.wire import Most, Step, Zero, decode, encode
from serving.runner.work import StepWork
from tests.serving.models.families import FAMILIES, build
from tests.serving.models.integer_checkpoints import quantised
from tests.serving.parallel.together import BLOCK, CPU, F32, hidden_states, rank_runner, together, whole_runner
from tests.serving.runner.driver import random_adapter

PROMPT, OTHER = 30, 9
# Biases; fused modules; norms of heads; norms of outputs, caps and windows.
DIVIDED = ["llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"]


def int32s(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def steps(slots: tuple[int, int]) -> list[StepWork]:
    """A prompt in two chunks beside another prompt, then a token of each."""
    rng = np.random.default_rng(4)
    ids = rng.integers(3, 250, PROMPT + OTHER + 2).astype(np.int32)
    first, second = int32s(*range(1, 9)), int32s(*range(9, 13))
    cut = PROMPT - 10
    nothing = int32s()
    shared = {"copies": nothing.reshape(0, 2), "stale": nothing}
    return [
        StepWork(
            token_ids=ids[:cut],
            chunk_rows=int32s(0, cut),
            chunk_starts=int32s(0),
            chunk_tables=int32s(0, cut // BLOCK),
            blocks=first[: cut // BLOCK],
            slots=int32s(slots[0]),
            **shared,
        ),
        StepWork(
            token_ids=ids[cut : PROMPT + OTHER],
            chunk_rows=int32s(0, 10, 10 + OTHER),
            chunk_starts=int32s(cut, 0),
            chunk_tables=int32s(0, 8, 11),
            blocks=np.concatenate([first, second[:3]]),
            slots=int32s(*slots),
            **shared,
        ),
        StepWork(
            token_ids=ids[-2:],
            chunk_rows=int32s(0, 1, 2),
            chunk_starts=int32s(PROMPT, OTHER),
            chunk_tables=int32s(0, 8, 11),
            blocks=np.concatenate([first, second[:3]]),
            slots=int32s(*slots),
            **shared,
        ),
    ]


@pytest.mark.parametrize("name", DIVIDED)
def test_the_ranks_together_compute_what_the_whole_model_does(name: str, tmp_path: Path) -> None:
    build(name).save_pretrained(tmp_path / "model")
    folder, model = tmp_path / "model", ModelConfig.from_dir(tmp_path / "model")
    adapters = [random_adapter(model, rank, rank) for rank in (3, 20)]
    expected = hidden_states(whole_runner(folder, adapters), steps((0, 1)))
    bare = hidden_states(whole_runner(folder, adapters), steps((-1, -1)))
    assert not torch.allclose(expected, bare, atol=1e-2)
    sums: Counter[tuple[int, bool]] = Counter()

    def rank(number: int) -> torch.Tensor:
        runner = rank_runner(folder, Shard(number, 2), adapters, tmp_path / "meeting")
        add, adapted = runner.model.collectives.sum, True

        def counted(partial: torch.Tensor) -> None:
            sums[number, adapted] += 1
            add(partial)

        runner.model.collectives.sum = counted
        found = hidden_states(runner, steps((0, 1)))
        adapted = False
        return torch.cat([found, hidden_states(runner, steps((-1, -1)))])

    for found in together(2, rank):
        torch.testing.assert_close(found, torch.cat([expected, bare]), rtol=1e-4, atol=1e-4)
    # Two a layer and step, and not one more for adapters, the embedding or the head.
    assert sums == dict.fromkeys(((n, with_) for n in (0, 1) for with_ in (True, False)), 2 * model.num_layers * 3)


def test_a_rank_that_is_late_is_not_waited_for_longer_than_the_limit(tmp_path: Path) -> None:
    given_up = threading.Event()

    def rank(number: int) -> torch.Tensor:
        collectives = Collectives(tmp_path / "meeting", number, 2, CPU, 20)
        both = torch.ones(3)
        collectives.sum(both)
        if number == 1:
            assert given_up.wait(20)  # the connection stays: nothing but the time tells
            return both
        collectives._group._set_default_timeout(timedelta(seconds=0.2))
        with pytest.raises(RuntimeError, match="Timed out"):
            collectives.sum(torch.ones(3))
        given_up.set()
        return both

    assert [found.tolist() for found in together(2, rank)] == [[2.0] * 3] * 2


def test_a_number_of_ranks_that_cuts_a_head_is_refused_with_those_that_do_not(tmp_path: Path) -> None:
    build("qwen3").save_pretrained(tmp_path)
    model = ModelConfig.from_dir(tmp_path)
    assert possible_ranks(model) == [1, 2]
    check_ranks(model, 2)
    with pytest.raises(ConfigError, match=r"--tensor-parallel 3: .* 6 heads, 2 KV heads .* among 1 or 2 ranks"):
        check_ranks(model, 3)
    assert set(DIVIDED) <= set(FAMILIES)


def test_a_part_of_an_adapter_travels_exactly_and_a_broken_table_is_refused(tmp_path: Path) -> None:
    build("phi3").save_pretrained(tmp_path)
    model = ModelConfig.from_dir(tmp_path)
    pairs = random_adapter(model, 5, 1)
    cargo = Cargo(list(Shard(1, 2).adapter(model, pairs)))
    memory = torch.zeros(cargo.nbytes, dtype=torch.uint8)
    cargo.write(memory)
    part = read_cargo(memory)
    assert part.keys() == pairs.keys()
    half = model.intermediate_size // 2
    b = pairs[0, "gate_up", 0].b  # gate and up are one module of this family
    assert torch.equal(part[0, "gate_up", 0].b, torch.cat([b[half : 2 * half], b[3 * half :]]))
    assert torch.equal(part[0, "gate_up", 0].a, pairs[0, "gate_up", 0].a)
    assert torch.equal(part[1, "down", 0].a, pairs[1, "down", 0].a[:, half:])
    assert torch.equal(part[1, "down", 0].b, pairs[1, "down", 0].b)

    with pytest.raises(ShapeError, match="outside"):
        read_cargo(memory[:-200])
    memory[:8] = 255
    with pytest.raises(ShapeError, match="longer"):
        read_cargo(memory)
    memory[:8] = torch.tensor([4, *[0] * 7], dtype=torch.uint8)
    memory[8:12] = 255
    with pytest.raises(ShapeError, match="cannot be read"):
        read_cargo(memory)


def test_a_step_travels_exactly_and_within_its_place() -> None:
    for work in steps((0, -1)):
        found = decode(encode(Step.of(work)))
        assert isinstance(found, Step)
        for name in Step.__struct_fields__:
            assert np.array_equal(getattr(found.work(), name), getattr(work, name)), name
    most = Most(rows=512, sequences=64, blocks_each=32, blocks=4000)
    big = np.full(64 * 32, 2**31 - 1, np.int32)
    rows = np.full(512, 2**31 - 1, np.int32)
    pairs = np.full((64, 2), 2**31 - 1, np.int32)
    every = np.full(4000, 2**31 - 1, np.int32)
    step = Step(*(part.tobytes() for part in (rows, rows, rows, rows, big, rows, pairs, every)))
    assert len(encode(step)) <= most.command_bytes
    assert len(encode(Zero([2**31] * 4000))) <= most.command_bytes


@pytest.mark.parametrize("kind", ["GPTQ, 4 bits", "compressed-tensors, 8 bits, channels"])
def test_a_part_of_a_checkpoint_in_integers_is_that_of_its_numbers(kind: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2}
    build("llama", **sizes).save_pretrained(tmp_path / "source")
    packed = quantised(tmp_path / "source", tmp_path / "packed", kind)
    for shard in (Shard(0, 2), Shard(1, 2)):
        found, expected = (
            load_part(folder, ModelConfig.from_dir(folder), shard, F32, CPU)
            for folder in (packed, tmp_path / "packed-plain")
        )
        for one, other in zip(found.layers, expected.layers, strict=True):
            for name in ("qkv", "o", "gate_up", "down"):
                torch.testing.assert_close(getattr(one, name), getattr(other, name))
