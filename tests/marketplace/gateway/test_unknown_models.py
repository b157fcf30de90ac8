"""A model that does not exist is 404 `model_not_found`, whatever its name looks like and wherever it is named."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.marketplace.gateway.conftest import UNTOUCHED, World, money

pytestmark = pytest.mark.asyncio(loop_scope="module")
# Names of other platforms, of nobody's, and of none that could be.
NAMES = [
    "gpt-4o",
    "maker/nothing",
    "nobody/thing",
    "maker/thing@7",
    "meta-llama/Llama-3.1-8B",
    "a/b/c",
    "é",
    "x" * 5_000,
]
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
FORMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/moderations": {"input": "hi"},
    "/v1/quote": CHAT,
    "/v1/predictions": {},
}


async def test_every_form_says_that_a_model_is_not_found(world: World) -> None:
    for path, body in FORMS.items():
        for name in NAMES:
            if path == "/v1/predictions":
                if "/" in name and name.count("/") == 1 and name.islower():
                    continue  # it could be one; its worker is told
                sent: dict[str, Any] = {"endpoint": "/v1/chat/completions", "body": CHAT | {"model": name}}
            else:
                sent = body | {"model": name}
            async with world.http.post(path, json=sent) as answer:
                told = await answer.json()
            if path == "/v1/predictions" and len(name) > 200:
                assert answer.status == 400
                continue
            assert (answer.status, told["error"]["code"]) == (404, "model_not_found"), (path, name, told)
            assert told["error"]["param"] == "model" and len(told["error"]["message"]) < 300
    assert await money(world) == UNTOUCHED | {"holds": []}


async def test_what_is_no_name_is_a_bad_request(world: World) -> None:
    for path, body in FORMS.items():
        if path in ("/v1/predictions", "/v1/moderations"):
            continue
        for wrong in (None, 7, "", ["maker/thing"]):
            async with world.http.post(path, json=body | {"model": wrong}) as answer:
                assert (answer.status, (await answer.json())["error"]["param"]) == (400, "model"), (path, wrong)


async def test_openais_client_raises_not_found(world: World) -> None:
    async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key=world.key_text, max_retries=0) as client:
        for asking in (
            client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}]),
            client.responses.create(model="gpt-4o", input="hi"),
            client.embeddings.create(model="text-embedding-3-small", input="hi"),
            client.models.retrieve("gpt-4o"),
        ):
            with pytest.raises(openai.NotFoundError) as missing:
                await asking
            assert missing.value.code == "model_not_found"
