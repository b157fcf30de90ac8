"""Packed rows must give the same logits and gradients as the rows run one by one."""

from __future__ import annotations

import importlib

import pytest

torch = importlib.import_module("torch")

from examples.packing import Encoded, pack, shared_length  # noqa: E402

PREFIX = (5, 6, 7, 8, 9)
ROWS = [
    Encoded((*PREFIX, 20, 21), (30, 31, 2)),
    Encoded((*PREFIX, 22, 23, 24, 25), (32, 2)),
    Encoded((*PREFIX, 26), (33, 34, 35, 2)),
]


def test_the_shared_prefix_leaves_every_prompt_a_token_of_its_own() -> None:
    assert shared_length([row.prompt for row in ROWS]) == len(PREFIX)
    assert shared_length([(1, 2, 3), (1, 2, 3)]) == 2
    assert shared_length([(1, 2), (3, 4)]) == 0


def test_an_empty_pack_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        pack([])


def test_a_row_sees_the_prefix_and_itself_and_never_another_row() -> None:
    packed = pack(ROWS)
    own = [len(row.prompt) + len(row.answer) - 1 - len(PREFIX) for row in ROWS]
    assert packed.ids.shape == (1, len(PREFIX) + sum(own))
    second = range(len(PREFIX) + own[0], len(PREFIX) + own[0] + own[1])
    for place in second:
        seen = packed.mask[0, 0, place].nonzero().flatten().tolist()
        assert seen == [*range(len(PREFIX)), *range(second.start, place + 1)]
    assert packed.positions[0, second.start].item() == len(PREFIX)


def test_packed_logits_and_gradients_equal_those_of_separate_sequences() -> None:
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    config._attn_implementation = "sdpa"
    model = transformers.LlamaForCausalLM(config)

    packed = pack(ROWS)
    hidden = model.model(input_ids=packed.ids, attention_mask=packed.mask, position_ids=packed.positions)[0]
    together = model.lm_head(hidden[0, packed.at])
    torch.nn.functional.cross_entropy(together, packed.targets, reduction="sum").backward()
    gradients = [p.grad.clone() for p in model.parameters()]

    model.zero_grad()
    alone = []
    for row in ROWS:
        logits = model(input_ids=torch.tensor([[*row.prompt, *row.answer[:-1]]])).logits[0]
        logits = logits[len(row.prompt) - 1 :]
        torch.nn.functional.cross_entropy(logits, torch.tensor(row.answer), reduction="sum").backward()
        alone.append(logits)

    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-4)
    assert packed.targets.tolist() == [token for row in ROWS for token in row.answer]
    for packed_gradient, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(packed_gradient, parameter.grad, atol=1e-5, rtol=1e-3)
