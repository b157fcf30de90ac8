"""Sampling where steps overlap: the engine over a GPU runner gives the tokens of steps one by one, and of plain torch.
A program: on CUDA with captured graphs, or under the interpreter with recorded ones."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import fields
from pathlib import Path

import torch

from serving.core import SamplingParams
from tests.serving.runner.overlapping import NOT_FINITE, Asked, Chain, Only, beams, expected, make_runner, run

# One entry or more for each way in which a setting decides on tokens.
SETTINGS: dict[str, SamplingParams] = {
    "plain": SamplingParams(temperature=0, ignore_eos=True),
    "default": SamplingParams(seed=2),
    "temperature": SamplingParams(temperature=3.0, seed=1),
    "bias": SamplingParams(temperature=0, logit_bias=((7, 2.0), (11, -100.0), (40, 3.0))),
    "logprobs": SamplingParams(temperature=0, logprobs=3),
    "scored": SamplingParams(temperature=0, prompt_logprobs=2),
    "stop": SamplingParams(temperature=0, stop=("7",)),
    "repetition": SamplingParams(temperature=0, repetition_penalty=1.7),
    "frequency": SamplingParams(temperature=0, frequency_penalty=1.5),
    "presence": SamplingParams(temperature=1.5, presence_penalty=1.5, seed=6),
    "grammar": SamplingParams(temperature=0, constraint=Chain(259)),
    "drawn grammar": SamplingParams(temperature=2.0, constraint=Chain(259), logprobs=1, seed=9),
    "not finite": SamplingParams(temperature=0, logit_bias=((NOT_FINITE, 100.0),)),
    "nucleus": SamplingParams(top_p=0.7, seed=3),
    "top-k": SamplingParams(temperature=2.0, top_k=5, frequency_penalty=0.5, seed=4),
    "min-p": SamplingParams(temperature=2.0, min_p=0.1, seed=5),
}


def every_field_of_the_parameters_is_in_a_case(folder: Path) -> None:
    for field in fields(SamplingParams):
        if field.name == "beam":  # in a case of its own
            continue
        assert any(getattr(one, field.name) != field.default for one in SETTINGS.values()), field.name


def each_setting_alone_overlaps_and_gives_the_reference_s_tokens(folder: Path) -> None:
    runner = make_runner(folder)
    for name, sampling in SETTINGS.items():
        asked = [Asked(name, range(3, 9), sampling, 3)]
        found = run(runner, asked, 1)
        found.check(expected(runner, asked))
        assert found.ahead == {name}, "the second token's step was launched before the first was known"


def all_settings_share_their_steps(folder: Path) -> None:
    runner, asked = make_runner(folder), _mixed(1)
    reference = expected(runner, asked)
    for depth in (0, 1):
        found = run(runner, asked, depth)
        found.check(reference)
        assert bool(found.ahead) == bool(depth)


def a_preempted_request_gives_the_tokens_that_it_would_have_given(folder: Path) -> None:
    """Too few blocks for all: sequences lose theirs with a token in flight, and are computed again."""
    runner = make_runner(folder)
    names = ("temperature", "presence", "drawn grammar", "top-k", "repetition", "plain")
    asked = [Asked(name, range(3 + at, 9 + at), SETTINGS[name], 12) for at, name in enumerate(names)]
    reference = expected(runner, asked)
    for depth in (0, 1):
        found = run(runner, asked, depth, blocks=14)
        found.check(reference)
        assert found.preemptions > 0 and bool(found.ahead) == bool(depth)


def drafts_change_no_token_and_penalties_and_grammars_get_none(folder: Path) -> None:
    """A step that verifies drafts is not overlapped; those in which none are likely are."""
    runner = make_runner(folder)
    asked = [Asked(name, range(3 + at, 9 + at), sampling, 9) for at, (name, sampling) in enumerate(SETTINGS.items())]
    reference = expected(runner, asked)
    found = run(runner, asked, 1, foreseen=reference)
    found.check(reference)
    in_turn = {name for name, s in SETTINGS.items() if s.penalises or s.constraint is not None}
    lasting = {name for name, answer in reference.items() if len(answer.tokens) > 4}
    assert found.drafted == lasting - in_turn, (found.drafted, lasting - in_turn)
    assert len(found.drafted) > 5 and found.ahead & in_turn


def beam_searches_give_the_reference_s_answers_beside_others_and_after_a_new_beginning(folder: Path) -> None:
    runner = make_runner(folder)
    beside = [
        Asked("search", range(5, 12), beams(3, search={"early_stopping": "never"}, logprobs=1), 5),
        Asked("drawn grammar", range(5, 9), SETTINGS["drawn grammar"], 6),
    ]
    short = [
        Asked("free", range(3, 9), beams(2, ignore_eos=True), 14),
        Asked("bound", range(4, 11), beams(2, constraint=Chain(259), ignore_eos=True), 14),
    ]
    for asked, blocks in ((beside, 60), (short, 11)):
        found = run(runner, asked, 1, blocks)
        found.check(expected(runner, asked))
        assert found.ahead <= {"drawn grammar"}, "a step of a search needs the candidates of the last"
        assert bool(found.preemptions) == (blocks == 11)


def a_beam_that_is_not_finite_ends_its_search(folder: Path) -> None:
    runner = make_runner(folder)
    asked = [Asked("search", range(3, 9), beams(2, constraint=Only(NOT_FINITE)), 5)]
    found = run(runner, asked, 1)
    assert found.answers["search"].reason == "NonFiniteOutput" and not found.answers["search"].tokens


def _mixed(turn: int) -> list[Asked]:
    """Return a request for each setting; their lengths differ, so that they change places while they run."""
    return [
        Asked(
            f"{name} {turn}", range(5 + 9 * place, 6 + 9 * place + (place + turn) % 5), sampling, 2 + (place + turn) % 5
        )
        for place, (name, sampling) in enumerate(SETTINGS.items())
    ]


CASES = (
    every_field_of_the_parameters_is_in_a_case,
    each_setting_alone_overlaps_and_gives_the_reference_s_tokens,
    all_settings_share_their_steps,
    a_preempted_request_gives_the_tokens_that_it_would_have_given,
    drafts_change_no_token_and_penalties_and_grammars_get_none,
    beam_searches_give_the_reference_s_answers_beside_others_and_after_a_new_beginning,
    a_beam_that_is_not_finite_ends_its_search,
)

if __name__ == "__main__":
    from tests.serving.tiny import write_model

    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        write_model(Path(folder))
        for case in CASES:
            case(Path(folder))
            print(f"ok {case.__name__}", flush=True)
    sys.exit(0)
