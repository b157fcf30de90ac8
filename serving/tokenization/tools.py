"""Functions that a model may call: how a prompt describes them, and how the model writes its calls.

The only notation is that of Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. A chat template
that knows this notation renders functions, calls and results itself; every other template gets them as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.constraints import GrammarError, GrammarSpec, SchemaPart, embedded_schema

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_INSTRUCTIONS = (
    "# Tools\n\nYou may call one or more functions to help with the user's request. Their signatures:\n"
    "<tools>\n{tools}\n</tools>\n\n"
    "For each call, answer with a JSON object holding the function's name and arguments, within tool_call tags:\n"
    '<tool_call>\n{{"name": <function-name>, "arguments": <arguments-json-object>}}\n</tool_call>'
)


class RawArguments(dict[str, Any]):
    """Arguments of a call that are no JSON object, such as those of a call that was cut short: `text` as it was said.

    A template that walks through arguments finds none; one that writes them as JSON writes the text.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


@dataclass(frozen=True, slots=True)
class Tool:
    """One function. parameters: its arguments' JSON schema; strict: a call of it must follow the schema."""

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    strict: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the function in OpenAI's form, which chat templates read."""
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
    """Return `messages` for a template without functions.

    The system message describes the functions, the assistant's text contains the calls, and results are user messages.
    """
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


_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def call_grammar(
    tools: Sequence[Tool], params: Sequence[str], *, parallel: bool, forced: bool, answer: GrammarSpec | None = None
) -> GrammarSpec:
    """Return the grammar for calls of these functions; `params` names the field of the request that each comes from.

    forced: the output is one call, or with `parallel` several calls in a row, whose arguments follow their schemas.
    Otherwise only those of strict functions do, and the output is such calls or `answer`, or, without an answer's
    grammar, any text with calls in it: several with `parallel`, else at most one, which ends the output. Raises
    serving.constraints.GrammarError.
    """
    names = [f"call_{index}" for index in range(len(tools))]
    one_of = " | ".join(names)
    row = 'one ("\\n" one)*' if parallel else "one"
    lines = ["%llguidance {}"]
    parts: list[SchemaPart] = []
    if forced or answer is not None:
        lines += [f"start: {row}" if forced or answer is None else f"start: {row} | answer"]
        lines += [f"one: {_lark(OPEN)} ({one_of})"]
    else:
        lines += ["start: (opened_call)* rest" if parallel else "start: opened_call | rest", "rest: TEXT"]
        lines += ["TEXT: /(.|\\n)*/", f"opened[lazy]: TEXT {_lark(OPEN)}", f"opened_call: opened ({one_of})"]
    if answer is not None and not forced:
        lines.append(f"answer: %json {answer.text}")
        parts += answer.parts or (SchemaPart("response_format", answer.text),)
    for name, tool, param in zip(names, tools, params, strict=True):
        head, tail = '\n{"name": ' + json.dumps(tool.name) + ', "arguments": ', "}\n" + CLOSE
        schema = json.dumps(_arguments_of(tool, param, bound=forced or tool.strict), ensure_ascii=False)
        parts.append(SchemaPart(param, schema))
        lines.append(f"{name}: {_lark(head)} {name}_arguments {_lark(tail)}")
        lines.append(f"{name}_arguments: %json {schema}")
    return GrammarSpec("lark", "\n".join(lines), tuple(parts))


def _arguments_of(tool: Tool, param: str, *, bound: bool) -> dict[str, Any]:
    try:
        return embedded_schema(tool.argument_schema if bound else dict(_ANY_OBJECT))
    except GrammarError as error:
        raise GrammarError(str(error), param) from None


def _lark(text: str) -> str:
    return json.dumps(text)


def _write_call(function: Mapping[str, Any]) -> str:
    name, arguments = function["name"], function["arguments"]
    if isinstance(arguments, RawArguments):
        written = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments.text}}}'
    else:
        written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{OPEN}\n{written}\n{CLOSE}"
