"""The confidence of an answer: the probability of all its tokens, and of nothing that the caller did not ask to see."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.serving.http.server import serving
from tests.serving.tiny import Tiny

ASKED: dict[str, Any] = {"model": "r4", "prompt": "The weather", "max_tokens": 6, "temperature": 0, "seed": 5}


async def test_it_is_the_product_of_the_probabilities_streamed_or_not(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        open_answer = (await server.http.post("/v1/completions", json=ASKED | {"logprobs": 0, "n": 2})).json()
        asked = ASKED | {"confidence": True, "n": 2}
        closed = (await server.http.post("/v1/completions", json=asked)).json()
        streamed = await server.http.post("/v1/completions", json=asked | {"stream": True})
        both = (await server.http.post("/v1/completions", json=asked | {"logprobs": 1})).json()
        plain = (await server.http.post("/v1/completions", json=ASKED)).json()
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    last = {c["index"]: c for event in events for c in event["choices"] if c["finish_reason"]}
    for index, choice in enumerate(closed["choices"]):
        logprobs = open_answer["choices"][index]["logprobs"]["token_logprobs"]
        assert choice["confidence"] == pytest.approx(math.exp(sum(logprobs)), abs=0.0051)
        assert choice["confidence"] == last[index]["confidence"] == both["choices"][index]["confidence"]
        assert choice["logprobs"] is None and both["choices"][index]["logprobs"]["tokens"]
    assert all(c["logprobs"] is None for event in events for c in event["choices"])
    assert [c["text"] for c in closed["choices"]] == [c["text"] for c in open_answer["choices"]]
    assert "confidence" not in plain["choices"][0]
