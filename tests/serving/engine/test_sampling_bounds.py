"""Sampling at its bounds: ties at a floor, mass that another cut took away, counts, and numbers behind a draft."""

from __future__ import annotations

import pytest
import torch

from serving.core import SamplingParams
from serving.sampling import sample
from serving.sampling.draw import LEAST_TEMPERATURE, draw
from serving.sampling.logprobs import MAX_LOGPROBS
from serving.sampling.verify import verify
from tests.serving.engine.test_sampling import sequence

# Exact in float32, so that a tie is one.
HALF, QUARTER, EIGHTH = 0.5, 0.25, 0.125
POINTS = [number / 64 for number in range(64)]


def drawn(probs: list[float], **settings: float) -> set[int]:
    """Return the tokens that any number draws."""
    logits = torch.tensor(probs).log().repeat(len(POINTS), 1)
    return set(draw(logits, [SamplingParams(**settings)] * len(POINTS), POINTS))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("min_p", "kept"),
    [
        (0.49, {0, 1}),
        (0.5, {0, 1}),
        (0.51, {0}),
        (0.24, {0, 1, 2, 3}),
        (0.25, {0, 1, 2, 3}),
        (0.26, {0, 1}),
        (1.0, {0}),
    ],
)
def test_a_token_exactly_at_the_floor_of_min_p_is_kept(min_p: float, kept: set[int]) -> None:
    assert drawn([HALF, QUARTER, EIGHTH, EIGHTH], min_p=min_p) == kept


def test_every_token_of_a_flat_row_is_at_the_floor_of_min_p_one() -> None:
    assert drawn([QUARTER] * 4, min_p=1.0) == {0, 1, 2, 3}
    assert len(drawn([1 / 1024] * 1024, min_p=1.0)) == len(POINTS), "also beyond the first guess"


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, {0}), (0.51, {0, 1}), (0.75, {0, 1}), (0.76, {0, 1, 2})])
def test_a_set_that_reaches_top_p_exactly_is_enough(top_p: float, kept: set[int]) -> None:
    assert drawn([HALF, QUARTER, EIGHTH, EIGHTH], top_p=top_p) == kept


@pytest.mark.parametrize(("top_p", "kept"), [(0.66, {0}), (0.67, {0, 1}), (0.99, {0, 1})])
def test_top_p_is_a_share_of_the_mass_that_top_k_leaves(top_p: float, kept: set[int]) -> None:
    assert drawn([HALF, QUARTER, EIGHTH, EIGHTH], top_k=2, top_p=top_p) == kept


@pytest.mark.parametrize(
    ("top_k", "kept"), [(1, {0}), (2, {0, 1}), (3, {0, 1, 2}), (4, {0, 1, 2, 3}), (9, {0, 1, 2, 3})]
)
def test_of_equal_tokens_top_k_keeps_those_of_the_smallest_ids(top_k: int, kept: set[int]) -> None:
    assert drawn([QUARTER] * 4, top_k=top_k) == kept


def test_temperatures_below_the_least_draw_what_the_least_draws() -> None:
    logits = torch.tensor([[0.0, LEAST_TEMPERATURE / 2, -1.0]]).repeat(len(POINTS), 1)

    def tokens(temperature: float) -> list[int]:
        return draw(logits.clone(), [SamplingParams(temperature=temperature)] * len(POINTS), POINTS)

    assert LEAST_TEMPERATURE == 1e-4
    assert tokens(1e-9) == tokens(LEAST_TEMPERATURE) != tokens(10 * LEAST_TEMPERATURE)


def test_tokens_of_the_prompt_count_for_the_repetition_penalty_alone() -> None:
    one = sequence(prompt=(0, 0), output=(1,), temperature=0, repetition_penalty=2.0, frequency_penalty=0.5)
    logits = torch.tensor([[4.0, 4.0, 4.0]])
    sample(logits, [one])
    assert logits[0].tolist() == [2.0, 1.5, 4.0]
    two = sequence(prompt=(0, 0), output=(1,), temperature=0, repetition_penalty=2.0, presence_penalty=0.5)
    logits = torch.tensor([[4.0, 4.0, 4.0]])
    sample(logits, [two])
    assert logits[0].tolist() == [2.0, 1.5, 4.0]


@pytest.mark.parametrize("asked", [0, 1, MAX_LOGPROBS])
def test_as_many_alternatives_as_were_asked_for_are_told_and_twenty_at_most(asked: int) -> None:
    row = torch.arange(40, dtype=torch.float32)[None] / 10
    entry = sample(row, [sequence(temperature=0, logprobs=asked)])[0].logprob
    assert MAX_LOGPROBS == 20
    assert entry is not None and [token for token, _ in entry.top] == list(range(39, 39 - asked, -1))


def test_a_row_behind_a_draft_is_drawn_with_the_number_of_its_own_place() -> None:
    flat = torch.zeros(1, 1000)
    one = sequence(seed=5)
    plain: list[int] = []
    for _ in range(3):
        (token,) = sample(flat.clone(), [one])
        assert token.token_id is not None
        plain.append(token.token_id)
        one.tokens.append(token.token_id)
    assert len(set(plain)) == 3
    drafted = sequence(seed=5)
    (answer,) = verify([0, 0, 0], flat.repeat(3, 1), [drafted], [(plain[0], plain[1])], [0])
    assert [*(token.token_id for token in answer.before), answer.token_id] == plain
