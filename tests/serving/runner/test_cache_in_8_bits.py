"""KV in 8 bits: what is stored, what attention makes of it, and who gets it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from serving.config import ServingConfig
from serving.errors import ConfigError
from serving.runner import Precision, bytes_per_block, choose_precision
from tests.serving.harness import running
from tests.serving.runner.driver import CPU, Driver, make_driver
from tests.serving.tiny import Tiny

PROMPT = [(7 * i) % 250 + 3 for i in range(77)]
F32, BF16, INT8 = torch.float32, torch.bfloat16, torch.int8


def drivers(model: Path, block_size: int) -> tuple[Driver, Driver]:
    """With a cache in 8 bits and in float32; both give the same blocks to the same tokens."""
    of_types = (
        make_driver(model, dtype=dtype, weights=F32, resident=F32, block_size=block_size) for dtype in (INT8, F32)
    )
    return next(of_types), next(of_types)


def as_floats(cache: torch.Tensor, dim: int, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache in 8 bits [blocks, layers, heads, elements] as float32 has it, and the factor of each element."""
    lanes, padded, pairs = -(-block_size // 16) * 16, -(-dim // 16) * 16, -(-block_size // 2)
    keys, values, factors = cache.split([dim * lanes, 2 * pairs * padded, 8 * lanes], -1)
    keys = keys.unflatten(-1, (dim // 2, lanes, 2)).transpose(-1, -2).flatten(-3, -2)
    values = values.unflatten(-1, (pairs, padded, 2)).transpose(-1, -2).flatten(-3, -2)
    of_keys, of_values = factors.contiguous().view(F32).split(lanes, -1)
    of_values = torch.nn.functional.pad(of_values, (0, 1))[..., : 2 * pairs]
    out = [
        torch.cat((k.flatten(-2), v.flatten(-2)), -1)
        for k, v in (
            (keys * of_keys.unsqueeze(-2), values * of_values.unsqueeze(-1)),
            (of_keys.unsqueeze(-2).expand(keys.shape), of_values.unsqueeze(-1).expand(values.shape)),
        )
    ]
    return out[0], out[1]


@pytest.mark.parametrize("block_size", [16, 5, 40])
def test_each_key_and_value_is_stored_as_the_nearest_of_127_steps_of_its_own(tiny: Tiny, block_size: int) -> None:
    short, whole = drivers(tiny.model, block_size)
    for driver in (short, whole):
        driver.step((driver.start(PROMPT), len(PROMPT)))
    found, factors = as_floats(short.runner.kv.data, short.runner.config.head_dim, block_size)
    expected = whole.runner.kv.data
    # Behind the first layer attention has read 8 bits.
    written = expected[:, 0] != 0
    assert written.sum() == 2 * len(PROMPT) * short.runner.config.num_kv_heads * short.runner.config.head_dim
    assert ((found - expected)[:, 0][written].abs() <= 0.501 * factors[:, 0][written]).all()
    assert (short.runner.kv.data == 127).any() and (short.runner.kv.data == -127).any()


@pytest.mark.parametrize("block_size", [16, 5, 40])
def test_attention_reads_what_is_stored(tiny: Tiny, block_size: int) -> None:
    short, whole = drivers(tiny.model, block_size)
    sequences = [driver.start([*PROMPT, 9], embed=True) for driver in (short, whole)]
    for driver, sequence in zip((short, whole), sequences, strict=True):
        driver.step((sequence, len(PROMPT)))
    whole.runner.kv.data.copy_(as_floats(short.runner.kv.data, short.runner.config.head_dim, block_size)[0])
    states = []
    for driver, sequence in zip((short, whole), sequences, strict=True):
        (answer,) = driver.step((sequence, 1))
        assert answer.embedding is not None
        states.append(torch.frombuffer(bytearray(answer.embedding), dtype=F32))
    # One key of 78, the last token's own, is rounded in one of them.
    assert 0 < (states[0] - states[1]).norm() < 0.002 * states[1].norm()


async def test_an_engine_with_8_bits_everywhere_answers_the_same_alone_and_in_company(tiny: Tiny) -> None:
    names = [None, "r4", "r8-attention", "r16-rslora"]
    async with running(tiny, dtype="int8", adapter_dtype="int8") as run:
        assert run.engine.runner.kv.data.dtype == INT8
        alone = [await run.tokens(range(9), name) for name in names]
        assert [await run.tokens(range(9), name) for name in reversed(names)] == alone[::-1]


def test_each_part_has_the_precision_that_was_chosen(tiny: Tiny) -> None:
    assert choose_precision("int8", CPU) == Precision(INT8, INT8, BF16)
    assert choose_precision("int8", CPU, "bfloat16", "int8") == Precision(INT8, BF16, INT8)
    assert choose_precision("float32", CPU) == Precision(F32, F32, F32)
    assert choose_precision("float32", CPU, "int8") == Precision(F32, INT8, F32)
    assert choose_precision("bfloat16", CPU, "int8") == Precision(BF16, INT8, BF16)


def test_8_bits_take_little_more_than_half_the_memory(tiny: Tiny) -> None:
    config = make_driver(tiny.model).runner.config
    half, whole = (bytes_per_block(config, 16, Precision(BF16, kv, BF16), CPU) for kv in (INT8, BF16))
    factors = 2 * 16 * 4 * config.num_layers * config.num_kv_heads
    assert half == whole / 2 + factors


def test_types_that_are_not_served_are_refused_by_name(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match="--kv-dtype fp4"):
        ServingConfig(model=tiny.model, kv_dtype="fp4")
    with pytest.raises(
        ConfigError, match="--kv-dtype int8: only the C kernels on a CPU have it; the 8 bits of a GPU are"
    ):
        choose_precision("bfloat16", torch.device("cuda"), "int8")
    with pytest.raises(ConfigError, match="--kv-dtype fp8: only a GPU has it; the 8 bits of a CPU are int8"):
        choose_precision("bfloat16", CPU, ServingConfig(model=tiny.model, kv_dtype="fp8").kv_dtype)


def test_a_gpu_that_converts_8_bit_floats_may_have_them_in_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    for capability, served in (((8, 9), True), ((9, 0), True), ((8, 6), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        if served:
            assert choose_precision("bfloat16", cuda, "fp8") == Precision(BF16, torch.float8_e4m3fn, BF16)
        else:
            with pytest.raises(ConfigError, match="--kv-dtype fp8: this GPU"):
                choose_precision("bfloat16", cuda, "fp8")
