"""Whether the arguments of the calls in an answer follow their functions' schemas: one bit for the receipt."""

from __future__ import annotations

import asyncio
import json

from protocol.json_text import is_json
from serving.constraints import TenantGrammars
from serving.http.rules import ToolUse
from serving.tokenization.tool_calls import CallArguments, CallStart, ToolCallParser

SECONDS = 1.0  # that an answer waits for the judgement of all its calls; without it, nothing is said of them


class CallJudge:
    """The judge of one request's calls. Nothing is kept of them."""

    def __init__(self, use: ToolUse, grammars: TenantGrammars) -> None:
        self._tools = {tool.name: tool for tool in use.callable}
        self._forced, self._grammars = use.forced, grammars

    async def fit(self, text: str) -> bool | None:
        """Return whether all calls in a text fit; None where there is none, or it cannot be told in time."""
        found = _calls(text, forced=self._forced)
        if not found:
            return None
        try:
            async with asyncio.timeout(SECONDS):
                verdicts = [await self._fits(name, arguments) for name, arguments in found]
        except TimeoutError:
            return None
        return False if False in verdicts else None if None in verdicts else True

    async def _fits(self, name: str, arguments: str) -> bool | None:
        tool = self._tools.get(name)
        if tool is None:
            return False
        if not arguments.lstrip().startswith("{") or not is_json(arguments):  # cut short, or never an object
            return False
        return await self._grammars.follows(json.dumps(tool.argument_schema), arguments)


def _calls(text: str, *, forced: bool) -> list[tuple[str, str]]:
    """Return name and arguments of each call in a text."""
    parser = ToolCallParser(forced=forced)
    names: list[str] = []
    arguments: dict[int, str] = {}
    for event in [*parser.push(text), *parser.finish(cut=False)]:
        if isinstance(event, CallStart):
            names.append(event.name)
            arguments[event.index] = ""
        elif isinstance(event, CallArguments):
            arguments[event.index] += event.text
    return list(zip(names, arguments.values(), strict=True))
