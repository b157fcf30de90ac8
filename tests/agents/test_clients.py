"""OpenAI's package, Agents SDK, LangChain, LiteLLM, LlamaIndex, unmodified, and the examples of docs/agents.md."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from billing.models import Run, Usage
from devstack.state import REPOSITORY
from marketplace.catalog.models import Price
from tests import agents_setup
from tests.agents.scripted_model import next_turn
from tests.marketplace.gateway.conftest import World, _own_database_url, money, shared_gateway, world

pytestmark = pytest.mark.asyncio(loop_scope="module")

__all__ = ["_own_database_url", "shared_gateway", "world"]

SAID, CITY = "The answer is 42.", '{"city": "Ulm"}'
RAIN, HANDED = "The tool says: It rains in Ulm.", ["expert", 'The tool says: {"assistant": "expert"}']
SDK = {"plain": SAID, "streamed": [SAID, SAID], "typed": 42, "functions": RAIN, "hand-off": HANDED}
LANGCHAIN = {"streamed": SAID, "typed": 42, "functions": ["Weather"]}
EXPECTED: dict[str, dict[str, Any]] = {
    "agents": {
        "example 0": RAIN,
        "example 1": SAID,
        "example 2": SAID,
        "openai: chat, streamed": [SAID, 15],
        "openai: functions": ["tool_calls", "The tool says: rain in Ulm"],
        "openai: functions, streamed": CITY,
        "openai: structured output": 42,
        "openai: completion": SAID,
        "openai: embeddings": [0.6, 0.8],
        "openai: models": [["maker/thing"], "maker/thing"],
        "openai: response": SAID,
        **{f"agents, {api}: {way}": came for api in ("responses", "chat") for way, came in SDK.items()},
        **{f"langchain, {api}: {way}": came for api in ("chat", "responses") for way, came in LANGCHAIN.items()},
        "litellm: streamed": SAID,
        "litellm: functions": "weather",
        "litellm: response": "completed",
    },
    "llama-index": {
        "example 0": SAID,
        "llama-index: streamed": SAID,
        "llama-index: functions": ["weather"],
        "llama-index: completion": SAID,
    },
}


async def ways(group: str, world: World) -> dict[str, Any]:
    """Everything that the group's process tried, and what came of it."""
    process = await asyncio.create_subprocess_exec(
        *agents_setup.alone(),
        str(Path(__file__).with_name("ways.py")),
        group,
        str(REPOSITORY / "docs" / "agents.md"),
        env=agents_setup.environment(group)
        | {"LITELLM_LOCAL_MODEL_COST_MAP": "true"}  # or it looks for prices on the network
        | {"OPENAI_BASE_URL": f"{world.url}/v1", "OPENAI_API_KEY": world.key_text, "MODEL": "maker/thing"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()[-3000:]
    found: dict[str, Any] = json.loads(said.decode().splitlines()[-1])
    return found


@pytest.mark.deep
async def test_every_way_to_call_a_model_works_with_the_packages_as_they_are_published(world: World) -> None:
    world.replica.next_turn, world.replica.finish = next_turn, "stop"
    await sync_to_async(Price.objects.create)(
        model=world.model,
        input_micro_usd_per_mtok=1_000_000,
        cached_input_micro_usd_per_mtok=100_000,
        output_micro_usd_per_mtok=3_000_000,
        embedding_micro_usd_per_mtok=1_000_000,
    )
    agents, llama_index = await asyncio.gather(*(ways(group, world) for group in EXPECTED))
    of_run = agents.pop("example 3")
    # Way by way, so that a failure shows the way's own traceback.
    assert [way for way in agents.items() if way not in EXPECTED["agents"].items()] == []
    assert [way for way in llama_index.items() if way not in EXPECTED["llama-index"].items()] == []
    assert {"agents": agents, "llama-index": llama_index} == EXPECTED
    run = await sync_to_async(lambda: Run.objects.select_related("node").get())()
    assert run.calls == 1 and of_run == str(run.node.spent_total_nano_usd) != "0"
    charged = await sync_to_async(Usage.objects.count)()
    assert charged == len(world.replica.served) and (await money(world))["held"] == 0
