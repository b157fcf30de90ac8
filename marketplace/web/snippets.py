"""Copyable calls of a model in three languages, and copyable commands for creators. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Sequence
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


def build_snippets(
    *, model_name: str, messages: Sequence[dict[str, str]], api_base: str, has_contract: bool = False
) -> tuple[Snippet, ...]:
    """Return snippets for `model_name` (`org/slug`) at `api_base` (ends with /v1).

    A model with a contract brings its instructions and settings along: its caller sends the message alone.
    """
    body: dict[str, Any] = {"model": model_name, "messages": list(messages) or list(DEFAULT_MESSAGES)}
    if not has_contract:
        body |= {"max_tokens": MAX_TOKENS, "temperature": 0}
    return (
        Snippet("curl", "curl", _curl(body, api_base)),
        Snippet("python", "Python (openai)", _python(body, api_base)),
        Snippet("javascript", "JavaScript (openai)", _javascript(body, api_base)),
    )


def build_key_snippets(*, site: str, scopes: Collection[str], models: Sequence[str]) -> tuple[Snippet, ...]:
    """Return first calls with a key: of a model that it may call, the list of its models, or the key itself."""
    header = '-H "Authorization: Bearer $INTARSIA_API_KEY"'
    if "predict" not in scopes:
        return (Snippet("curl", "curl", f"curl {site}/api/v1/me \\\n  {header}"),)
    api_base = f"{site}/v1"
    if models:
        return build_snippets(model_name=models[0], messages=(), api_base=api_base)[:2]
    python = (
        "import os\n\nfrom openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{api_base}", api_key=os.environ["INTARSIA_API_KEY"])\n'
        "for model in client.models.list():\n    print(model.id)"
    )
    curl = f"curl {api_base}/models \\\n  {header}"
    return (Snippet("python", "Python (openai)", python), Snippet("curl", "curl", curl))


@dataclass(frozen=True)
class StepCommands:
    """The shell commands of each step from an empty folder to a version that the platform has verified."""

    install: str
    login: str
    check: str
    push: str
    measure: str


def build_step_commands(
    *, site: str, wheel: str, organization: str, model: str | None, line: str | None = None
) -> StepCommands:
    """Return the commands of a creator's first steps.

    model: the slug of a listing that there is already. line: the base line to name, where there are several.
    """
    *install, login = _command_setup(site, wheel, organization)
    named = f" --model {organization}/{model}" if model else ""
    named += f" --base {shlex.quote(line)}" if line else ""
    return StepCommands(
        install="\n".join(install),
        login=login,
        check=f"intarsia example my-adapter{named}\nintarsia check my-adapter",
        push="intarsia push my-adapter --listing my-adapter/model.json",
        measure=f"intarsia eval push rows.jsonl --model {organization}/{model} --scorer json",
    )


def build_custody_commands(*, site: str, wheel: str, organization: str, model_name: str) -> str:
    """Return the shell commands from an empty folder to a checked export of the custody log."""
    return "\n".join(
        [
            *_command_setup(site, wheel, organization),
            f"intarsia custody {model_name} --export custody.json",
            "intarsia custody verify custody.json",
        ]
    )


def _command_setup(site: str, wheel: str, organization: str) -> list[str]:
    return [
        "python3 -m venv intarsia-env",
        ". intarsia-env/bin/activate",
        f"pip install {site}/download/{wheel}",
        f"intarsia login --url {site} --organization {organization}",
    ]


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
    settings = "".join(f"    {name}={body[name]},\n" for name in ("max_tokens", "temperature") if name in body)
    return (
        "import os\n\nfrom openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{api_base}", api_key=os.environ["INTARSIA_API_KEY"])\n'
        "answer = client.chat.completions.create(\n"
        f'    model="{body["model"]}",\n'
        f"    messages=[\n{lines}\n    ],\n"
        f"{settings})\n"
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
