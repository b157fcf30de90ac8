"""Chat templates of other models give the text that transformers gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from protocol.requests.bodies import ChatBody
from protocol.requests.parsing import parse
from serving.http.prompts import chat_messages
from serving.tokenization.chat_template import ChatTemplate, ChatTemplateError
from serving.tokenization.tokenizer import Tokenizer
from serving.tokenization.tools import Tool
from tests.serving.tiny import write_tokenizer

MESSAGES = [
    {"role": "system", "content": "Sei kurz."},
    {"role": "user", "content": "Grüße <b>&amp;</b>"},
    {"role": "assistant", "content": "Hallo"},
    {"role": "user", "content": "x"},
]
TEMPLATES = {
    "escapes": "{{ messages | tojson(ensure_ascii=True) }}",
    "no escapes": "{{ messages | tojson(ensure_ascii=False) }}",
    "indent": "{{ messages | tojson(indent=2) }}",
    "separators": "{{ messages | tojson(separators=(',', ':')) }}",
    "sorted": "{{ {'b': 1, 'a': messages[1].content} | tojson(sort_keys=True) }}",
    "everything": "{{ messages[1] | tojson(ensure_ascii=False, indent=4, separators=(',', ': '), sort_keys=True) }}",
    "tools not none": "{% if tools is not none %}TOOLS{% else %}no{% endif %}",
    "tools defined": "{% if tools is defined %}defined{% endif %}{% if tools %}some{% endif %}",
    "documents": "{% if documents is none %}no documents{% endif %}",
    "generation": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    ),
    "generation with white space": (
        "{%- for m in messages %}\n  {%- generation -%}\n  {{ m.content }}\n  {%- endgeneration %}\n{%- endfor %}"
    ),
    "loop controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "namespace": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
        "{% if add_generation_prompt %}>{% endif %}"
    ),
    "a token that is not there": "[{{ bos_token }}]{{ eos_token }}{% if pad_token is defined %}pad{% endif %}",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("templates")
    write_tokenizer(made)
    return made


def transformers_text(folder: Path, template: str, tools: list[Any] | None = None) -> str:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    text = tokenizer.apply_chat_template(
        MESSAGES, chat_template=template, tools=tools, tokenize=False, add_generation_prompt=True
    )
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_a_template_renders_as_in_transformers(folder: Path, name: str) -> None:
    template = TEMPLATES[name]
    ours = ChatTemplate(template, {"eos_token": "<|im_end|>"}).render(MESSAGES)
    assert ours == transformers_text(folder, template)


def written(folder: Path, chat_template: Any) -> Tokenizer:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": chat_template}))
    return Tokenizer.from_dir(folder)


def test_the_template_for_tools_among_several_is_used_when_there_are_tools(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    named = [
        {"name": "default", "template": "plain {{ messages[0].content }}"},
        {"name": "tool_use", "template": "{{ tools[0].function.name }} in <tool_call> {{ messages[0].content }}"},
        {"name": "rag", "template": "never"},
    ]
    tokenizer = written(tmp_path, named)
    assert tokenizer.chat_template is not None and tokenizer.chat_template.knows_tools
    assert tokenizer.chat_template.render(MESSAGES) == "plain Sei kurz."
    told = [Tool("look", None, None)]
    assert tokenizer.chat_template.render(MESSAGES, told) == "look in <tool_call> Sei kurz."


def test_templates_in_files_go_before_the_configuration(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("from the file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("<tool_call> {{ tools | length }}")
    template = written(tmp_path, "from the configuration").chat_template
    assert template is not None and template.render(MESSAGES) == "from the file"
    assert template.render(MESSAGES, [Tool("look", None, None)]) == "<tool_call> 1"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[9].content + 'x' }}",
        "{{ 1 / (messages | length - 4) }}",
        "{{ messages | tojson(indent={}) }}",
        "{{ raise_exception('no') }}",
        "{{ strftime_now(7) }}",
    ],
)
def test_a_fault_of_a_template_is_a_refusal_of_the_messages(template: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(template, {}).render(MESSAGES)


# Texts of arguments that an answer of this server can hold: whole, cut short, of another type, and with escapes.
ARGUMENTS = ['{"a": 1}', "", "{", '{"city": "Par', '{"a": {"b": [', "[1, 2]", '"text"', "null", "7", '{"a": "\\ud800"}']
HERMES = (
    "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}"
    "{% for key, value in c.function.arguments | items %}{{ key }}{% endfor %}{% endfor %};{% endfor %}"
)


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize(
    "template", [HERMES, TEMPLATES["namespace"], "{{ messages | map(attribute='content') | join }}"]
)
def test_arguments_of_an_answer_are_taken_back_whatever_they_are(template: str, arguments: str) -> None:
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "look"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "done"},
        ],
    }
    messages = chat_messages(parse(json.dumps(body).encode(), ChatBody))
    text = ChatTemplate(template, {}).render(messages, [Tool("f", None, None)] if template == HERMES else [])
    text.encode()
    if template == HERMES and arguments in ("{", '{"city": "Par', "[1, 2]", '"text"'):
        assert f"assistant:{arguments};tool:done" in text, "as the model said it"


def test_arguments_that_were_cut_short_are_shown_as_said_by_a_template_without_tools() -> None:
    call = {"function": {"name": "f", "arguments": '{"city": "Par'}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    body = parse(json.dumps({"model": "m", "messages": [message]}).encode(), ChatBody)
    text = ChatTemplate("{{ messages[0].content }}", {}).render(chat_messages(body))
    assert text == '<tool_call>\n{"name": "f", "arguments": {"city": "Par}\n</tool_call>'
