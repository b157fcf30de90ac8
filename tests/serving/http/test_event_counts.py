"""Each event says how many completion tokens a client has been shown by then: the most that a hang-up may cost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.events import DONE, event_data, event_tokens
from serving.core import Delta, Usage
from serving.http.format import ChatFormat, Style
from tests.serving.http.server import Recorder, serving
from tests.serving.tiny import Tiny

BODY = {"model": "base", "max_tokens": 30, "ignore_eos": True, "temperature": 2, "seed": 3, "stream": True}


@pytest.mark.parametrize("choices", [1, 3])
async def test_the_counts_cover_all_choices_and_end_at_the_usage(tiny: Tiny, choices: int) -> None:
    async with serving(tiny, observer=Recorder()) as server:
        body = BODY | {"prompt": "abc", "n": choices, "return_token_ids": True}
        answer = await server.http.post("/v1/completions", json=body)
    raw = [part + b"\n\n" for part in answer.content.split(b"\n\n") if part]
    assert raw.pop() == DONE
    shown = 0
    for event in raw:
        data: Any = json.loads(event_data(event) or b"")
        shown += sum(len(choice["token_ids"]) for choice in data["choices"])
        assert event_tokens(event) == shown
    assert shown == data["usage"]["completion_tokens"] == 30 * choices


@pytest.mark.parametrize(
    ("delta", "shown"),
    [
        (Delta("a", (5,), (), None, Usage(1, 1, 0)), True),
        (Delta("", (5,), (), None, Usage(1, 1, 0)), False),
        (Delta("", (5,), (), "length", Usage(1, 1, 0)), True),
        (Delta("", (), (), "cancelled", Usage(1, 1, 0)), False),
    ],
    ids=["text", "held back", "the end", "cancelled"],
)
def test_a_delta_shows_its_tokens_or_holds_them_back(delta: Delta, shown: bool) -> None:
    form = ChatFormat("00000000", "m", None, Style())  # type: ignore[arg-type]
    assert form.shows(delta) is shown
