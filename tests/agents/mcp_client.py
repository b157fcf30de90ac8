"""Run with the MCP SDK on the path: its own client starts the server as docs/agents.md configures it, and uses it.

python mcp_client.py CONFIGURATION MODEL    prints one JSON object: what each step came to
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters


def seen(result: Any) -> Any:
    """A tool's result as an agent sees it: the values, or the text of its refusal."""
    return result.content[0].text if result.is_error else result.structured_content


async def main(configuration: str, model: str) -> None:
    """Do what an agent does: look at the tools, search, quote, predict until the run's calls are used."""
    configured = json.loads(configuration)["mcpServers"]["intarsia"]
    # The package is not installed as a command here: its module is.
    environment = configured["env"] | {"PYTHONPATH": os.environ["PYTHONPATH"]}
    arguments = ["-m", "creator_cli", *configured["args"]]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=environment)
    said: dict[str, Any] = {}
    async with Client(server) as client:
        said["tools"] = sorted(tool.name for tool in (await client.list_tools()).tools)
        said["search"] = seen(await client.call_tool("search", {"query": "thing"}))
        question = {"model": model, "message": "Hello", "max_tokens": 8}
        said["quote"] = seen(await client.call_tool("quote", question))
        said["predict"] = [seen(await client.call_tool("predict", question)) for _ in range(3)]
        said["unknown"] = seen(await client.call_tool("predict", question | {"model": "maker/nothing"}))
        said["run"] = seen(await client.call_tool("run", {}))
    print(json.dumps(said))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
