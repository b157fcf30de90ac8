"""Templates in the manner of each served family give the text that transformers gives, with calls and functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from serving.tokenization.chat_template import ChatTemplateError
from serving.tokenization.tokenizer import Tokenizer, TokenizerError
from serving.tokenization.tools import Tool
from tests.serving.tiny import write_tokenizer

# Ours, small, with what the families' own use: `tojson` of arguments and functions, `generation`, `strftime_now`,
# `raise_exception`, loop controls, namespaces, macros and white space control.
LLAMA = """
{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% endif %}
{%- if messages[0].role == "system" %}
    {%- set said = messages[0].content | trim %}{% set rest = messages[1:] %}
{%- else %}{% set said = "" %}{% set rest = messages %}{% endif %}
{{- "<|start|>system<|end|>\\n\\nToday Date: " + date_string + "\\n" + said + "<|eot|>" }}
{%- for m in rest %}
    {%- if (m.tool_calls or []) | length > 1 %}{{- raise_exception("one call at a time") }}{% endif %}
    {{- "<|start|>" + m.role + "<|end|>\\n\\n" + m.content | trim + "<|eot|>" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start|>assistant<|end|>\\n\\n" }}{% endif %}
"""
GEMMA = """{{ bos_token }}{% if messages[0]["role"] == "system" %}
{%- set first = messages[0]["content"] + "\\n\\n" %}{% set loop_messages = messages[1:] -%}
{% else %}{% set first = "" %}{% set loop_messages = messages %}{% endif -%}
{% for message in loop_messages %}
{%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}{{ raise_exception("roles must alternate") }}{% endif -%}
{% set role = "model" if message["role"] == "assistant" else message["role"] -%}
{{ "<start_of_turn>" + role + "\\n" + (first if loop.first else "") + message["content"] | trim }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}{{ "<start_of_turn>model\\n" }}{% endif %}"""
MISTRAL = """{{- bos_token }}{% set ns = namespace(users=0) %}
{%- for m in messages if m.role == "user" %}{% set ns.users = ns.users + 1 %}{% endfor %}
{%- for m in messages %}
  {%- if m.role == "user" %}{% set ns.users = ns.users - 1 %}
    {{- "[INST] " ~ (messages[0].content ~ "\\n\\n" if ns.users == 0 and messages[0].role == "system" else "") }}
    {{- m.content ~ "[/INST]" }}
  {%- elif m.role == "assistant" %}{{- " " ~ m.content | trim ~ eos_token }}
  {%- elif m.role != "system" %}{{- raise_exception("only user and assistant roles") }}{% endif %}
{%- endfor %}"""
PHI = """{% for message in messages %}{% if message["role"] not in ["system", "user", "assistant"] %}{% continue %}
{% endif %}{{ "<|im_start|>" + message["role"] + "<|im_sep|>" }}{% if message["role"] == "assistant" %}
{% generation %}{{ message["content"] + "<|im_end|>" }}{% endgeneration %}
{% else %}{{ message["content"] + "<|im_end|>" }}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ "<|im_start|>assistant<|im_sep|>" }}{% endif %}"""
QWEN = """{%- if tools %}{{- "<|im_start|>system\\n" }}
{%- if messages[0].role == "system" %}{{- messages[0].content + "\\n\\n" }}{% endif %}
{{- "<tools>" }}{% for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{% endfor %}{{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == "system" %}{{- "<|im_start|>system\\n" + messages[0].content + "<|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1) %}
{%- for m in messages[::-1] %}{% if m.role == "user" %}
{%- set ns.last = messages | length - 1 - loop.index0 %}{% break %}{% endif %}{% endfor %}
{%- for m in messages %}
  {%- if m.role == "assistant" %}{{- "<|im_start|>assistant\\n" ~ (m.content or "") }}
    {%- for call in m.tool_calls or [] %}{% if call.function %}{% set call = call.function %}{% endif %}
      {{- '\\n<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
      {{- call.arguments if call.arguments is string else call.arguments | tojson }}{{- "}\\n</tool_call>" }}
    {%- endfor %}{{- "<|im_end|>\\n" }}
  {%- elif m.role == "tool" %}
    {%- if loop.first or loop.previtem.role != "tool" %}{{- "<|im_start|>user" }}{% endif %}
    {{- "\\n<tool_response>\\n" ~ m.content ~ "\\n</tool_response>" }}
    {%- if loop.last or loop.nextitem.role != "tool" %}{{- "<|im_end|>\\n" }}{% endif %}
  {%- elif m.role != "system" %}{{- "<|im_start|>" ~ m.role ~ ("*" if loop.index0 == ns.last) ~ "\\n" ~ m.content }}
    {{- "<|im_end|>\\n" }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}
{%- if enable_thinking is defined and not enable_thinking %}{{- "<think>\\n\\n</think>\\n\\n" }}{% endif %}
{%- endif %}"""
SMOLLM = """{%- macro listed(functions) %}
{%- for f in functions %}{{ "\\n" ~ (f | tojson(indent=2)) }}{% endfor %}{% endmacro %}
{%- if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}
{{- "<|im_start|>system\\nToday Date: " ~ strftime_now("%d %B %Y") ~ "\\n" }}
{{- "/think" if enable_thinking else "/no_think" }}
{%- if tools %}{{- " call as <tool_call>" }}{{- listed(tools) }}{% endif %}{{- "<|im_end|>\\n" }}
{%- for m in messages if m.role != "system" %}
  {%- if m.role == "assistant" %}{% generation %}{{- "<|im_start|>assistant\\n" ~ m.content }}
    {%- for call in m.tool_calls or [] %}{{- call.function.arguments | tojson }}{% endfor %}{{- "<|im_end|>\\n" }}
  {%- endgeneration %}{% else %}{{- "<|im_start|>" ~ m.role ~ "\\n" ~ m.content ~ "<|im_end|>\\n" }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{% endif %}"""

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Sei kurz."},
    {"role": "user", "content": " Grüße <b>&amp;</b> "},
    {"role": "assistant", "content": "Hallo"},
    {"role": "user", "content": "Wetter?"},
]
_CALL = {"name": "weather", "arguments": {"city": "Köln", "days": [1, 2], "exact": None, "unit": '"C"'}}
CALLS = [
    *TALK,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "a", "type": "function", "function": _CALL} for _ in range(2)],
    },
    {"role": "tool", "tool_call_id": "a", "content": "20 °C"},
    {"role": "tool", "tool_call_id": "a", "content": "21 °C"},
]
TOOLS = [Tool("weather", "Of a city <b>", {"type": "object", "properties": {"city": {"type": "string"}}})]
CASES = {
    "llama": (LLAMA, TALK, []),
    "llama without a system message": (LLAMA, TALK[1:], []),
    "gemma": (GEMMA, TALK, []),
    "mistral": (MISTRAL, TALK, []),
    "phi": (PHI, TALK, []),
    "qwen": (QWEN, TALK, []),
    "qwen with functions": (QWEN, CALLS, TOOLS),
    "smollm": (SMOLLM, TALK, []),
    "smollm with functions": (SMOLLM, CALLS, TOOLS),
    "several, as a list": ([{"name": "default", "template": PHI}, {"name": "tool_use", "template": QWEN}], TALK, []),
    "several, as a list, with functions": (
        [{"name": "tool_use", "template": QWEN}, {"name": "default", "template": PHI}],
        CALLS,
        TOOLS,
    ),
    "several, as an object": ({"default": MISTRAL, "tool_use": QWEN}, TALK, []),
    "several, as an object, with functions": ({"default": MISTRAL, "tool_use": QWEN}, CALLS, TOOLS),
}


def written(folder: Path, template: Any) -> Path:
    """Write a tokenizer that has a beginning of text and this template."""
    write_tokenizer(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"bos_token": "<|endoftext|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_family_s_template_renders_as_in_transformers(name: str, tmp_path: Path) -> None:
    template, messages, tools = CASES[name]
    folder = written(tmp_path, template)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)

    def reference() -> Any:
        told = [tool.as_json() for tool in tools] or None
        return theirs.apply_chat_template(messages, tools=told, tokenize=False, add_generation_prompt=True)

    before = reference()
    ours = Tokenizer.from_dir(folder).chat_template
    assert ours is not None
    # The date may change in between.
    assert ours.render(messages, tools) in (before, reference())


@pytest.mark.parametrize(
    ("template", "messages"), [(GEMMA, TALK[:1] + TALK[2:]), (MISTRAL, [{"role": "x", "content": ""}])]
)
def test_a_template_s_own_refusal_is_told(template: str, messages: list[dict[str, Any]], tmp_path: Path) -> None:
    ours = Tokenizer.from_dir(written(tmp_path, template)).chat_template
    assert ours is not None
    with pytest.raises(ChatTemplateError, match=r"roles must alternate|only user and assistant roles"):
        ours.render(messages)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for m in messages %}", "does not parse"),
        ({"tool_use": QWEN}, "no template is called 'default', but there are tool_use"),
    ],
)
def test_a_template_that_fails_is_refused_at_the_start(template: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=rf"chat_template in tokenizer_config\.json.*{why}.*remove it"):
        Tokenizer.from_dir(written(tmp_path, template))
