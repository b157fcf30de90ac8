"""/v1/embeddings by OpenAI's client against the hidden states of transformers."""

from __future__ import annotations

import numpy as np
import openai
import pytest
import torch

from tests.serving.http.server import Recorder, serving
from tests.serving.tiny import Tiny


def expected(tiny: Tiny, adapter: str | None, prompt: list[int]) -> np.ndarray:
    """Last token of the final normed hidden states, L2-normalised."""
    with torch.inference_mode():
        if adapter is None:
            with tiny._peft.disable_adapter():
                hidden = tiny._peft.base_model.model.model(torch.tensor([prompt])).last_hidden_state[0, -1]
        else:
            tiny._peft.set_adapter(adapter)
            hidden = tiny._peft.base_model.model.model(torch.tensor([prompt])).last_hidden_state[0, -1]
    return torch.nn.functional.normalize(hidden, dim=-1).numpy()


async def test_embeddings_are_the_last_tokens_hidden_state(tiny: Tiny) -> None:
    prompts = [[70, 71, 72], list(range(10, 90)), [5]]
    async with serving(tiny) as server:
        for adapter in (None, "r4", "r16-rslora"):
            answer = await server.openai.embeddings.create(model=adapter or "base", input=prompts)
            assert [entry.index for entry in answer.data] == [0, 1, 2]
            assert answer.usage.prompt_tokens == answer.usage.total_tokens == 84
            for entry, prompt in zip(answer.data, prompts, strict=True):
                np.testing.assert_allclose(entry.embedding, expected(tiny, adapter, prompt), atol=2e-5)
                assert np.linalg.norm(entry.embedding) == pytest.approx(1, abs=1e-5)


async def test_floats_base64_texts_and_lists_say_the_same(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        create = server.openai.embeddings.create
        # The client asks for base64 unless told otherwise.
        short = (await create(model="base", input="hello")).data[0].embedding
        floats = (await create(model="base", input=["hello"], encoding_format="float")).data[0].embedding
        assert short == floats
        raw = await server.http.post(
            "/v1/embeddings", json={"model": "base", "input": "hello", "encoding_format": "base64"}
        )
        assert isinstance(raw.json()["data"][0]["embedding"], str)


async def test_hundreds_of_inputs_pass_a_small_queue_and_count_as_one_request(tiny: Tiny) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder, max_queue=4) as server:
        answer = await server.openai.embeddings.create(model="r4", input=[[5 + n % 50] * 3 for n in range(200)])
        assert len(answer.data) == 200
        assert answer.data[0].embedding == answer.data[150].embedding != answer.data[1].embedding
        assert not server.engine._active
    ((_, usage, reason),) = recorder.finished
    assert (usage.prompt_tokens, usage.completion_tokens, reason) == (600, 0, "stop")


async def test_input_that_cannot_be_embedded_is_refused(tiny: Tiny) -> None:
    async with serving(tiny) as server:
        with pytest.raises(openai.BadRequestError) as long:
            await server.openai.embeddings.create(model="base", input=[[5] * 3, [5] * 600])
        assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError):
            await server.openai.embeddings.create(model="nobody", input="a")
        with pytest.raises(openai.BadRequestError) as many:
            await server.openai.embeddings.create(model="base", input=["a"] * 2049)
        assert many.value.param == "input"
