"""Chat templates: Jinja2 in its immutable sandbox, with the helpers and whitespace rules that Hugging Face templates
expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from serving.tokenization.tools import OPEN, Tool, as_text


class ChatTemplateError(ValueError):
    """The template's refusal of messages (its own `raise_exception`, or a field it needs is missing)."""


def _raise_exception(message: str) -> None:
    raise ChatTemplateError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplate:
    """A compiled template. Raises ChatTemplateError at construction when the source does not parse."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
            variables = meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"chat template does not parse: {error}") from error
        self._special = dict(special_tokens)
        # Whether the template writes functions and calls in the notation of `serving.tokenization.tools`.
        self.knows_tools = "tools" in variables and OPEN in source

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool] = ()) -> str:
        """Return the prompt text for `messages`, up to where the assistant starts to speak.

        Each message has "role" and "content"; tool messages are OpenAI's, but with arguments as objects.
        """
        known: dict[str, Any] = dict(self._special)
        if not self.knows_tools:
            messages = as_text(messages, tools)
        elif tools:
            known["tools"] = [tool.as_json() for tool in tools]
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=True, **known)
        except (jinja2.TemplateError, TypeError) as error:  # TypeError: the template adds to a field that is missing
            raise ChatTemplateError(str(error)) from error
