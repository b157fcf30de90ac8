"""Copyable calls of a model in three languages. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DEFAULT_MESSAGES = ({"role": "user", "content": "Hello"},)
MAX_TOKENS = 64


@dataclass(frozen=True)
class Snippet:
    """One example; `code` is complete and runs as it stands once INTARSIA_API_KEY is set."""

    id: str
    label: str
    code: str


def build_snippets(*, model_name: str, messages: Sequence[dict[str, str]], api_base: str) -> tuple[Snippet, ...]:
    """Return snippets for `model_name` (`org/slug`) at `api_base` (ends with /v1)."""
    body = {
        "model": model_name,
        "messages": list(messages) or list(DEFAULT_MESSAGES),
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    return (
        Snippet("curl", "curl", _curl(body, api_base)),
        Snippet("python", "Python (openai)", _python(body, api_base)),
        Snippet("javascript", "JavaScript (openai)", _javascript(body, api_base)),
    )


def _curl(body: dict[str, Any], api_base: str) -> str:
    data = shlex.quote(json.dumps(body, indent=2, ensure_ascii=False))
    return (
        f"curl {api_base}/chat/completions \\\n"
        '  -H "Authorization: Bearer $INTARSIA_API_KEY" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        f"  -d {data}"
    )


def _python(body: dict[str, Any], api_base: str) -> str:
    lines = "\n".join(f"        {message!r}," for message in body["messages"])
    return (
        "import os\n\nfrom openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{api_base}", api_key=os.environ["INTARSIA_API_KEY"])\n'
        "answer = client.chat.completions.create(\n"
        f'    model="{body["model"]}",\n'
        f"    messages=[\n{lines}\n    ],\n"
        f"    max_tokens={body['max_tokens']},\n"
        "    temperature=0,\n"
        ")\n"
        "print(answer.choices[0].message.content)"
    )


def _javascript(body: dict[str, Any], api_base: str) -> str:
    options = json.dumps(body, indent=2, ensure_ascii=False)
    return (
        'import OpenAI from "openai";\n\n'
        "const client = new OpenAI({\n"
        f'  baseURL: "{api_base}",\n'
        "  apiKey: process.env.INTARSIA_API_KEY,\n"
        "});\n"
        f"const answer = await client.chat.completions.create({options});\n"
        "console.log(answer.choices[0].message.content);"
    )
