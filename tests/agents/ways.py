"""Run in an environment of its own (tests/agents_setup.py): ways to call a model, each by an unmodified package.

    python -S ways.py GROUP PAGE    OPENAI_BASE_URL, OPENAI_API_KEY and MODEL in the environment

Runs the examples of docs/agents.md that the group can import, then the group's ways; prints one JSON object: what each
came to, or the error that it raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

MODEL = os.environ["MODEL"]
TEXT = "a text of more than ten tokens"
HELLO: Any = [{"role": "user", "content": "Hello"}]
WEATHER: Any = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
Way = Callable[[], Awaitable[object]]


def openai_ways() -> dict[str, Way]:
    """The package itself, through chat completions, completions and what lies beside them."""
    from openai import AsyncOpenAI
    from pydantic import BaseModel

    client = AsyncOpenAI(max_retries=0)
    chats, tools = client.chat.completions, [{"type": "function", "function": WEATHER}]

    class Answer(BaseModel):
        number: int

    async def streamed() -> object:
        stream = await chats.create(model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True})
        parts = [part async for part in stream]
        text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        return text, parts[-1].usage.total_tokens

    async def functions() -> object:
        first = await chats.create(model=MODEL, messages=HELLO, tools=tools, tool_choice="required")
        (call,) = first.choices[0].message.tool_calls
        arguments = json.loads(call.function.arguments)
        said = {"role": "tool", "tool_call_id": call.id, "content": f"rain in {arguments['city']}"}
        turns = [*HELLO, first.choices[0].message.model_dump(exclude_none=True), said]
        second = await chats.create(model=MODEL, messages=turns, tools=tools)
        return first.choices[0].finish_reason, second.choices[0].message.content

    async def functions_streamed() -> object:
        async with chats.stream(model=MODEL, messages=HELLO, tools=tools, tool_choice="required") as stream:
            final = await stream.get_final_completion()
        return final.choices[0].message.tool_calls[0].function.arguments

    async def parsed() -> object:
        answer = await chats.parse(model=MODEL, messages=HELLO, response_format=Answer)
        return answer.choices[0].message.parsed.number

    async def completion() -> object:
        answer = await client.completions.create(model=MODEL, prompt=TEXT, max_tokens=8)
        return answer.choices[0].text

    async def embeddings() -> object:
        return (await client.embeddings.create(model=MODEL, input=TEXT)).data[0].embedding

    async def models() -> object:
        return [one.id async for one in client.models.list()], (await client.models.retrieve(MODEL)).id

    async def response() -> object:
        return (await client.responses.create(model=MODEL, input="Hello", max_output_tokens=64)).output_text

    return {
        "openai: chat, streamed": streamed,
        "openai: functions": functions,
        "openai: functions, streamed": functions_streamed,
        "openai: structured output": parsed,
        "openai: completion": completion,
        "openai: embeddings": embeddings,
        "openai: models": models,
        "openai: response": response,
    }


def agents_sdk_ways() -> dict[str, Way]:
    """The Agents SDK by its default, which is Responses, and by chat completions."""
    from agents import (
        Agent,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI
    from pydantic import BaseModel

    set_tracing_disabled(True)

    class Answer(BaseModel):
        number: int

    @function_tool
    def weather(city: str) -> str:
        """Return the weather of a city."""
        return f"It rains in {city}."

    def ways(title: str, model: Any) -> dict[str, Way]:
        def agent(*, forced: bool = False, **changes: Any) -> Any:
            settings = ModelSettings(max_tokens=64, tool_choice="required" if forced else None)
            return Agent(name="helper", model=model, model_settings=settings, **changes)

        async def plain() -> object:
            return (await Runner.run(agent(), "Hello")).final_output

        async def streamed() -> object:
            run = Runner.run_streamed(agent(), "Hello")
            deltas = [event.data.delta async for event in run.stream_events() if _is_text(event)]
            return "".join(deltas), run.final_output

        async def typed() -> object:
            return (await Runner.run(agent(output_type=Answer), "Hello")).final_output.number

        async def functions() -> object:
            return (await Runner.run(agent(forced=True, tools=[weather]), "How is the weather?")).final_output

        async def hand_off() -> object:
            expert = Agent(name="expert", model=model, model_settings=ModelSettings(max_tokens=64))
            run = await Runner.run(agent(forced=True, handoffs=[expert]), "Hello")
            return run.last_agent.name, run.final_output

        found = {"plain": plain, "streamed": streamed, "typed": typed, "functions": functions, "hand-off": hand_off}
        return {f"agents, {title}: {name}": way for name, way in found.items()}

    client = AsyncOpenAI(max_retries=0)
    return ways("responses", OpenAIResponsesModel(model=MODEL, openai_client=client)) | ways(
        "chat", OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
    )


def _is_text(event: Any) -> bool:
    return event.type == "raw_response_event" and event.data.type == "response.output_text.delta"


def langchain_ways() -> dict[str, Way]:
    """LangChain by chat completions and by Responses."""
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel, Field

    class Answer(BaseModel):
        number: int

    class Weather(BaseModel):
        """Return the weather of a city."""

        city: str = Field(description="the city")

    def ways(title: str, **changes: Any) -> dict[str, Way]:
        chat = ChatOpenAI(model=MODEL, max_tokens=64, max_retries=0, **changes)

        async def streamed() -> object:
            return "".join([part.text async for part in chat.astream("Hello")])

        async def typed() -> object:
            return (await chat.with_structured_output(Answer, method="json_schema").ainvoke("Hello")).number

        async def functions() -> object:
            bound = chat.bind_tools([Weather], tool_choice="required")
            return [call["name"] for call in (await bound.ainvoke("Hello")).tool_calls]

        found = {"streamed": streamed, "typed": typed, "functions": functions}
        return {f"langchain, {title}: {name}": way for name, way in found.items()}

    return ways("chat") | ways("responses", use_responses_api=True)


def litellm_ways() -> dict[str, Way]:
    """LiteLLM by both APIs."""
    import litellm

    name = f"openai/{MODEL}"
    tools = [{"type": "function", "function": WEATHER}]

    async def streamed() -> object:
        stream = await litellm.acompletion(model=name, messages=HELLO, stream=True)
        return "".join([part.choices[0].delta.content or "" async for part in stream])

    async def functions() -> object:
        answer = await litellm.acompletion(model=name, messages=HELLO, tools=tools, tool_choice="required")
        return answer.choices[0].message.tool_calls[0].function.name

    async def response() -> object:
        return (await litellm.aresponses(model=name, input="Hello", max_output_tokens=64)).status

    return {"litellm: streamed": streamed, "litellm: functions": functions, "litellm: response": response}


def llama_index_ways() -> dict[str, Way]:
    """LlamaIndex's client of endpoints like OpenAI's."""
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    terms: dict[str, Any] = {
        "model": MODEL,
        "api_base": os.environ["OPENAI_BASE_URL"],
        "api_key": os.environ["OPENAI_API_KEY"],
        "context_window": 2048,
        "max_tokens": 64,
        "max_retries": 0,
        "is_function_calling_model": True,
    }
    llm = OpenAILike(is_chat_model=True, **terms)

    async def streamed() -> object:
        stream = await llm.astream_chat([ChatMessage(role="user", content="Hello")])
        return "".join([part.delta or "" async for part in stream])

    async def functions() -> object:
        def weather(city: str) -> str:
            return f"It rains in {city}."

        answer = await llm.achat_with_tools(
            [FunctionTool.from_defaults(fn=weather)], user_msg="Hello", tool_required=True
        )
        return [call.tool_name for call in llm.get_tool_calls_from_response(answer)]

    async def completion() -> object:
        return str(await OpenAILike(is_chat_model=False, **terms).acomplete(TEXT))

    return {
        "llama-index: streamed": streamed,
        "llama-index: functions": functions,
        "llama-index: completion": completion,
    }


GROUPS: dict[str, tuple[Callable[[], dict[str, Way]], ...]] = {
    "agents": (openai_ways, agents_sdk_ways, langchain_ways, litellm_ways),
    "llama-index": (llama_index_ways,),
}


def example(block: str) -> str:
    """Run an example of the page as printed; return what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(block, "docs/agents.md", "exec"), {"__name__": "example"})
    return said.getvalue().strip()


def main(group: str, page: str) -> int:
    """Try everything; the errors are in what is printed."""
    found: dict[str, object] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", Path(page).read_text(), re.MULTILINE | re.DOTALL)
    own = [one for one in blocks if ("llama_index" in one) == (group == "llama-index")]
    mine = [one.replace("acme/assistant", MODEL) for one in own]

    async def asynchronous() -> None:
        for make in GROUPS[group]:
            for title, way in make().items():
                try:
                    found[title] = await way()
                except Exception:
                    found[title] = {"error": traceback.format_exc(limit=-6)}

    for number, block in enumerate(mine):
        try:
            found[f"example {number}"] = example(block)
        except Exception:
            found[f"example {number}"] = {"error": traceback.format_exc(limit=-6)}
    asyncio.run(asynchronous())
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
