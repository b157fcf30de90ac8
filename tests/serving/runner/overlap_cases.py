"""Sampling where steps overlap: the engine over a GPU runner gives the tokens of steps one by one, and of plain torch.
A program: on CUDA with captured graphs, or under the interpreter with recorded ones."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from serving.core import SamplingParams
from tests.serving.runner.overlapping import Asked, expected, make_runner, run

# One entry for each way in which a setting decides on tokens.
SETTINGS: dict[str, SamplingParams] = {
    "plain": SamplingParams(temperature=0, ignore_eos=True),
    "temperature": SamplingParams(temperature=3.0, seed=1),
    "default": SamplingParams(seed=2),
    "bias": SamplingParams(temperature=0, logit_bias=((7, 2.0), (11, -100.0), (40, 3.0))),
    "logprobs": SamplingParams(temperature=0, logprobs=3),
    "nucleus": SamplingParams(top_p=0.7, seed=3),
    "top-k": SamplingParams(temperature=2.0, top_k=5, seed=4),
    "min-p": SamplingParams(temperature=2.0, min_p=0.1, seed=5),
    "repetition": SamplingParams(temperature=0, repetition_penalty=1.7),
    "frequency": SamplingParams(temperature=0, frequency_penalty=1.5),
    "presence": SamplingParams(temperature=1.5, presence_penalty=1.5, seed=6),
}


def each_setting_alone_gives_the_reference_s_tokens(folder: Path) -> None:
    runner = make_runner(folder)
    for name, sampling in SETTINGS.items():
        asked = [Asked(name, range(3, 9), sampling, 7)]
        for depth in (0, 1):
            assert run(runner, asked, depth) == expected(runner, asked), (name, depth)


def all_settings_share_their_steps(folder: Path) -> None:
    runner = make_runner(folder)
    asked = [
        Asked(f"{name} {turn}", range(5 + 9 * place, 5 + 9 * place + place % 5 + 1), sampling, 3 + (place + turn) % 6)
        for turn in range(2)
        for place, (name, sampling) in enumerate(SETTINGS.items())
    ]
    found = [run(runner, asked, depth) for depth in (0, 1)]
    assert found[0] == found[1] == expected(runner, asked)


CASES = (each_setting_alone_gives_the_reference_s_tokens, all_settings_share_their_steps)

if __name__ == "__main__":
    from tests.serving.tiny import write_model

    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        write_model(Path(folder))
        for case in CASES:
            case(Path(folder))
            print(f"ok {case.__name__}", flush=True)
    sys.exit(0)
