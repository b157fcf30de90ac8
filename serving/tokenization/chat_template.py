"""Chat templates: Jinja2 in its immutable sandbox, with everything that Hugging Face's templates may use.

The environment is the one of transformers' `apply_chat_template`: its white space, filters, blocks and variables, so
that a template of any model of a served family gives the text that it gave in training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from serving.tokenization.output import without_surrogates
from serving.tokenization.tools import OPEN, RawArguments, Tool, as_text

# Faults of a template met while it renders: it adds to a field that is missing, divides by a length of 0, and so on.
_FAULTS = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)


class ChatTemplateError(ValueError):
    """The template's refusal of messages (its own `raise_exception`, or a field it needs is missing)."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; a prompt holds them as they are."""

    tags = {"generation"}  # noqa: RUF012  Jinja's own attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _raise_exception(message: str) -> None:
    raise ChatTemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, RawArguments):
        return value.text
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


class _Compiled:
    """One template. knows_tools: it writes functions and calls in the notation of `serving.tokenization.tools`."""

    def __init__(self, source: str) -> None:
        environment = _environment()
        try:
            self.template = environment.from_string(source)
            variables = meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"chat template does not parse: {error}") from error
        self.knows_tools = "tools" in variables and OPEN in source


class ChatTemplate:
    """The compiled templates of a model.

    Raises ChatTemplateError at construction when a source does not parse, or of several none is called "default".

    sources: one template, or several by name, of which "tool_use" is for requests with functions, if there is one
    """

    def __init__(self, sources: str | Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        named = {"default": sources} if isinstance(sources, str) else dict(sources)
        if "default" not in named:
            raise ChatTemplateError(f"no template is called 'default', but there are {', '.join(sorted(named))}")
        self._ordinary = _Compiled(named["default"])
        self._with_tools = _Compiled(named["tool_use"]) if "tool_use" in named else self._ordinary
        self._special = dict(special_tokens)

    @property
    def knows_tools(self) -> bool:
        """Return whether the template writes functions itself; every other one gets them as text."""
        return self._with_tools.knows_tools

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool] = ()) -> str:
        """Return the prompt text for `messages`, up to where the assistant starts to speak.

        Each message has "role" and "content"; tool messages are OpenAI's, but with arguments as objects.
        """
        chosen = self._with_tools if tools else self._ordinary
        told = None
        if not chosen.knows_tools:
            messages = as_text(messages, tools)
        elif tools:
            told = [tool.as_json() for tool in tools]
        try:
            text = chosen.template.render(
                self._special, messages=list(messages), tools=told, documents=None, add_generation_prompt=True
            )
        except ChatTemplateError:
            raise
        except _FAULTS as error:
            raise ChatTemplateError(str(error)) from error
        return without_surrogates(text)
