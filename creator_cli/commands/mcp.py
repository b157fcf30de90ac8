"""mcp."""

from __future__ import annotations

from typing import Annotated

import typer

from creator_cli.agent_tools import AgentTools, RunTerms
from creator_cli.errors import Refused
from creator_cli.mcp_server import serve
from creator_cli.names import parse_dollars
from creator_cli.session import load_session
from creator_cli.settings import load_settings


def mcp(
    budget: Annotated[str, typer.Option(metavar="USD", help="Dollars that all predictions together may cost.")] = "1",
    max_calls: Annotated[int, typer.Option(min=1, max=100_000, help="Predictions at most.")] = 100,
    deadline: Annotated[
        int, typer.Option(min=1, max=604_800, metavar="SECONDS", help="From the first prediction on.")
    ] = 28_800,
) -> None:
    """Serve MCP over standard input and output: an agent searches, quotes and buys within one budget.

    Example: intarsia mcp --budget 0.50 --max-calls 20 --deadline 3600
    """
    nano_usd = parse_dollars(budget, decimals=9, field="budget")
    if nano_usd < 1:
        raise Refused("a budget must be more than 0 dollars", field="budget")
    serve(AgentTools(load_session(load_settings()), RunTerms(nano_usd, max_calls, deadline)))
