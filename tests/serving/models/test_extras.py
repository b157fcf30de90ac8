"""Adapters that change more than ΔW of linears answer as PEFT does, alone and beside others in one batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from serving.core import SamplingParams
from serving.runner.cpu import CpuRunner
from tests.serving.models.extras import CASES, load, save, source_of
from tests.serving.models.families import greedy, prompts
from tests.serving.runner.driver import Driver, make_driver, make_torch_driver

TOKENS = 5


def continued(driver: Driver, cases: list[tuple[int | None, list[int]]]) -> list[tuple[list[int], torch.Tensor]]:
    """Continue prompts in steps that they share; returns tokens, and logits where the runner tells."""
    sequences = [driver.start(prompt, slot) for slot, prompt in cases]
    logits: list[list[torch.Tensor]] = [[] for _ in cases]
    for _ in range(TOKENS):
        driver.step(*[(sequence, len(sequence.tokens) - sequence.computed) for sequence in sequences])
        if isinstance(driver.runner, CpuRunner):
            for rows, row in zip(logits, driver.runner.logits, strict=True):
                rows.append(row.clone())
    return [
        (sequence.tokens[-TOKENS:], torch.stack(rows) if rows else torch.empty(0))
        for sequence, rows in zip(sequences, logits, strict=True)
    ]


@pytest.mark.parametrize("name", CASES)
def test_tokens_and_logits_are_peft_s(name: str, tmp_path: Path) -> None:
    pefts = save(name, tmp_path)
    source, names = source_of(tmp_path), list(pefts)
    some = [
        [token if index % 3 else (7, 3, 44)[index // 3 % 3] for index, token in enumerate(p)] for p in prompts(9, 20)
    ]
    cases: list[tuple[int | None, list[int]]] = [(None, some[0])]
    cases += [(slot, some[slot % 2]) for slot in range(len(names))]
    expected = [
        greedy(pefts[names[slot or 0]], None if slot is None else "default", prompt, TOKENS) for slot, prompt in cases
    ]
    alone: list[list[int]] = []
    for make in (make_driver, make_torch_driver):
        driver = make(tmp_path / "model")
        for slot, adapter in enumerate(names):
            load(driver.adapters.pool, driver.runner, slot, source, adapter)
        found = continued(driver, cases)
        for (tokens, logits), (right, exact), (slot, prompt) in zip(found, expected, cases, strict=True):
            adapter = "base" if slot is None else names[slot]
            if len(logits):
                torch.testing.assert_close(logits, exact, rtol=3e-5, atol=3e-5, msg=lambda m, a=adapter: f"{a}: {m}")
                single = continued(driver, [(slot, prompt)])[0]
                assert torch.equal(single[1], logits), f"{adapter}: other bits beside others than alone"
                alone.append(single[0])
            assert tokens == right, adapter
    assert len({tuple(tokens) for tokens in alone}) > 1


def test_scored_prompts_go_through_an_adapted_head(tmp_path: Path) -> None:
    peft = save("qwen2", tmp_path, "head")["head"]
    prompt = prompts(12)[0]
    with torch.inference_mode():
        right = torch.log_softmax(peft(torch.tensor([prompt])).logits[0], -1)
    for make in (make_driver, make_torch_driver):
        driver = make(tmp_path / "model")
        load(driver.adapters.pool, driver.runner, 0, source_of(tmp_path), "head")
        sampling = SamplingParams(temperature=0, ignore_eos=True, prompt_logprobs=0)
        sequence = driver.start(prompt, 0, sampling=sampling)
        driver.generate(sequence, 1)
        found = torch.tensor([entry.logprob for entry in sequence.scored])
        torch.testing.assert_close(found, right[range(11), prompt[1:]], rtol=1e-4, atol=1e-4)
