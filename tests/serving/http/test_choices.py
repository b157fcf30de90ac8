"""Several completions of one request: prompts, choices, their seeds, indexes, usage, and their common end."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

import pytest

from serving.core import LatencyClass
from serving.tokenization.tokenizer import Tokenizer
from tests.serving.http.server import BudgetAuthorizer, LimitedAuthorizer, Recorder, serving
from tests.serving.tiny import Tiny

HELLO = [{"role": "user", "content": "hello there"}]


async def test_every_prompt_has_its_n_choices_in_order(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        prompts = [[70, 71, 72], [80, 81], [90]]
        answer = await server.openai.completions.create(
            model="r4",
            prompt=prompts,
            n=2,
            max_tokens=6,
            temperature=0,
            extra_body={"ignore_eos": True, "return_token_ids": True, "best_of": 2},
        )
    assert [choice.index for choice in answer.choices] == list(range(6))
    for choice in answer.choices:
        assert choice.model_extra["token_ids"] == tiny.reference("r4", prompts[choice.index // 2], 6)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 6, "a prompt counts once"
    assert answer.usage.completion_tokens == 36


async def test_choices_have_seeds_of_their_own_that_follow_from_the_requests(tiny: Tiny) -> None:
    async with serving(tiny) as server:

        async def texts(**settings: Any) -> list[str]:
            answer = await server.openai.completions.create(
                model="base", prompt="abc", max_tokens=16, extra_body={"ignore_eos": True}, **settings
            )
            return [choice.text for choice in answer.choices]

        first, again = await texts(n=4, seed=5), await texts(n=4, seed=5)
        alone = await texts(seed=5)
        unseeded = await texts(n=4)
    assert first == again and len(set(first)) == 4 and alone == first[:1]
    assert len(set(unseeded)) == 4


async def test_a_stream_says_which_choice_each_piece_belongs_to(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        settings: dict[str, Any] = {
            "model": "base",
            "messages": HELLO,
            "n": 3,
            "seed": 3,
            "max_tokens": 12,
            "extra_body": {"ignore_eos": True},
        }
        whole = await server.openai.chat.completions.create(**settings)
        stream = await server.openai.chat.completions.create(
            **settings, stream=True, stream_options={"include_usage": True}
        )
        texts: defaultdict[int, str] = defaultdict(str)
        roles, reasons, usage = [], {}, None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                roles += [choice.index] if choice.delta.role else []
                if choice.finish_reason:
                    reasons[choice.index] = choice.finish_reason
    assert [texts[index] for index in range(3)] == [choice.message.content for choice in whole.choices]
    assert sorted(roles) == [0, 1, 2] and reasons == {0: "length", 1: "length", 2: "length"}
    assert usage is not None and whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens == 36
    assert usage.prompt_tokens == whole.usage.prompt_tokens


async def test_further_choices_of_a_long_prompt_find_its_prefix_in_the_cache(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        before = server.engine.stats.prompt_tokens
        await server.openai.completions.create(model="base", prompt=[9] * 160, n=8, max_tokens=4)
        await server.idle()
        assert server.engine.stats.prompt_tokens - before < 160 + 8 * 16


async def test_more_choices_than_the_queue_holds_are_all_answered(tiny: Tiny) -> None:
    async with serving(tiny, max_queue=2, max_num_seqs=2) as server:
        answer = await server.openai.completions.create(model="base", prompt="a", n=40, max_tokens=2)
        assert len(answer.choices) == 40
        assert not server.engine._active


async def test_echo_begins_with_the_prompt_streaming_or_not(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        settings: dict[str, Any] = {"model": "base", "max_tokens": 4, "temperature": 0, "n": 2}
        plain = (await server.openai.completions.create(prompt=["abc", "xy"], **settings)).choices
        echoed = (await server.openai.completions.create(prompt=["abc", "xy"], echo=True, **settings)).choices
        assert [c.text for c in echoed] == [p + c.text for p, c in zip(("abc", "abc", "xy", "xy"), plain, strict=True)]
        stream = await server.openai.completions.create(prompt=[[100, 101]], echo=True, stream=True, **settings)
        texts: defaultdict[int, str] = defaultdict(str)
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].text
        ids = (await server.openai.completions.create(prompt=[[100, 101]], echo=True, **settings)).choices
        assert [texts[0], texts[1]] == [choice.text for choice in ids]


async def test_echo_with_logprobs_says_how_likely_the_prompt_was(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        settings: dict[str, Any] = {"model": "r4", "max_tokens": 3, "temperature": 0, "logprobs": 2, "echo": True}
        settings["extra_body"] = {"ignore_eos": True}
        answer = await server.openai.completions.create(prompt=["abcdef", "x"], **settings)
        stream = await server.openai.completions.create(prompt=["abcdef", "x"], stream=True, **settings)
        streamed: defaultdict[int, list[Any]] = defaultdict(list)
        async for chunk in stream:
            if (logprobs := chunk.choices[0].logprobs) is not None:
                streamed[chunk.choices[0].index].append(logprobs)
        unscored = (await server.openai.completions.create(prompt="abcdef", **settings | {"echo": False})).choices[0]
    for choice, prompt in zip(answer.choices, ("abcdef", "x"), strict=True):
        found = choice.logprobs
        assert found is not None and choice.text.startswith(prompt)
        assert found.tokens is not None and found.token_logprobs is not None and found.top_logprobs is not None
        assert len(found.tokens) == len(prompt) + 3 and found.tokens[: len(prompt)] == list(prompt)
        offsets = found.text_offset
        assert offsets is not None and offsets == sorted(offsets) and len(offsets) == len(found.tokens)
        assert offsets[: len(prompt) + 1] == list(range(len(prompt) + 1)) and offsets[-1] <= len(choice.text)
        assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
        assert all(len(top) == 2 for top in found.top_logprobs[1:])
        pieces = streamed[choice.index]
        assert [t for p in pieces for t in p.tokens] == found.tokens
        assert [v for p in pieces for v in p.token_logprobs] == found.token_logprobs
        assert [v for p in pieces for v in p.text_offset] == found.text_offset
    ids = Tokenizer.from_dir(tiny.model).encode("abcdef", add_special_tokens=False)
    scored = answer.choices[0].logprobs
    assert scored is not None and scored.token_logprobs is not None and unscored.logprobs is not None
    assert scored.token_logprobs[1:6] == pytest.approx(tiny.reference_logprobs("r4", ids), abs=1e-3)
    assert scored.token_logprobs[6:] == unscored.logprobs.token_logprobs, "what follows is the same without echo"


async def test_a_prompt_that_is_too_long_refuses_all_before_any_is_computed(tiny: Tiny) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder) as server:
        body = {"model": "base", "prompt": [[5] * 10, [5] * 600], "max_tokens": 4}
        answer = await server.http.post("/v1/completions", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
        assert not server.engine._active and [usage.total_tokens for _, usage, _ in recorder.finished] == [0]


async def test_the_observer_hears_of_all_choices_as_one(tiny: Tiny) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder) as server:
        body = {"model": "r4", "prompt": [[5] * 10, [6] * 7], "n": 3, "max_tokens": 5, "ignore_eos": True}
        answer = await server.http.post("/v1/completions", json=body)
    prediction = answer.headers["x-intarsia-prediction"]
    ((known, usage, reason),) = recorder.finished
    assert known == prediction and reason == "length"
    assert (usage.prompt_tokens, usage.completion_tokens) == (17, 30)
    assert answer.json()["intarsia"]["receipt"].endswith(":30")
    counts = [usage.completion_tokens for _, usage in recorder.progress]
    assert counts == sorted(counts) and counts[-1] == 30


async def test_the_granted_tokens_are_shared_among_the_choices(tiny: Tiny) -> None:
    async with serving(tiny, authorizer=LimitedAuthorizer) as server:
        body = {"model": "r4", "prompt": "abc", "n": 2, "max_tokens": 50, "ignore_eos": True}
        answer = (await server.http.post("/v1/completions", json=body)).json()
        assert answer["usage"]["completion_tokens"] == 4, "5 tokens are 2 for each"
        many = await server.http.post("/v1/completions", json=body | {"n": 6})
        assert many.status_code == 400 and many.json()["error"]["param"] == "n"
        long = await server.http.post("/v1/completions", json=body | {"prompt": [[5] * 11, [5] * 10]})
        assert long.status_code == 400 and long.json()["error"]["code"] == "prompt_exceeds_authorization"


async def test_cancelling_a_request_ends_every_choice_even_those_not_begun(tiny: Tiny) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder, max_num_seqs=4) as server:
        body = {"model": "base", "prompt": [7] * 100, "n": 50, "max_tokens": 350, "ignore_eos": True, "stream": True}
        lines: list[str] = []
        async with server.http.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                lines.append(line)
                if len(lines) == 20:
                    server.engine.cancel(answer.headers["x-intarsia-prediction"])
        await server.idle()
        assert server.engine.planner.pool.used == 0
    assert lines[-2] == "data: [DONE]"
    reasons = [
        choice["finish_reason"]
        for line in lines
        if line.startswith("data: {")
        for choice in json.loads(line[6:])["choices"]
        if choice["finish_reason"]
    ]
    assert len(reasons) == 50
    assert [reason for _, _, reason in recorder.finished] == ["cancelled"]


async def test_a_client_that_leaves_takes_all_its_choices_with_it(tiny: Tiny) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder) as server:
        body = {"model": "base", "prompt": [7] * 100, "n": 40, "max_tokens": 400, "ignore_eos": True, "stream": True}
        tasks = len(asyncio.all_tasks())
        async with server.http.stream("POST", "/v1/completions", json=body) as answer:
            async for _ in answer.aiter_lines():
                break
        for _ in range(500):
            if recorder.finished and not server.engine._active:
                break
            await asyncio.sleep(0.01)
        await server.idle()
        assert server.engine.planner.pool.used == 0 and len(recorder.finished) == 1
        for _ in range(100):
            if len(asyncio.all_tasks()) <= tasks + 1:
                break
            await asyncio.sleep(0.01)
        assert len(asyncio.all_tasks()) <= tasks + 1, "a connection's own task may live on, nothing of the request"


async def test_request_ids_are_echoed_when_they_can_be_logged(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        given = await server.http.get("/healthz", headers={"X-Request-ID": "abc-DEF_123.4"})
        assert given.headers["x-request-id"] == "abc-DEF_123.4"
        for bad in ("short", "a" * 65, "has space in it", 'quote"quote"'):
            answer = await server.http.post("/v1/completions", content=b"{}", headers={"X-Request-ID": bad})
            assert answer.status_code == 400 and answer.headers["x-request-id"] not in ("", bad)


async def test_service_tiers_are_latency_classes(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        for tier, said in (("flex", "flex"), ("priority", "priority"), ("auto", "default")):
            answer = await server.openai.chat.completions.create(
                model="base", messages=HELLO, max_tokens=2, service_tier=tier
            )
            assert answer.service_tier == said
        by_class = {known.name: counts.arrived for known, counts in server.engine.stats.by_class.items()}
    assert by_class["BATCH"] == 1 and by_class["INTERACTIVE"] == 1


async def test_answers_that_stop_where_the_budget_ends_say_so(tiny: Tiny) -> None:
    recorder = Recorder()
    body: dict[str, Any] = {"model": "base", "prompt": "abc", "ignore_eos": True, "service_tier": "priority"}
    async with serving(tiny, authorizer=BudgetAuthorizer, observer=recorder) as server:

        async def reasons(**changes: Any) -> list[str]:
            answer = (await server.http.post("/v1/completions", json=body | changes)).json()
            return [choice["finish_reason"] for choice in answer["choices"]]

        assert await reasons(max_tokens=7) == ["budget"]
        assert await reasons(max_tokens=7, n=2) == ["budget"] * 2
        assert await reasons(max_tokens=6) == ["length"], "all that was asked for came"
        assert await reasons(max_tokens=3, n=2) == ["length"] * 2
        stream = await server.http.post("/v1/completions", json=body | {"max_tokens": 9, "stream": True})
        assert stream.text.count('"finish_reason":"budget"') == 1
        waited = server.engine.planner.counts
        assert waited[LatencyClass.BATCH].arrived == 7 and not waited[LatencyClass.INTERACTIVE].arrived
    told = [(usage.completion_tokens, reason) for _, usage, reason in recorder.finished]
    assert told == [(6, "budget"), (6, "budget"), (6, "length"), (6, "length"), (6, "budget")]
