"""Each instruction set gives the tokens of plain torch, with 8-bit caches nearly its vectors; odd shapes too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from serving.kernels.library import INSTRUCTION_SETS, load_library
from tests.serving.runner.driver import Driver, make_driver, make_torch_driver

# heads, kv heads, head size, hidden size, intermediate size: groups of 1, 3, 4 and 30; sizes that fill no vector; gates
# of part of a panel, of an odd number of panels, of more than one part
SHAPES = ((2, 2, 10, 38, 70), (9, 3, 64, 54, 48), (8, 2, 18, 40, 144), (30, 1, 4, 60, 160))


def embedding(driver: Driver, prompt: list[int]) -> torch.Tensor:
    """The prompt's last hidden state."""
    (answer,) = driver.step((driver.start(prompt, embed=True), len(prompt)))
    assert answer.embedding is not None
    return torch.frombuffer(bytearray(answer.embedding), dtype=torch.float32)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_greedy_tokens_are_those_of_plain_torch(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    heads, kv_heads, dim, hidden, intermediate = shape
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=261,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=dim,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    library = load_library()
    assert library is not None, "these tests need a C compiler"
    before = library.instruction_set
    try:
        if not library.use(name):
            pytest.skip(f"this processor has no {name}")
        ours = make_driver(tmp_path, block_size=48, max_rows=300)
        in_8_bits = make_driver(
            tmp_path, block_size=20, max_rows=300, dtype=torch.int8, weights=torch.float32, resident=torch.float32
        )
        expected = make_torch_driver(tmp_path)
        for prompt in ([7], [*range(100, 250), *range(120, 250)]):
            tokens = expected.generate(expected.start(prompt), 12)
            for chunk in (13, 1000):
                assert ours.generate(ours.start(prompt), 12, chunk) == tokens
            vectors = [embedding(driver, prompt) for driver in (ours, in_8_bits)]
            assert 0 < (vectors[1] - vectors[0]).norm() <= 0.05 * vectors[0].norm()
    finally:
        library.use(before)
