"""Rules for the form of an answer, from a request body: response_format, guided extras, functions to call."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from serving.constraints import GrammarError, GrammarSpec, TenantGrammars, json_spec
from serving.core import Constraint
from serving.http.errors import ApiError
from serving.http.schema import ChatBody, GenerationBody, NamedChoice, require
from serving.tokenization.tools import Tool, call_grammar

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions of one request. told: functions in the prompt; callable: functions that may be called."""

    told: tuple[Tool, ...] = ()
    callable: tuple[Tool, ...] = ()
    forced: bool = False
    named: bool = False
    parallel: bool = True

    @property
    def parses(self) -> bool:
        """Return whether the answer is searched for calls."""
        return bool(self.callable)


def tool_use(body: GenerationBody) -> ToolUse:
    """Return the functions that a body offers and allows. Raises ApiError 400."""
    if not isinstance(body, ChatBody):
        return ToolUse()
    choice, parallel = body.tool_choice, body.parallel_tool_calls is not False
    if not body.tools:
        require(choice in (None, "none", "auto"), "tool_choice", "needs tools")
        return ToolUse()
    require(len(body.tools) <= MAX_TOOLS, "tools", f"must be at most {MAX_TOOLS}")
    tools = []
    for index, spec in enumerate(body.tools):
        require(spec.type == "function", f"tools[{index}].type", "must be function")
        one = spec.function
        fine = _NAME.fullmatch(one.name) is not None
        require(fine, f"tools[{index}].function.name", "must be 1 to 64 letters, digits, '_', '.' or '-'")
        tools.append(Tool(one.name, one.description, one.parameters, bool(one.strict)))
    names = [tool.name for tool in tools]
    require(len(set(names)) == len(names), "tools", "must have distinct names")
    told = tuple(tools)
    if isinstance(choice, NamedChoice):
        require(choice.type == "function", "tool_choice", "must name a function")
        chosen = tuple(tool for tool in tools if tool.name == choice.function.name)
        require(bool(chosen), "tool_choice", "names a function that is not among the tools")
        return ToolUse(told, chosen, forced=True, named=True, parallel=False)
    require(choice in (None, "none", "auto", "required"), "tool_choice", "must be none, auto, required, or a function")
    if choice == "none":
        return ToolUse(told)
    return ToolUse(told, told, forced=choice == "required", parallel=parallel)


async def constraint(body: GenerationBody, use: ToolUse, compiler: TenantGrammars) -> Constraint | None:
    """Return the grammar that the answer must follow, or None for free text.

    Functions that may be called and a response_format go together: the answer is calls, or it follows the format.
    Raises ApiError 400 for a grammar that does not compile or that no text follows.
    """
    guided = [name for name in ("guided_regex", "guided_grammar") if getattr(body, name) is not None]
    wanted = [*guided, *(["response_format"] if _wants_format(body) else [])]
    require(len(wanted) <= 1, wanted[-1] if wanted else "", f"cannot be combined with {wanted[0] if wanted else ''}")
    if guided and use.callable:
        require(False, guided[0], "cannot be combined with tools that may be called; set tool_choice to none")
    # Without any of these, a model that is free to call is free in what it writes.
    bound = use.forced or (bool(use.callable) and not use.parallel) or any(tool.strict for tool in use.callable)
    try:
        if guided:
            return await compiler.compile(_guided(body, guided[0]))
        answer = json_spec(_answer_schema(body)) if wanted else None
        if use.callable and (bound or answer is not None):
            return await compiler.compile(_calls(body, use, answer))
        return None if answer is None else await compiler.compile(answer)
    except GrammarError as error:
        param = error.param or (wanted[0] if wanted else "tools")
        raise ApiError(
            400, f"'{param}'{_whose(body, param)} cannot be used: {error}.", code="invalid_grammar", param=param
        ) from None


def _wants_format(body: GenerationBody) -> bool:
    return (body.response_format or {}).get("type", "text") != "text"


def _guided(body: GenerationBody, name: str) -> GrammarSpec:
    if name == "guided_regex":
        return GrammarSpec("regex", body.guided_regex or "")
    return GrammarSpec("lark", body.guided_grammar or "")


def _calls(body: GenerationBody, use: ToolUse, answer: GrammarSpec | None) -> GrammarSpec:
    assert isinstance(body, ChatBody)
    places = {spec.function.name: index for index, spec in enumerate(body.tools or ())}
    params = [f"tools[{places[tool.name]}].function.parameters" for tool in use.callable]
    return call_grammar(use.callable, params, parallel=use.parallel, forced=use.forced, answer=answer)


def _whose(body: GenerationBody, param: str) -> str:
    """Return the name of the function that a field belongs to, for a message."""
    index = param.removeprefix("tools[").partition("]")[0]
    if not isinstance(body, ChatBody) or not body.tools or not index.isdecimal():
        return ""
    return f" of the function '{body.tools[int(index)].function.name}'"


def _answer_schema(body: GenerationBody) -> dict[str, Any] | bool:
    wanted = body.response_format or {}
    if wanted.get("type") == "json_object":
        return {"type": "object"}
    require(wanted.get("type") == "json_schema", "response_format", "must be text, json_object or json_schema")
    described = wanted.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    require(isinstance(schema, dict | bool), "response_format", "must hold json_schema.schema")
    assert isinstance(schema, dict | bool)
    return schema
