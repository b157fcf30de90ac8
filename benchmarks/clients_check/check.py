"""Agent frameworks against a running platform, unmodified: which of their ways to call a model work.

    python3 -m venv clients-env && clients-env/bin/pip install -r benchmarks/clients_check/requirements.txt
    INTARSIA_BASE_URL=http://127.0.0.1:8000/v1 INTARSIA_API_KEY=ik_… \
      clients-env/bin/python benchmarks/clients_check/check.py carepath/triage

Prints one line for each way, and ends with 1 if one failed. The packages are no dependencies of ours.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled
from langchain_openai import ChatOpenAI
from litellm import aresponses
from llama_index.llms.openai_like import OpenAILike
from openai import AsyncOpenAI

URL, KEY = os.environ["INTARSIA_BASE_URL"], os.environ["INTARSIA_API_KEY"]
SHORT = ModelSettings(max_tokens=64)


@function_tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"It rains in {city}."


def agent(model: Any, **changes: Any) -> Agent:
    """Return an agent of the SDK with its default API, which is Responses."""
    return Agent(name="helper", model=model, **{"model_settings": SHORT, **changes})


async def agents_plain(model: Any) -> str:
    return str((await Runner.run(agent(model), "Hello")).final_output)


async def agents_streamed(model: Any) -> str:
    run = Runner.run_streamed(agent(model), "Hello")
    return f"{len([event async for event in run.stream_events()])} events, {run.final_output!r}"


async def agents_tools(model: Any) -> str:
    forced = ModelSettings(max_tokens=64, tool_choice="required")
    asked = agent(model, tools=[weather], model_settings=forced, tool_use_behavior="stop_on_first_tool")
    return str((await Runner.run(asked, "How is the weather in Ulm?")).final_output)


async def agents_hand_off(model: Any) -> str:
    forced = ModelSettings(max_tokens=64, tool_choice="required")
    first = agent(model, handoffs=[Agent(name="expert", model=model, model_settings=SHORT)], model_settings=forced)
    return (await Runner.run(first, "Hello")).last_agent.name


async def langchain(name: str, **changes: Any) -> str:
    chat = ChatOpenAI(model=name, base_url=URL, api_key=KEY, max_tokens=64, **changes)
    parts = [str(part.content) async for part in chat.astream("Hello")]
    return f"{(await chat.ainvoke('Hello')).text!r}, {len(parts)} parts"


async def litellm(name: str) -> str:
    answer = await aresponses(model=f"openai/{name}", api_base=URL, api_key=KEY, input="Hello", max_output_tokens=64)
    return str(answer.status)


async def llama_index(name: str) -> str:
    llm = OpenAILike(model=name, api_base=URL, api_key=KEY, max_tokens=64, context_window=1024, is_chat_model=True)
    return str(await llm.acomplete("Hello, how are you?"))


async def main(name: str) -> int:
    """Try every way; return how many failed."""
    from agents import OpenAIResponsesModel

    set_tracing_disabled(True)
    model = OpenAIResponsesModel(model=name, openai_client=AsyncOpenAI(base_url=URL, api_key=KEY))
    ways: dict[str, Callable[[], Awaitable[str]]] = {
        "agents, plain": lambda: agents_plain(model),
        "agents, streamed": lambda: agents_streamed(model),
        "agents, functions": lambda: agents_tools(model),
        "agents, hand-off": lambda: agents_hand_off(model),
        "LangChain, chat": lambda: langchain(name),
        "LangChain, responses": lambda: langchain(name, use_responses_api=True),
        "LiteLLM, responses": lambda: litellm(name),
        "LlamaIndex, chat": lambda: llama_index(name),
    }
    failed = 0
    for title, way in ways.items():
        try:
            print(f"{title:24} works   {await way()}")
        except Exception as error:
            failed += 1
            print(f"{title:24} FAILED  {type(error).__name__}: {error}")
    return failed


if __name__ == "__main__":
    sys.exit(min(1, asyncio.run(main(sys.argv[1]))))
