"""The MCP server of `intarsia mcp`, over standard input and output: the tools of `agent_tools` by the official SDK.

The SDK is the extra `mcp`, imported only here: the command alone stays light.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from creator_cli.agent_tools import AgentTools, explained
from creator_cli.errors import CliError
from creator_cli.http_client import HangUp
from creator_cli.standard_streams import hold_back_the_end

_INSTRUCTIONS = (
    "Intarsia sells predictions of small models for one industry each. Find a model with search, ask quote what a"
    " prediction costs, buy it with predict. All predictions share one run with a budget, a number of calls and a"
    " deadline; run shows what is left. Amounts are US dollars and nano-dollars (1e-9 dollars)."
)


def serve(tools: AgentTools) -> None:
    """Answer an MCP client until it goes; the run is closed then. Raises CliError where the SDK is missing.

    A client that ends its input gets the answers that are still to come. A call that it takes back, or whose answer it
    cannot read any more, is broken off: what was not delivered costs nothing.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError:
        raise CliError("the MCP SDK is missing", hint='pip install "mcp>=2.3,<3"', code="mcp_missing") from None

    def told(tool: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(tool)
        async def call(*arguments: Any, **named: Any) -> Any:
            hang_up = HangUp()
            try:
                return await asyncio.to_thread(hang_up.call, tool, *arguments, **named)
            except CliError as error:
                raise ToolError(explained(error)) from None
            except asyncio.CancelledError:
                hang_up.pull()
                raise

        return call

    server = MCPServer("intarsia", version=version("intarsia"), instructions=_INSTRUCTIONS, log_level="WARNING")
    for tool, reads in ((tools.search, True), (tools.quote, True), (tools.predict, False), (tools.run, True)):
        server.add_tool(told(tool), annotations=ToolAnnotations(read_only_hint=reads, destructive_hint=False))
    hold_back_the_end()
    try:
        server.run("stdio")
    finally:
        with contextlib.suppress(CliError):  # its deadline closes it
            tools.close()
