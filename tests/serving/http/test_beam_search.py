"""Beam search and `best_of` over HTTP: what is returned, what is counted, and what is refused."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.steps import PendingStep, StepPlan
from tests.serving.http.server import LimitedAuthorizer, Recorder, serving
from tests.serving.tiny import Tiny

PAGE = (Path(__file__).parents[3] / "docs" / "beams.md").read_text()
SEARCH = {"use_beam_search": True, "ignore_eos": True, "return_token_ids": True}
CHAT = [{"role": "user", "content": "hello there"}]


async def test_the_page_s_example_runs_as_it_stands(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)
    async with serving(tiny) as server:
        names = {"BASE_URL": server.url, "API_KEY": "unused", "MODEL": "r4"}
        await asyncio.to_thread(exec, compile(example, "docs/beams.md", "exec"), names)
    *lines, counts = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d+ computed and charged, \d+ returned", counts) and len(lines) >= 2


async def test_every_prompt_has_its_best_beams_and_what_was_computed_is_counted(tiny: Tiny) -> None:
    recorder, prompts = Recorder(), [[70, 71, 72], [80, 81] * 20]
    async with serving(tiny, observer=recorder) as server:
        body = {"model": "r4", "prompt": prompts, "n": 2, "best_of": 4, "max_tokens": 6, "logprobs": 2, "echo": True}
        answer = await server.openai.completions.create(**body, extra_body=SEARCH)  # type: ignore[call-overload]
        chat = await server.openai.chat.completions.create(
            model="base", messages=CHAT, n=2, max_tokens=5, extra_body=SEARCH | {"confidence": True}
        )
        await server.idle()
        assert server.engine.planner.pool.used == 0
    assert [choice.index for choice in answer.choices] == list(range(4))
    for place, prompt in enumerate(prompts):
        known = tiny.reference_beams("r4", prompt, 6, returned=2, ends=[], num_beams=4)
        two = answer.choices[2 * place : 2 * place + 2]
        assert [choice.model_extra["token_ids"] for choice in two] == known
        for choice in two:
            assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == len(prompt) + 6
            assert all(len(top) == 2 for top in choice.logprobs.top_logprobs[1:])
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (43, 2 * 4 * 6)
    assert usage.completion_tokens_details.returned_tokens == 2 * 2 * 6
    assert chat.usage is not None and chat.usage.completion_tokens == 2 * 5
    first, second = (choice.model_extra for choice in chat.choices)
    assert first is not None and second is not None and first["confidence"] >= second["confidence"]
    assert all(choice.logprobs is None for choice in chat.choices), "nobody asked for them"
    assert [usage.completion_tokens for _, usage, _ in recorder.finished] == [48, 10]
    assert [usage.returned_tokens for _, usage, _ in recorder.finished] == [24, 10]


async def test_the_likeliest_of_best_of_are_returned_and_all_are_counted(tiny: Tiny) -> None:
    drawn = {"model": "r4", "prompt": ["abc", "xy"], "max_tokens": 6, "seed": 3, "ignore_eos": True}
    async with serving(tiny) as server:

        async def post(**changes: Any) -> Any:
            return (await server.http.post("/v1/completions", json=drawn | changes)).json()

        every, best = await post(n=5, logprobs=0), await post(n=2, best_of=5)
        shown = await post(n=1, best_of=5, logprobs=0)
    for prompt in range(2):
        five = every["choices"][5 * prompt : 5 * prompt + 5]
        five.sort(key=lambda choice: -sum(choice["logprobs"]["token_logprobs"]))
        two = best["choices"][2 * prompt : 2 * prompt + 2]
        assert [choice["text"] for choice in two] == [choice["text"] for choice in five[:2]]
        assert all(choice["logprobs"] is None for choice in two)
        assert shown["choices"][prompt]["logprobs"] == five[0]["logprobs"]
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
    assert best["usage"]["completion_tokens"] == every["usage"]["completion_tokens"] == 60
    assert best["usage"]["completion_tokens_details"]["returned_tokens"] == 24
    assert "returned_tokens" not in every["usage"]["completion_tokens_details"], "all were returned"


async def test_a_search_follows_a_grammar_and_fewer_answers_come_where_it_has_fewer(tiny: Tiny) -> None:
    body = {"model": "base", "prompt": ["say ", "or "], "max_tokens": 8, "guided_regex": "(red|green|rose)"}
    async with serving(tiny) as server:
        answer = await server.http.post("/v1/completions", json=body | {"use_beam_search": True, "n": 4})
        assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 4, 5, 6], "an index tells the prompt"
    for some in (choices[:3], choices[3:]):
        assert {choice["text"] for choice in some} == {"red", "green", "rose"}
        assert all(choice["finish_reason"] == "stop" for choice in some)


async def test_what_was_granted_is_shared_among_the_beams(tiny: Tiny) -> None:
    async with serving(tiny, authorizer=LimitedAuthorizer) as server:
        body = {"model": "r4", "prompt": "abc", "n": 1, "best_of": 2, "max_tokens": 50} | SEARCH
        answer = (await server.http.post("/v1/completions", json=body)).json()
        assert answer["usage"]["completion_tokens"] == 4, "5 tokens are 2 for each of two beams"
        many = await server.http.post("/v1/completions", json=body | {"best_of": 6})
        assert many.status_code == 400 and "authorized" in many.json()["error"]["message"]


async def test_a_search_that_cannot_fit_is_refused_before_work(tiny: Tiny) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder, max_num_seqs=4) as server:
        body = {"model": "base", "prompt": "a", "max_tokens": 4, "use_beam_search": True, "n": 5}
        answer = await server.http.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "beams_too_wide")
        assert [usage.total_tokens for _, usage, _ in recorder.finished] == [0]


async def test_a_client_that_leaves_ends_its_search(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    async with serving(tiny, observer=recorder, elastic_memory=False) as server:
        launch = server.engine.runner.launch

        def slowly(plan: StepPlan) -> PendingStep:
            time.sleep(0.002)
            return launch(plan)

        monkeypatch.setattr(server.engine.runner, "launch", slowly)
        body = {"model": "r4", "prompt": [7] * 50, "n": 8, "max_tokens": 300} | SEARCH
        asking = asyncio.create_task(server.http.post("/v1/completions", json=body))
        while not recorder.progress and not asking.done():
            await asyncio.sleep(0.005)
        assert not asking.done()
        asking.cancel()
        for _ in range(500):
            if recorder.finished:
                break
            await asyncio.sleep(0.01)
        await server.idle()
        server.engine.planner.check_integrity()
        assert server.engine.planner.pool.used == 0
    ((_, usage, reason),) = recorder.finished
    assert reason == "cancelled" and 0 < usage.completion_tokens < 8 * 300


async def test_a_text_that_several_sequences_of_tokens_spell_is_one_answer_under_a_grammar(
    tiny: Tiny, tmp_path: Path
) -> None:
    """Tokens "re" and "gr" beside their letters: "red" has two spellings, "green" four."""
    for file in tiny.model.iterdir():
        shutil.copy(file, tmp_path / file.name)
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = described["model"]["vocab"]
    vocabulary["re"], vocabulary["gr"] = vocabulary.pop("ÿ"), vocabulary.pop("þ")
    described["model"]["merges"] = [["r", "e"], ["g", "r"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    body = {"model": "base", "prompt": "say ", "max_tokens": 8, "guided_regex": "(red|green|rose)"}
    async with serving(replace(tiny, model=tmp_path)) as server:
        for wanted in (1, 2, 8):
            search = {"use_beam_search": True, "n": wanted, "best_of": 8, "logprobs": 0}
            answer = (await server.http.post("/v1/completions", json=body | search)).json()
            choices = answer["choices"]
            assert len({choice["text"] for choice in choices}) == len(choices) == min(wanted, 3)
            likely = [sum(one["logprobs"]["token_logprobs"]) / len(one["logprobs"]["tokens"]) for one in choices]
            assert likely == sorted(likely, reverse=True), "of each text its likeliest spelling"
