"""How functions are told to a model, and how its calls are found."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.tokenization.chat_template import ChatTemplate
from serving.tokenization.tool_calls import CallArguments, CallStart, Event, ToolCallParser
from serving.tokenization.tools import Tool, as_text

TOOL = Tool("look", "looks", {"type": "object", "properties": {"at": {"type": "string"}}})
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "a}\\"{b"}}\n</tool_call>'


def parse(
    text: str, cuts: list[int] | None = None, *, forced: bool = False, cut: bool = False
) -> tuple[str, list[tuple[str, str]]]:
    parser, events = ToolCallParser(forced=forced), list[Event]()
    edges = [0, *sorted(cuts or []), len(text)]
    for start, end in pairwise(edges):
        events += parser.push(text[start:end])
    events += parser.finish(cut=cut)
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


@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("before", ["", CALL + "\n"])
def test_no_half_of_the_notation_is_content_wherever_a_call_is_cut(before: str, forced: bool) -> None:
    """At every character: in the mark, the name, the arguments, the closing mark; of the first call or the second."""
    first = [("look", '{"at": "a}\\"{b"}')] if before else []
    for end in range(len("<tool_") if not forced else 1, len(CALL) + 1):
        content, calls = parse(before + CALL[:end], forced=forced, cut=True)
        assert content == "" and calls[: len(first)] == first
        for name, arguments in calls[len(first) :]:
            assert name == "look" and '{"at": "a}\\"{b"}'.startswith(arguments)
        named = CALL[:end].count('"look"')
        assert len(calls) == len(first) + named, "a call whose name is known is told, with what there is of it"


def test_text_that_is_cut_before_it_is_surely_a_call_stays_text() -> None:
    assert parse("3 <", cut=True) == ("3 <", [])
    assert parse("<table", cut=True) == ("<table", [])


@pytest.mark.parametrize(
    ("written", "call"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', ("f", '{"a": 1}')),
        ('{"parameters": {"a": 1}, "name": "f"}', ("f", '{"a": 1}')),
        ('{"name": "f", "parameters": "{\\"a\\": 1}"}', ("f", '{"a": 1}')),
        ('{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}', ("f", '{"a": 1}')),
        ('{"id": "1", "type": "function", "function": {"name": "f", "parameters": {"a": 1}}}', ("f", '{"a": 1}')),
        ('{"name": "f", "arguments": {"a": 1}, "id": 7}', ("f", '{"a": 1}')),
        ('{"type": "function", "name": "f", "parameters": {"a": 1}}', ("f", '{"a": 1}')),
    ],
)
def test_calls_as_other_models_write_them_keep_their_arguments(written: str, call: tuple[str, str]) -> None:
    assert parse(f"<tool_call>\n{written}\n</tool_call>") == ("", [call])


@pytest.mark.parametrize(
    "written",
    [
        '{"name": "f", "args": {"a": 1}}',
        '{"name": "f", "input": {"a": 1}}',
        '{"parameters": {"a": 1}, "arguments": {"b": 2}, "name": "f"}',
        '{"a": 1, "name": "f"}',
        '{"function": {"name": "f"}, "arguments": {"a": 1}}',
    ],
)
def test_a_call_with_fields_that_are_not_understood_is_content_and_loses_nothing(written: str) -> None:
    for text in (f"<tool_call>{written}</tool_call>", f"<tool_call>{written}"):
        assert parse(text) == (text, [])
        assert parse(text, cut=True) == (text, []), "it is whole"


def test_what_a_call_says_behind_its_arguments_is_content_without_the_marks() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": 1}, "parameters": {"b": 2}}</tool_call> so'
    assert parse(text) == (', "parameters": {"b": 2}} so', [("f", '{"a": 1}')])
    assert parse(text.removesuffix("</tool_call> so")) == (', "parameters": {"b": 2}}', [("f", '{"a": 1}')])


@given(
    st.lists(
        st.sampled_from(
            [
                "text ",
                "<",
                "<tool_call>",
                CALL,
                "}",
                "\n",
                "</tool_call>",
                '{"name": "x"',
                '{"name": "f", "parameters": {}',
                ', "a": 1}',
            ]
        ),
        max_size=6,
    ),
    st.lists(st.integers(0, 300), max_size=40),
    st.booleans(),
)
def test_the_cuts_between_pieces_change_nothing(parts: list[str], cuts: list[int], cut: bool) -> None:
    text = "".join(parts)
    assert parse(text, [at for at in cuts if at < len(text)], cut=cut) == parse(text, cut=cut)


def test_arguments_stream_as_they_come() -> None:
    parser = ToolCallParser(forced=False)
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
