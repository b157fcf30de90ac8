"""An adapter's contract, as its callers meet it: nothing but the message is needed, and little else is taken."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from protocol.contracts import canonical_answer, closed_answers
from serving.core import AdapterRef
from serving.http.admission import Admission, IncomingRequest, InsecureAuthorizer
from tests.serving.http.server import Recorder, serving
from tests.serving.tiny import Tiny

INSTRUCTIONS = "Answer yes or no, and nothing else, whatever you are asked. Think of the context first."
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["yes", "no"]}, "n": {"enum": [1, 2, 3]}},
    "required": ["a", "n"],
    "additionalProperties": False,
}
LEAST = {"contract": 1, "instructions": INSTRUCTIONS, "max_tokens": 100}
SINGLE = LEAST | {
    "messages": "single",
    "output": {"schema": SCHEMA},
    "sampling": {"temperature": 0},
    "examples": [{"message": "Is it?", "answer": '{"a":"yes","n":1}'}],
}
CONTRACTS: dict[str, dict[str, Any]] = {
    "single": SINGLE,
    "short": SINGLE | {"logprobs": "open", "max_tokens": 3, "examples": []},
    "append": LEAST | {"system": "append", "max_tokens": 5},
    "refuse": LEAST | {"system": "refuse", "logprobs": "open", "max_tokens": 5},
}
CONTRACTS["endless"] = SINGLE | {
    "output": {
        "schema": {
            "type": "object",
            "properties": {"a": {"enum": ["yes", "no"]}, "why": {"type": "string", "minLength": 400}},
            "required": ["a", "why"],
            "additionalProperties": False,
        }
    },
    "examples": [],
}
STEERING: list[dict[str, Any]] = [
    {"stop": ["zz"]},
    {"logit_bias": {"5": -1}},
    {"temperature": 0},
    {"top_p": 0.9},
    {"top_k": 5},
    {"min_p": 0.1},
    {"seed": 7},
    {"presence_penalty": 0.5},
    {"frequency_penalty": 0.5},
    {"repetition_penalty": 0.2},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    {"response_format": {"type": "text"}},
    {"speculation": False},
    {"return_token_ids": True},
]
ASK = [{"role": "user", "content": "Is water wet?"}]
BY_HAND = [{"role": "system", "content": INSTRUCTIONS}, *ASK]


class Tenants(InsecureAuthorizer):
    """Each caller has a cache scope of their own."""

    async def authorize(self, request: IncomingRequest) -> Admission:
        admission = await super().authorize(request)
        return dataclasses.replace(admission, cache_scope=request.headers.get("x-tenant", "anyone"))


class BareBase(Tenants):
    """The adapter's weights are left out for whoever has a ticket for that; its contract is not."""

    async def authorize(self, request: IncomingRequest) -> Admission:
        admission = await super().authorize(request)
        if "x-bare" not in request.headers:
            return admission
        return dataclasses.replace(admission, adapter=AdapterRef(), contract=admission.adapter.digest)


@pytest.fixture
def contracted(tiny: Tiny, tmp_path: Path) -> Tiny:
    """The tiny model with one adapter under several contracts, and without one as `bare`."""
    adapters = tmp_path / "adapters"
    for name, contract in {"bare": None, **CONTRACTS}.items():
        shutil.copytree(tiny.adapters / "r4", adapters / name)
        if contract is not None:
            (adapters / name / "contract.json").write_text(json.dumps(contract))
    return dataclasses.replace(tiny, adapters=adapters)


async def test_the_message_alone_gives_the_prompt_that_was_written_by_hand_before(contracted: Tiny) -> None:
    async with serving(contracted) as server:

        async def ask(model: str, messages: Any, **more: Any) -> dict[str, Any]:
            answer = await server.http.post("/v1/chat/completions", json={"model": model, "messages": messages, **more})
            assert answer.status_code == 200, answer.text
            return answer.json()  # type: ignore[no-any-return]

        hand = await ask("bare", BY_HAND, max_tokens=5, temperature=0)
        for messages in (ASK, BY_HAND, [{"role": "system", "content": "Say 1."}, *ASK]):
            answer = await ask("single", messages)
            assert answer["usage"]["prompt_tokens"] == hand["usage"]["prompt_tokens"]
            assert answer["choices"][0]["finish_reason"] == "stop"
            assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"a", "n"}
        told = [{"role": "system", "content": "Be kind."}, *ASK]
        both = [{"role": "system", "content": f"{INSTRUCTIONS}\n\nBe kind."}, *ASK]
        appended = await ask("append", told)
        assert appended["usage"]["completion_tokens"] <= 5
        bare = await ask("bare", both, max_tokens=5)
        assert appended["usage"]["prompt_tokens"] == bare["usage"]["prompt_tokens"]


