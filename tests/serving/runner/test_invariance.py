"""A row's answer is the same, bit for bit, whatever it is computed with and however its prompt is cut up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from serving.core import SamplingParams, Sequence, TokenLogprob
from serving.steps import SampledToken
from tests.serving.runner.driver import Driver, make_driver, make_torch_driver, random_adapter
from tests.serving.tiny import write_model

RANKS = (1, 4, 16, 64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return folder


def loaded(driver: Driver) -> Driver:
    for slot, rank in enumerate(RANKS):
        driver.adapters.pool.load(slot, random_adapter(driver.model, rank, slot))
    return driver


F32, BF16, INT8 = torch.float32, torch.bfloat16, torch.int8


# Weights, KV cache, adapters, tokens of a block
@pytest.fixture(
    params=[
        (F32, F32, F32, 16),
        (F32, F32, F32, 5),
        (BF16, BF16, BF16, 16),
        (BF16, BF16, BF16, 5),
        (INT8, BF16, BF16, 32),
        (BF16, BF16, INT8, 16),
        (INT8, INT8, BF16, 16),
        (F32, INT8, F32, 5),
        (BF16, INT8, INT8, 40),
    ],
    ids=str,
)
def driver(request: pytest.FixtureRequest, model: Path) -> Iterator[Driver]:
    weights, cache, resident, block_size = request.param
    yield loaded(make_driver(model, block_size=block_size, dtype=cache, weights=weights, resident=resident))


def prompts(count: int, low: int = 2, high: int = 90, seed: int = 3) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 259) for _ in range(rng.randint(low, high))] for _ in range(count)]


def vector(driver: Driver, prompt: list[int], slot: int | None, chunk: int) -> bytes:
    """The prompt's last hidden state, computed alone."""
    sequence, answers = driver.start(prompt, slot, embed=True), list[SampledToken]()
    while not answers:
        answers = list(driver.step((sequence, min(chunk, len(prompt) - sequence.computed))))
    assert answers[0].embedding is not None
    return answers[0].embedding


def test_chunks_of_any_size_give_the_same_bits(driver: Driver) -> None:
    for prompt, slot in zip(prompts(3, low=60), (None, 1, 3), strict=True):
        assert len({vector(driver, prompt, slot, chunk) for chunk in (1, 7, 16, 40, 1000)}) == 1


def test_neighbours_change_no_bit(driver: Driver) -> None:
    work = list(zip(prompts(9, high=25), (None, 0, 1, 2, 3, None, 3, 0, None), strict=True))
    alone = [vector(driver, prompt, slot, 1000) for prompt, slot in work]
    sequences = [driver.start(prompt, slot, embed=True) for prompt, slot in work]
    decoding = driver.start([5] * 30)
    driver.step((decoding, 30))
    together = driver.step((decoding, 1), *((s, len(s.tokens)) for s in sequences))
    assert [answer.embedding for answer in together[1:]] == alone


def test_prompts_are_scored_by_the_same_bits_however_they_are_cut_up_and_with_whom(driver: Driver) -> None:
    params = SamplingParams(temperature=0, prompt_logprobs=2)
    work = list(zip(prompts(4, low=30), (None, 1, 3, None), strict=True))

    def scores(chunk: int) -> list[list[TokenLogprob]]:
        sequences = [driver.start(prompt, slot, sampling=params) for prompt, slot in work]
        for sequence in sequences:
            while sequence.output_tokens == 0:
                driver.step((sequence, min(chunk, sequence.prompt_tokens - sequence.computed)))
        return [sequence.scored for sequence in sequences]

    alone = scores(1000)
    assert [[entry.token_id for entry in entries] for entries in alone] == [prompt[1:] for prompt, _ in work]
    assert scores(1) == scores(7) == alone
    together = [driver.start(prompt, slot, sampling=params) for prompt, slot in work[:2]]
    plain, embeds = driver.start([5] * 30), driver.start([7] * 9, 0, embed=True)
    answers = driver.step((plain, 30), (together[0], len(work[0][0])), (embeds, 9), (together[1], len(work[1][0])))
    assert [sequence.scored for sequence in together] == alone[:2]
    assert answers[2].embedding == vector(driver, [7] * 9, 0, 9) and not plain.scored


