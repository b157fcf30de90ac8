"""Beam search in a real engine: the answers of transformers, alone and among others, and an end that frees all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from serving.core import BeamParams, Delta, SamplingParams
from serving.errors import AdapterRevoked, BeamsTooWide, EngineError
from tests.serving.harness import Running, running
from tests.serving.tiny import Tiny

PROMPT = [40, 80, 120, 33, 99, 201, 77]
END = 5  # the token that tiny's tokenizer ends with is never likely: another stands in for it


def beams(width: int, returned: int, **settings: Any) -> SamplingParams:
    search = {name: settings.pop(name) for name in ("length_penalty", "early_stopping") if name in settings}
    return SamplingParams(temperature=0, beam=BeamParams(width, returned, **search), **settings)


def answers(deltas: list[Delta]) -> list[list[int]]:
    return [list(delta.token_ids) for delta in (deltas[-1], *deltas[-1].others)]


async def test_answers_are_those_of_transformers(tiny: Tiny) -> None:
    async with running(tiny) as engine:
        ends = sorted(engine.engine._active.eos_token_ids)
        for search in ({}, {"length_penalty": -1.0}, {"early_stopping": True}, {"early_stopping": "never"}):
            for prompt in (PROMPT, PROMPT * 5):
                for ignore in (True, False):
                    sampling = beams(4, 3, ignore_eos=ignore, **search)
                    deltas = await engine.run(engine.request(prompt, "r4", tokens=20, sampling=sampling))
                    known = tiny.reference_beams(
                        "r4", prompt, 20, returned=3, ends=[] if ignore else ends, num_beams=4, **search
                    )
                    print(search, ends, ignore, answers(deltas), known)
                    assert answers(deltas) == known
        await engine.settled()
