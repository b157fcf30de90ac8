"""How functions are told to a model, and how its calls are found."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from serving.tokenization.chat_template import ChatTemplate
from serving.tokenization.tool_calls import CallArguments, CallStart, Event, ToolCallParser
from serving.tokenization.tools import Tool, as_text

TOOL = Tool("look", "looks", {"type": "object", "properties": {"at": {"type": "string"}}})
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "a}\\"{b"}}\n</tool_call>'


def parse(text: str, cuts: list[int] | None = None) -> tuple[str, list[tuple[str, str]]]:
    parser, events = ToolCallParser(), list[Event]()
    edges = [0, *sorted(cuts or []), len(text)]
    for start, end in pairwise(edges):
        events += parser.push(text[start:end])
    events += parser.finish()
    content, calls = "", list[tuple[str, str]]()
    for event in events:
        if isinstance(event, str):
            content += event
        elif isinstance(event, CallStart):
            assert event.index == len(calls)
            calls.append((event.name, ""))
        else:
            assert isinstance(event, CallArguments) and event.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return content, calls


def test_calls_are_taken_out_of_the_text() -> None:
    arguments = '{"at": "a}\\"{b"}'
    assert parse(CALL) == ("", [("look", arguments)])
    assert parse(f"I will.\n{CALL}\n{CALL}\n") == ("I will.", [("look", arguments)] * 2)
    assert parse(f"{CALL} and so on") == (" and so on", [("look", arguments)])
    assert parse("no call <tool> here ") == ("no call <tool> here ", [])


def test_text_that_is_not_a_call_stays_text() -> None:
    for text in (
        "<tool_call>nonsense</tool_call>",
        "a <tool_call",
        '<tool_call>{"name": 3}</tool_call> b',
        "<tool_call>",
    ):
        assert parse(text) == (text, [])


def test_fields_in_another_order_and_arguments_as_text_are_calls_too() -> None:
    assert parse('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>') == ("", [("f", '{"a": 1}')])
    assert parse('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>') == ("", [("f", '{"a": 1}')])
    assert parse('<tool_call>{"name": "f"}</tool_call>') == ("", [("f", "{}")])
    assert parse('<tool_call>{"name": "f", "arguments": {"a": 1}}') == ("", [("f", '{"a": 1}')])
    assert parse('<tool_call>{"arguments": {}, "name": "f"}') == ("", [("f", "{}")])


def test_a_call_cut_short_gives_what_there_was() -> None:
    assert parse('<tool_call>\n{"name": "f", "arguments": {"a": "lo') == ("", [("f", '{"a": "lo')])


@given(
    st.lists(
        st.sampled_from(["text ", "<", "<tool_call>", CALL, "}", "\n", "</tool_call>", '{"name": "x"']), max_size=6
    ),
    st.lists(st.integers(0, 300), max_size=40),
)
def test_the_cuts_between_pieces_change_nothing(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    assert parse(text, [cut for cut in cuts if cut < len(text)]) == parse(text)


def test_arguments_stream_as_they_come() -> None:
    parser = ToolCallParser()
    assert parser.push('<tool_call>{"name": "f", "arguments": {"a": "x') == [
        CallStart(0, "f"),
        CallArguments(0, '{"a": "x'),
    ]
    assert parser.push("y") == [CallArguments(0, "y")]


def test_a_template_without_functions_gets_them_as_text() -> None:
    source = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    template = ChatTemplate(source, {})
    assert not template.knows_tools
    call = {"function": {"name": "look", "arguments": {"at": "é"}}}
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
    ]
    text = template.render(messages, [TOOL])
    assert text.startswith("[system]be kind\n\n# Tools") and json.dumps(TOOL.as_json()) in text
    written = '<tool_call>\n{"name": "look", "arguments": {"at": "é"}}\n</tool_call>'
    assert f"[assistant]{written}\n{written}[user]<tool_response>\none\n</tool_response>\n<tool_response>\ntwo" in text
    assert as_text([{"role": "user", "content": "hi"}], [TOOL])[0]["role"] == "system"
    assert as_text([{"role": "user", "content": "hi"}], []) == [{"role": "user", "content": "hi"}]


def test_a_template_with_functions_renders_them_itself() -> None:
    source = (
        "{% if tools %}T{% for tool in tools %}{{ tool | tojson }}{% endfor %}<tool_call>{% endif %}"
        "{% for m in messages %}{{ m['role'] }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    template = ChatTemplate(source, {})
    call = {"function": {"name": "look", "arguments": {"at": "x"}}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "one"}]
    assert template.knows_tools
    assert template.render(messages, [TOOL]) == f'T{json.dumps(TOOL.as_json())}<tool_call>assistant{{"at": "x"}}tool'
    assert template.render(messages) == 'assistant{"at": "x"}tool'
