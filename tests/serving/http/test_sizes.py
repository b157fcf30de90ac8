"""An answer that could not be sent is refused before anything is computed; the bound is never below the real size."""

from __future__ import annotations

from typing import Any

import pytest

from serving.http import sizes
from serving.http.admission import Admission, IncomingRequest, InsecureAuthorizer
from tests.serving.http.server import Recorder, serving
from tests.serving.tiny import Tiny

IDS = [3 + byte for byte in "naïve 😀\x00\u2028 ".encode()] * 8
COMPLETION = {"model": "base", "max_tokens": 24, "ignore_eos": True, "seed": 1, "temperature": 2}
CHAT = COMPLETION | {"messages": [{"role": "user", "content": "hello"}]}
ANSWERS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", COMPLETION | {"prompt": IDS}),
    ("/v1/completions", COMPLETION | {"prompt": IDS, "echo": True, "logprobs": 20, "return_token_ids": True}),
    ("/v1/completions", COMPLETION | {"prompt": [IDS, "a\u0001b" * 9], "n": 3, "echo": True, "logprobs": 2}),
    ("/v1/chat/completions", CHAT | {"n": 2}),
    ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 20, "return_token_ids": True}),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_whose_answer_would_not_fit_is_refused_before_work(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    recorder = Recorder()
    limit = "MAX_EVENT_BYTES" if stream else "MAX_ANSWER_BYTES"
    async with serving(tiny, observer=recorder) as server:
        for path, body in ANSWERS:
            answer = await server.http.post(path, json=body | {"stream": stream})
            assert answer.status_code == 200, answer.text
            largest = max(map(len, answer.content.split(b"\n\n"))) if stream else len(answer.content)
            before = server.engine.stats.prompt_tokens
            recorder.finished.clear()
            with monkeypatch.context() as narrow:
                narrow.setattr(sizes, limit, largest - 1)
                refused = await server.http.post(path, json=body | {"stream": stream})
            assert (refused.status_code, refused.json()["error"]["code"]) == (422, "answer_too_large"), path
            assert "at most" in refused.json()["error"]["message"]
            assert [(usage.total_tokens, reason) for _, usage, reason in recorder.finished] == [(0, "error")]
            assert server.engine.stats.prompt_tokens == before


async def test_a_stream_is_not_refused_for_its_length_nor_a_whole_answer_for_its_echo(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = COMPLETION | {"prompt": IDS * 3, "echo": True, "logprobs": 20}
    async with serving(tiny) as server:
        monkeypatch.setattr(sizes, "MAX_EVENT_BYTES", 128 << 10)
        refused = await server.http.post("/v1/completions", json=scored | {"stream": True})
        assert refused.status_code == 422 and "no stream" in refused.json()["error"]["message"]
        assert (await server.http.post("/v1/completions", json=scored)).status_code == 200
        long = {"model": "base", "prompt": "a", "max_tokens": 400, "stream": True, "logprobs": 5}
        assert (await server.http.post("/v1/completions", json=long)).status_code == 200


class ScoringAuthorizer(InsecureAuthorizer):
    """Grants a prompt and not one new token."""

    async def authorize(self, request: IncomingRequest) -> Admission:
        admission = await super().authorize(request)
        return Admission(admission.request_id, admission.tenant, admission.cache_scope, admission.adapter, None, 99, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_is_scored_under_a_grant_of_no_new_tokens(tiny: Tiny, stream: bool) -> None:
    recorder = Recorder()
    scored = {"model": "base", "prompt": [5, 6, 7], "echo": True, "logprobs": 1, "max_tokens": 0, "stream": stream}
    async with serving(tiny, observer=recorder, authorizer=ScoringAuthorizer) as server:
        answer = await server.http.post("/v1/completions", json=scored)
        assert answer.status_code == 200 and "token_logprobs" in answer.text
        more = await server.http.post("/v1/completions", json=scored | {"max_tokens": 1})
        assert more.status_code == 400
    (_, usage, reason), refused = recorder.finished
    assert (usage.prompt_tokens, usage.completion_tokens, reason) == (3, 0, "length") and refused[2] == "error"
