"""Rules for the form of an answer, from a request body: response_format, guided extras, functions to call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protocol.requests.bodies import ChatBody, GenerationBody, NamedChoice
from protocol.requests.checks import binds_calls, format_schema
from serving.constraints import GrammarError, GrammarSpec, TenantGrammars, json_spec
from serving.core import Constraint
from serving.http.errors import ApiError
from serving.tokenization.tools import Tool, call_grammar

_GUIDED: dict[str, Literal["regex", "lark"]] = {"guided_regex": "regex", "guided_grammar": "lark"}


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
    """Return the functions that a body offers and allows."""
    if not isinstance(body, ChatBody) or not body.tools:
        return ToolUse()
    choice, parallel = body.tool_choice, body.parallel_tool_calls is not False
    specs = [spec.function for spec in body.tools]
    told = tuple(Tool(one.name, one.description, one.parameters, bool(one.strict)) for one in specs)
    if isinstance(choice, NamedChoice):
        chosen = tuple(tool for tool in told if tool.name == choice.function.name)
        return ToolUse(told, chosen, forced=True, named=True, parallel=False)
    if choice == "none":
        return ToolUse(told)
    return ToolUse(told, told, forced=choice == "required", parallel=parallel)


async def constraint(
    body: GenerationBody, use: ToolUse, compiler: TenantGrammars, *, tight: bool = False
) -> Constraint | None:
    """Return the grammar that the answer must follow, or None for free text.

    Functions that may be called and a response_format go together: the answer is calls, or it follows the format.
    tight: a creator's contract asks for the form, whose white space the answer's length may not hang on.
    Raises ApiError 400 for a grammar that does not compile or that no text follows.
    """
    try:
        for name, kind in _GUIDED.items():
            if (text := getattr(body, name)) is not None:
                param = name
                return await compiler.compile(GrammarSpec(kind, text))
        schema, param = format_schema(body), "response_format"
        answer = None if schema is None else json_spec(schema, tight=tight)
        if use.callable and (answer is not None or binds_calls(body)):
            param = "tools" if answer is None else param
            return await compiler.compile(_calls(body, use, answer))
        return None if answer is None else await compiler.compile(answer)
    except GrammarError as error:
        param = error.param or param
        raise ApiError(
            400, f"'{param}'{_whose(body, param)} cannot be used: {error}.", code="invalid_grammar", param=param
        ) from None


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