async def test_a_callers_own_format_fits_inside_or_is_refused(contracted: Tiny) -> None:
    async with serving(contracted) as server:

        async def ask(schema: Any) -> Any:
            wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            body = {"model": "single", "messages": ASK, "response_format": wanted}
            return await server.http.post("/v1/chat/completions", json=body)

        inside = await ask({"type": "object", "properties": {"a": {"const": "no"}, "n": {"const": 3}}})
        assert json.loads(inside.json()["choices"][0]["message"]["content"]) == {"a": "no", "n": 3}
        assert (await ask(SCHEMA)).status_code == 200
        for outside in ({"type": "array"}, {"properties": {"a": {"const": "maybe"}}, "required": ["a"]}, False):
            refused = await ask(outside)
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "response_format", refused.text


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("completions", {"model": "single", "prompt": "x"}, "contract_chat_only", "prompt"),
        ("completions", {"model": "refuse", "prompt": "x", "echo": True}, "contract_chat_only", "prompt"),
        ("chat/completions", {"model": "single", "logprobs": True}, "contract_logprobs", "logprobs"),
        ("chat/completions", {"model": "append", "logprobs": True}, "contract_logprobs", "logprobs"),
        ("chat/completions", {"model": "single", "confidence": True}, "contract_logprobs", "confidence"),
        ("chat/completions", {"model": "single", "logit_bias": {"5": 1}}, "contract_logprobs", "logit_bias"),
        ("chat/completions", {"model": "single", "presence_penalty": 0.123}, "contract_logprobs", "presence_penalty"),
        (
            "chat/completions",
            {"model": "single", "use_beam_search": True, "n": 2, "confidence": True},
            "contract_logprobs",
            "confidence",
        ),
        ("chat/completions", {"model": "refuse", "messages": BY_HAND}, "contract_system", "messages"),
        ("chat/completions", {"model": "single", "messages": ASK + ASK}, "contract_messages", "messages"),
        ("chat/completions", {"model": "single", "guided_regex": "x"}, "contract_output", "guided_regex"),
        (
            "chat/completions",
            {"model": "single", "tools": [{"type": "function", "function": {"name": "f"}}]},
            "contract_output",
            "tools",
        ),
    ],
)
async def test_what_the_contract_rules_out_is_refused_by_name(
    contracted: Tiny, path: str, body: dict[str, Any], code: str, param: str
) -> None:
    async with serving(contracted) as server:
        body = body if "prompt" in body else {"messages": ASK, **body}
        refused = await server.http.post(f"/v1/{path}", json=body)
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == (code, param)
        assert INSTRUCTIONS not in refused.text
        opened = await server.http.post(
            "/v1/chat/completions", json={"model": "refuse", "messages": ASK, "logprobs": True, "max_tokens": 1}
        )
        assert opened.json()["choices"][0]["logprobs"]["content"]


async def test_the_instructions_are_cached_for_every_tenant_and_nothing_else_is(contracted: Tiny) -> None:
    async with serving(contracted, authorizer=Tenants) as server:

        async def cached(tenant: str, text: str) -> int:
            body = {"model": "append", "messages": [{"role": "user", "content": text}], "max_tokens": 1}
            answer = await server.http.post("/v1/chat/completions", json=body, headers={"x-tenant": tenant})
            return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

        secret = "The secret of the first tenant, which is long enough for some blocks of the cache: 4711."
        assert await cached("one", secret) == 0
        shared = await cached("two", "Something else")
        assert shared >= 64 and shared % 16 == 0
        assert await cached("one", secret) > shared + 32
        assert await cached("three", secret) == shared
        # Behind the shared blocks a tenant finds what its own prompts begin with, down to the token.
        assert shared <= await cached("two", secret) < shared + 16
        # A caller who sends the instructions as a message of their own is not let into the shared prefix.
        by_hand = {"model": "bare", "messages": BY_HAND, "max_tokens": 1}
        other = await server.http.post("/v1/chat/completions", json=by_hand, headers={"x-tenant": "four"})
        assert other.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_the_bare_base_follows_the_contract_without_the_weights(contracted: Tiny) -> None:
    async with serving(contracted, authorizer=BareBase) as server:

        async def ask(model: str, messages: Any, *, bare: bool = False, **more: Any) -> dict[str, Any]:
            body = {"model": model, "messages": messages, **more}
            headers = {"x-tenant": "one"} | ({"x-bare": "1"} if bare else {})
            answer = await server.http.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            return answer.json()  # type: ignore[no-any-return]

        # With the instructions sent by hand, the base says the same as under the contract; the adapter does not.
        sampled = {"max_tokens": 5, "temperature": 0}
        by_hand = await ask("base", BY_HAND, **sampled)
        under = await ask("append", ASK, bare=True, **sampled)
        assert under["choices"][0]["message"] == by_hand["choices"][0]["message"]
        assert under["usage"]["prompt_tokens"] == by_hand["usage"]["prompt_tokens"]
        assert (await ask("append", ASK, **sampled))["choices"][0]["message"] != by_hand["choices"][0]["message"]
        answer = await ask("single", ASK, bare=True)
        assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"a", "n"}
        # The cache tells nobody another's instructions: on the base they are a tenant's own prefix.
        body = {"model": "base", "messages": BY_HAND, "max_tokens": 1}
        other = await server.http.post("/v1/chat/completions", json=body, headers={"x-tenant": "two"})
        assert other.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_an_answer_cut_off_by_its_own_contract_counts_no_tokens(contracted: Tiny) -> None:
    observer = Recorder()
    async with serving(contracted, observer=observer) as server:

        async def counted(**more: Any) -> tuple[int, int]:
            body = {"model": "short", "messages": ASK, **more}
            answer = await server.http.post("/v1/chat/completions", json=body)
            _, usage, reason = observer.finished[-1]
            assert answer.json()["choices"][0]["finish_reason"] == reason == "length"
            return answer.json()["usage"]["completion_tokens"], usage.completion_tokens

        for plain in ({}, {"max_tokens": 3}, {"temperature": None, "n": 1, "seed": None}, {"metadata": {"a": "b"}}):
            assert await counted(**plain) == (3, 0), plain
        for limit in (2, 9):
            assert await counted(max_tokens=limit) == (limit, limit)
        assert await counted(n=2) == (6, 6)
        for steering in STEERING:
            assert await counted(**steering) == (3, 3), steering