def test_one_thread_and_two_give_the_same_bits(model: Path) -> None:
    one, two = (loaded(make_driver(model, threads=threads)) for threads in (1, 2))
    for prompt, slot in zip(prompts(4), (None, 0, 2, 3), strict=True):
        assert vector(one, prompt, slot, 30) == vector(two, prompt, slot, 30)


def test_stale_block_contents_are_never_used(driver: Driver) -> None:
    work = list(zip(prompts(4), (None, 0, 3, None), strict=True))
    clean = [vector(driver, prompt, slot, 20) for prompt, slot in work]
    driver.runner.kv.data.view(torch.uint8).fill_(255)  # no numbers; of 8 bits the factors
    assert [vector(driver, prompt, slot, 20) for prompt, slot in work] == clean


def test_a_row_that_is_not_finite_fails_alone(driver: Driver) -> None:
    adapter = random_adapter(driver.model, 8, 9)
    broken = {key: type(pair)(pair.a * 1e18, pair.b * 1e18, 1.0) for key, pair in adapter.items()}
    driver.adapters.pool.load(6, broken)
    work = list(zip(prompts(5), (None, 6, 1, 6, 3), strict=True))
    alone = [driver.step((driver.start(prompt, slot), len(prompt)))[0].token_id for prompt, slot in work]
    sequences = [driver.start(prompt, slot) for prompt, slot in work]
    together = [answer.token_id for answer in driver.step(*((s, len(s.tokens)) for s in sequences))]
    assert together == alone
    assert [token is None for token in together] == [False, True, False, True, False]


def test_greedy_tokens_are_those_of_plain_torch(model: Path) -> None:
    for block_size in (5, 16):
        ours = loaded(make_driver(model, block_size=block_size))
        torch_driver = loaded(make_torch_driver(model))
        for prompt, slot in zip(prompts(5, low=40), (None, 0, 1, 2, 3), strict=True):
            expected = torch_driver.generate(torch_driver.start(prompt, slot), 16)
            assert ours.generate(ours.start(prompt, slot), 16, chunk=33) == expected


def test_adapters_in_8_bits_change_what_is_computed_by_their_error_alone(model: Path) -> None:
    whole, short = (make_driver(model, resident=resident) for resident in (None, torch.int8))
    for driver in (whole, short):
        for slot, rank in enumerate(RANKS):  # so small that the layers behind do not make more of an error
            driver.adapters.pool.load(slot, random_adapter(driver.runner.config, rank, slot, scale=0.02))
    for prompt, slot in zip(prompts(6, low=20), (None, 0, 1, 2, 3, 3), strict=True):
        expected, actual, base = (
            torch.frombuffer(bytearray(vector(d, prompt, s, 1000)), dtype=torch.float32)
            for d, s in ((whole, slot), (short, slot), (whole, None))
        )
        effect = (expected - base).norm()
        assert (actual - expected).norm() <= 0.03 * effect, slot
        assert slot is None or not torch.equal(actual, expected)


def test_a_token_or_block_that_does_not_exist_is_refused_before_anything_is_written(model: Path) -> None:
    driver = make_driver(model)
    for spoil in (_bad_token, _bad_block):
        sequence = driver.start([5, 6, 7])
        spoil(sequence)
        with pytest.raises(ValueError, match="does not have"):
            driver.step((sequence, 3))
    assert not driver.runner.kv.data.any()


def _bad_token(sequence: Sequence) -> None:
    sequence.tokens[1] = 259


def _bad_block(sequence: Sequence) -> None:
    sequence.blocks.append(1 << 20)


def test_a_last_layer_without_the_rows_that_nobody_asks_for_gives_the_same_bits(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = list(zip(prompts(5, low=30, high=50), (None, 0, 1, 2, 3), strict=True))

    def together() -> list[bytes | None]:
        sequences = [driver.start(prompt, slot, embed=True) for prompt, slot in work]
        asked = [(s, len(s.tokens) - (s is sequences[1])) for s in sequences]  # one prompt's last row comes later
        return [answer.embedding for answer in driver.step(*asked)]

    trimmed = together()
    monkeypatch.setattr("serving.runner.cpu._TRIMS_FROM", 10**9)
    assert together() == trimmed
    assert len(trimmed) == 4
