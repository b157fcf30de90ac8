"""Functions that a model may call: how they are told to it, and how its calls are written.

One notation is spoken, that of Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. A chat template
that knows it renders functions, calls and results itself; for every other template they are written as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.constraints import GrammarSpec, embedded_schema

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_INSTRUCTIONS = (
    "# Tools\n\nYou may call one or more functions to help with the user's request. Their signatures:\n"
    "<tools>\n{tools}\n</tools>\n\n"
    "For each call, answer with a JSON object holding the function's name and arguments, within tool_call tags:\n"
    '<tool_call>\n{{"name": <function-name>, "arguments": <arguments-json-object>}}\n</tool_call>'
)


@dataclass(frozen=True, slots=True)
class Tool:
    """One function. parameters: its arguments' JSON schema; strict: a call of it must follow the schema."""

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    strict: bool = False

    def as_json(self) -> dict[str, Any]:
        """As OpenAI writes it, which is what chat templates read."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}

    @property
    def argument_schema(self) -> dict[str, Any]:
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return {"type": "object", **self.parameters}


def as_text(messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """`messages` for a template that knows no functions: described in the system message, calls written out in the
    assistant's text, results as a user's message."""
    out: list[dict[str, Any]] = []
    for message in messages:
        content = message["content"]
        if calls := message.get("tool_calls"):
            written = [_write_call(call["function"]) for call in calls]
            content = "\n".join([content, *written] if content else written)
        if message["role"] == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
            if out and out[-1].get("results"):
                out[-1]["content"] += "\n" + content
                continue
            out.append({"role": "user", "content": content, "results": True})
            continue
        out.append({"role": message["role"], "content": content})
    plain = [{"role": message["role"], "content": message["content"]} for message in out]
    if not tools:
        return plain
    listed = "\n".join(json.dumps(tool.as_json(), ensure_ascii=False) for tool in tools)
    told = _INSTRUCTIONS.format(tools=listed)
    if plain and plain[0]["role"] == "system":
        first = plain[0]["content"]
        return [{"role": "system", "content": f"{first}\n\n{told}" if first else told}, *plain[1:]]
    return [{"role": "system", "content": told}, *plain]


def call_grammar(tools: Sequence[Tool], *, parallel: bool, free_text: bool) -> GrammarSpec:
    """Calls of these functions whose arguments follow their schemas.

    free_text: any text may surround them, and there may be none; otherwise the answer is one call, or with `parallel`
    one after another. Raises serving.constraints.GrammarError.
    """
    names = [f"call_{index}" for index in range(len(tools))]
    lines = ["%llguidance {}"]
    if free_text:
        repeat = "*" if parallel else "?"
        lines += [f"start: (opened_call){repeat} rest", "rest: TEXT", "TEXT: /(.|\\n)*/"]
        lines += [f"opened[lazy]: TEXT {_lark(OPEN)}", f"opened_call: opened ({' | '.join(names)})"]
    else:
        lines.append("start: one" + (' ("\\n" one)*' if parallel else ""))
        lines.append(f"one: {_lark(OPEN)} ({' | '.join(names)})")
    for name, tool in zip(names, tools, strict=True):
        head, tail = '\n{"name": ' + json.dumps(tool.name) + ', "arguments": ', "}\n" + CLOSE
        schema = json.dumps(embedded_schema(tool.argument_schema), ensure_ascii=False)
        lines.append(f"{name}: {_lark(head)} {name}_arguments {_lark(tail)}")
        lines.append(f"{name}_arguments: %json {schema}")
    return GrammarSpec("lark", "\n".join(lines))


def _lark(text: str) -> str:
    return json.dumps(text)


def _write_call(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"{OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{CLOSE}"
