"""OpenAI's semantics, seen by OpenAI's own client over a real socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.serving.http.bad_bodies import BAD
from tests.serving.http.server import GenerousAuthorizer, LimitedAuthorizer, Recorder, serving
from tests.serving.tiny import ADAPTERS, Tiny

HELLO = [{"role": "user", "content": "hello there"}]
GREEDY: dict[str, Any] = {"temperature": 0, "extra_body": {"ignore_eos": True}}


async def test_completions_take_text_ids_and_one_element_lists(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        ids = [token + 0 for token in [70, 71, 72, 73]]
        expected = tiny.reference("r4", ids, 8)
        body = {"ignore_eos": True, "return_token_ids": True}
        for prompt in (ids, [ids]):
            answer = await server.openai.completions.create(
                model="r4", prompt=prompt, max_tokens=8, temperature=0, extra_body=body
            )
            assert answer.choices[0].model_extra["token_ids"] == expected
        texts = [
            (await server.openai.completions.create(model="base", prompt=p, max_tokens=8, **GREEDY)).choices[0].text
            for p in ("abc", ["abc"])
        ]
        assert texts[0] == texts[1]


async def test_streaming_says_what_not_streaming_says_and_ends_with_usage(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        create = server.openai.chat.completions.create
        whole = await create(model="r16-rslora", messages=HELLO, max_completion_tokens=20, **GREEDY)
        stream = await create(
            model="r16-rslora",
            messages=HELLO,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
        chunks = [chunk async for chunk in stream]
    assert whole.choices[0].finish_reason == "length" and whole.model == "r16-rslora"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 20
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert {chunk.id for chunk in chunks} == {chunks[0].id} and chunks[0].id.startswith("chatcmpl-")


async def test_several_models_at_once_share_batches(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        prompt = list(range(10, 40))

        async def complete(name: str | None, max_tokens: int) -> Any:
            return await server.openai.completions.create(
                model=name or "base",
                prompt=prompt,
                max_tokens=max_tokens,
                temperature=0,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )

        # Loaded one after another, each could be done before the next is ready.
        for name in ADAPTERS:
            await complete(name, 1)
        answers = await asyncio.gather(*(complete(name, 40) for name in (None, *ADAPTERS)))
        for name, answer in zip((None, *ADAPTERS), answers, strict=True):
            assert answer.choices[0].model_extra["token_ids"] == tiny.reference(name, prompt, 40)
        metrics = (await server.http.get("/metrics")).text
    most = next(line for line in metrics.splitlines() if line.startswith("intarsia_max_adapters_in_one_batch "))
    assert float(most.split()[1]) >= 2


async def test_stop_strings_and_seeds_reach_the_engine(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        create = server.openai.completions.create
        full = (await create(model="base", prompt="abc", max_tokens=40, **GREEDY)).choices[0].text
        cut = (await create(model="base", prompt="abc", max_tokens=40, stop=[full[5:8]], **GREEDY)).choices[0]
        assert cut.text == full[: full.index(full[5:8])] and cut.finish_reason == "stop"
        seeded = [(await create(model="base", prompt="abc", max_tokens=20, seed=s)).choices[0].text for s in (3, 3, 4)]
        assert seeded[0] == seeded[1] != seeded[2]


async def test_logprobs_come_in_both_dialects(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        text = await server.openai.completions.create(model="base", prompt="abc", max_tokens=3, logprobs=2, **GREEDY)
        chat = await server.openai.chat.completions.create(
            model="base", messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2, **GREEDY
        )
    assert text.choices[0].logprobs is not None and chat.choices[0].logprobs is not None
    assert len(text.choices[0].logprobs.tokens or []) == 3
    content = chat.choices[0].logprobs.content or []
    assert len(content) == 3 and all(len(entry.top_logprobs) == 2 for entry in content)
    assert content[0].logprob == content[0].top_logprobs[0].logprob <= 0


async def test_models_lists_the_base_and_every_folder(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        names = [model.id async for model in server.openai.models.list()]
        assert names == ["base", *sorted(ADAPTERS)]
        assert (await server.openai.models.retrieve("r4")).id == "r4"
        with pytest.raises(openai.NotFoundError):
            await server.openai.models.retrieve("nobody")


async def test_errors_are_openais(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        with pytest.raises(openai.NotFoundError) as missing:
            await server.openai.completions.create(model="nobody", prompt="a")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as long:
            await server.openai.completions.create(model="base", prompt=[5] * 600)
        assert long.value.code == "context_length_exceeded" and "512" in str(long.value)
        assert long.value.param == "prompt"
        with pytest.raises(openai.BadRequestError) as chat:
            await server.openai.chat.completions.create(
                model="base", messages=[{"role": "user", "content": "word " * 700}]
            )
        assert (chat.value.code, chat.value.param) == ("context_length_exceeded", "messages")
        with pytest.raises(openai.BadRequestError) as several:
            await server.openai.completions.create(model="base", prompt="a", n=129)
        assert several.value.param == "n"


async def test_a_bad_body_gets_a_400_that_names_the_fault(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        for path, body, says in BAD:
            answer = await server.http.post(path, content=body)
            assert answer.status_code == 400, body
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
            assert says in error["message"], body
            assert not server.engine._active


async def test_paths_methods_and_sizes_have_their_own_status(tiny: Tiny) -> None:
    async with serving(tiny, max_body_bytes=2000) as server:
        assert (await server.http.get("/v1/nothing")).status_code == 404
        assert (await server.http.get("/v1/completions")).status_code == 405
        big = await server.http.post("/v1/completions", content=b'{"prompt": "' + b"x" * 3000)
        assert big.status_code == 413 and big.json()["error"]["code"] == "request_too_large"

        async def drip() -> Any:
            for _ in range(30):
                yield b"x" * 100

        assert (await server.http.post("/v1/completions", content=drip())).status_code == 413
        assert (await server.http.get("/healthz")).json() == {"status": "ok"}
        assert (await server.http.get("/readyz")).status_code == 200


async def test_a_full_queue_answers_429_with_retry_after(tiny: Tiny) -> None:
    async with serving(tiny, max_queue=1, max_num_seqs=1) as server:
        body = {"model": "base", "prompt": [5] * 30, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        answers = await asyncio.gather(*(server.http.post("/v1/completions", json=body) for _ in range(6)))
        codes = sorted(answer.status_code for answer in answers)
        assert codes[0] == 200 and codes[-1] == 429
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"


async def test_a_client_that_leaves_is_cancelled_streaming_or_not(tiny: Tiny) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder) as server:
        body = {"model": "r4", "prompt": [5] * 30, "max_tokens": 450, "temperature": 0, "ignore_eos": True}
        async with server.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
            async for _ in answer.aiter_lines():
                break
        await server.idle()
        waiting = asyncio.create_task(server.http.post("/v1/completions", json=body))
        while not server.engine._active:
            await asyncio.sleep(0.001)
        waiting.cancel()
        await server.idle()
        assert server.engine.planner.pool.used == 0
        for _ in range(100):
            if len(recorder.finished) == 2:
                break
            await asyncio.sleep(0.01)
    assert [reason for _, _, reason in recorder.finished] == ["cancelled", "cancelled"]
    assert all(usage.completion_tokens < 450 for _, usage, _ in recorder.finished)


async def test_the_observers_word_closes_every_answer(tiny: Tiny) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder) as server:
        body = {"model": "r4", "prompt": "abc", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
        whole = (await server.http.post("/v1/completions", json=body)).json()
        stream = await server.http.post("/v1/completions", json=body | {"stream": True})
    events = [line[6:] for line in stream.text.splitlines() if line.startswith("data: ")]
    last = json.loads(events[-2])
    assert events[-1] == "[DONE]"
    assert whole["intarsia"]["receipt"].endswith(":6") and last["intarsia"]["receipt"].endswith(":6")
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 6  # sent although usage was not asked for
    prediction = stream.headers["x-intarsia-prediction"]
    assert last["id"] == "cmpl-" + prediction.replace("-", "")
    assert [(i, r) for i, _, r in recorder.finished][1] == (prediction, "length")
    assert [u.completion_tokens for i, u in recorder.progress if i == prediction] == [1, 2, 3, 4, 5, 6]


async def test_an_error_in_mid_stream_is_an_event_with_the_observers_word(tiny: Tiny) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder) as server:
        body = {"model": "r4", "prompt": "abc", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
        events = []
        async with server.http.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    events.append(line[6:])
                if len(events) == 1:
                    digest = server.source.resolve("r4")
                    assert digest is not None
                    server.engine.revoke(digest)
        failed = json.loads(events[-2])
        assert failed["error"]["code"] == "adapter_revoked" and "receipt" in failed["intarsia"]
        assert recorder.finished[0][2] == "revoked" and recorder.finished[0][1].completion_tokens >= 1
        again = await server.http.post("/v1/completions", json=body)
        assert again.status_code == 403
        assert [reason for _, _, reason in recorder.finished] == ["revoked", "error"]


async def test_an_authorizers_limits_are_kept(tiny: Tiny) -> None:
    async with serving(tiny, authorizer=LimitedAuthorizer) as server:
        body = {"model": "r4", "prompt": [5] * 20, "max_tokens": 50, "temperature": 0, "ignore_eos": True}
        assert (await server.http.post("/v1/completions", json=body)).json()["usage"]["completion_tokens"] == 5
        long = await server.http.post("/v1/completions", json=body | {"prompt": [5] * 21})
        assert long.status_code == 400 and long.json()["error"]["code"] == "prompt_exceeds_authorization"
        # The platform authorizes no prompt beyond the context: the reason to give is the context.
        beyond = await server.http.post("/v1/completions", json=body | {"prompt": [5] * 600})
        assert beyond.status_code == 400 and beyond.json()["error"]["code"] == "context_length_exceeded"


async def test_without_a_limit_in_the_body_a_completion_may_use_its_grant(tiny: Tiny) -> None:
    body = {"model": "r4", "prompt": [5] * 20, "temperature": 0, "ignore_eos": True}
    async with serving(tiny) as server:
        assert (await server.http.post("/v1/completions", json=body)).json()["usage"]["completion_tokens"] == 16
    async with serving(tiny, authorizer=GenerousAuthorizer) as server:
        assert (await server.http.post("/v1/completions", json=body)).json()["usage"]["completion_tokens"] == 40