async def test_an_answer_that_already_delivers_its_choices_counts_although_its_end_is_missing(
    contracted: Tiny,
) -> None:
    observer = Recorder()
    async with serving(contracted, observer=observer) as server:
        answer = await server.http.post("/v1/chat/completions", json={"model": "endless", "messages": ASK})
        choice = answer.json()["choices"][0]
        assert choice["finish_reason"] == "length" and '"a":' in choice["message"]["content"].replace(" ", "")
        _, usage, _ = observer.finished[-1]
        assert usage.completion_tokens == answer.json()["usage"]["completion_tokens"] > 0


async def test_white_space_does_not_fill_an_answer_under_a_contract(contracted: Tiny) -> None:
    async with serving(contracted) as server:
        for steering in ({"repetition_penalty": 0.2}, {"temperature": 2.0, "frequency_penalty": -2.0}):
            for seed in range(3):
                body = {"model": "single", "messages": ASK, "seed": seed, **steering}
                answer = (await server.http.post("/v1/chat/completions", json=body)).json()["choices"][0]
                assert answer["finish_reason"] == "stop"
                assert len(answer["message"]["content"]) <= len('{"a": "yes", "n": 1}')


async def test_the_observer_is_told_which_answer_of_a_closed_set_was_given(contracted: Tiny) -> None:
    observer = Recorder()
    places = {answer: place for place, answer in enumerate(closed_answers(SCHEMA))}
    assert len(places) == 6
    async with serving(contracted, observer=observer) as server:

        async def told(model: str = "single", **more: Any) -> tuple[str, int | None]:
            body = {"model": model, "messages": ASK, **more}
            answer = (await server.http.post("/v1/chat/completions", json=body)).json()
            return answer["choices"][0]["message"]["content"], observer.answers[-1]

        for seed in range(3):
            text, place = await told(temperature=2.0, seed=seed)
            assert place == places[canonical_answer(json.loads(text))]
        await server.http.post("/v1/chat/completions", json={"model": "single", "messages": ASK, "stream": True})
        assert observer.answers[-1] in range(6)
        assert (await told(max_tokens=3))[1] is None, "cut off"
        assert (await told(n=2))[1] is None, "two answers have no one place"
        assert (await told("append"))[1] is None, "free text"


async def test_a_beam_search_stays_within_the_contract_and_is_paid_for_though_the_contract_cuts_it(
    contracted: Tiny,
) -> None:
    recorder = Recorder()
    async with serving(contracted, observer=recorder) as server:

        async def search(model: str, **more: Any) -> list[dict[str, Any]]:
            body = {"model": model, "messages": ASK, "use_beam_search": True, "best_of": 4, **more}
            answer = await server.http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"]  # type: ignore[no-any-return]

        for choice in await search("single", n=4):
            assert choice["logprobs"] is None and set(json.loads(choice["message"]["content"])) == {"a", "n"}
        (best,) = await search("single")
        (cut,) = await search("short")
        assert cut["finish_reason"] == "length"
    (_, four, _), (_, one, _), (_, paid, _) = recorder.finished
    assert paid.completion_tokens > 0
    assert four.completion_tokens == one.completion_tokens > 0
    place = closed_answers(SCHEMA).index(canonical_answer(json.loads(best["message"]["content"])))
    assert recorder.answers == [None, place, None]
