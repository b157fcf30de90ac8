"""Log-probabilities speak of tokens: their bytes and where they begin hold also for tokens that are no character."""

from __future__ import annotations

import pytest

from tests.serving.http.server import serving
from tests.serving.tiny import Tiny

TEXTS = ["a😀é", "日本", "né", "👍🏽", "ab"]


async def test_a_chat_lists_the_bytes_of_each_token(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        for text in TEXTS:
            body = {
                "model": "base",
                "messages": [{"role": "user", "content": "a"}],
                "guided_regex": text,
                "logprobs": True,
                "top_logprobs": 2,
                "max_tokens": 40,
            }
            (choice,) = (await server.http.post("/v1/chat/completions", json=body)).json()["choices"]
            assert choice["message"]["content"] == text
            spoken = [entry for entry in choice["logprobs"]["content"] if entry["token"] != "<|im_end|>"]
            assert [entry["bytes"] for entry in spoken] == [[byte] for byte in text.encode()]
            assert [e["token"] for e in spoken] == [
                bytes([byte]).decode("utf-8", "backslashreplace") for byte in text.encode()
            ]
            for entry in spoken:
                assert all(
                    bytes(top["bytes"]).decode("utf-8", "backslashreplace") == top["token"]
                    for top in entry["top_logprobs"]
                )


async def test_offsets_count_the_characters_of_the_text(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        for text in TEXTS:
            body = {"model": "base", "prompt": text, "echo": True, "logprobs": 3, "max_tokens": 0}
            answer = (await server.http.post("/v1/completions", json=body)).json()
            found = answer["choices"][0]["logprobs"]
            assert found["text_offset"] == [at for at, char in enumerate(text) for _ in char.encode()]
            assert b"".join(map(raw, found["tokens"])) == text.encode()
            assert all(len(top) == 3 for top in found["top_logprobs"][1:]), "no two tokens have one name"


def raw(token: str) -> bytes:
    escaped = token.removeprefix("bytes:")
    return escaped.encode() if escaped == token else bytes.fromhex(escaped.replace("\\x", ""))


async def test_special_tokens_take_room_only_where_the_text_shows_them(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        settings = {"model": "base", "echo": True, "logprobs": 0, "max_tokens": 0}
        shown = await server.http.post("/v1/completions", json={**settings, "prompt": "a<|im_end|>b"})
        (choice,) = shown.json()["choices"]
        assert choice["text"] == "a<|im_end|>b" and choice["logprobs"]["text_offset"] == [0, 1, 11]
        ids = [*choice_ids("a", tiny), 2, *choice_ids("b", tiny)]
        hidden = await server.http.post("/v1/completions", json={**settings, "prompt": ids})
        (choice,) = hidden.json()["choices"]
        assert choice["text"] == "ab" and choice["logprobs"]["text_offset"] == [0, 1, 1]


def choice_ids(text: str, tiny: Tiny) -> list[int]:
    from serving.tokenization.tokenizer import Tokenizer

    return Tokenizer.from_dir(tiny.model).encode(text, add_special_tokens=False)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_is_scored_without_a_completion(tiny: Tiny, stream: bool) -> None:
    async with serving(tiny) as server:
        settings = {"model": "r4", "prompt": ["abcdef", "xy"], "echo": True, "logprobs": 1, "temperature": 0}
        longer = (await server.http.post("/v1/completions", json={**settings, "max_tokens": 1})).json()
        body = {**settings, "max_tokens": 0, "stream": stream}
        if not stream:
            answer = (await server.http.post("/v1/completions", json=body)).json()
            assert answer["usage"]["completion_tokens"] == 0 and answer["usage"]["prompt_tokens"] == 8
            choices = answer["choices"]
        else:
            chunks = [
                chunk
                async for chunk in await server.openai.completions.create(**body)  # type: ignore[call-overload]
            ]
            choices = [chunk.model_dump()["choices"][0] for chunk in sorted(chunks, key=lambda c: c.choices[0].index)]
        assert [choice["text"] for choice in choices] == ["abcdef", "xy"]
        assert all(choice["finish_reason"] == "length" for choice in choices)
        for choice, other in zip(choices, longer["choices"], strict=True):
            assert choice["logprobs"]["token_logprobs"] == other["logprobs"]["token_logprobs"][:-1]
        await server.idle()


async def test_settings_that_openai_accepts_are_accepted(tiny: Tiny) -> None:
    chat = {"model": "base", "messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "return_token_ids": True}
    async with serving(tiny) as server:
        likeliest = await server.http.post("/v1/chat/completions", json={**chat, "temperature": 0})
        for more in ({"top_p": 0}, {"top_p": 0, "temperature": 2, "seed": 3}, {"temperature": 0, "top_logprobs": 0}):
            answer = await server.http.post("/v1/chat/completions", json={**chat, **more})
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["token_ids"] == likeliest.json()["choices"][0]["token_ids"], more
