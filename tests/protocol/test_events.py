"""Events of a stream say how many tokens they complete, and only what has that form is read as one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.events import DONE, event_data, event_tokens, format_event


@given(st.text(), st.integers(0, 2**31))
def test_an_event_gives_back_its_value_and_its_tokens(text: str, tokens: int) -> None:
    raw = format_event(json.dumps({"text": text}, ensure_ascii=False).encode(), tokens)
    assert raw.startswith(b"id: %d\n" % tokens) and raw.endswith(b"\n\n")
    data = event_data(raw)
    assert data is not None and json.loads(data) == {"text": text} and event_tokens(raw) == tokens


# Everything at which `str.splitlines`, and with it some clients, ends a line.
LINE_ENDS = [chr(code) for code in range(0x3000) if len(f"a{chr(code)}b".splitlines()) > 1]


@pytest.mark.parametrize("char", LINE_ENDS, ids=[f"U+{ord(char):04X}" for char in LINE_ENDS])
@pytest.mark.parametrize("encode", [msgspec.json.encode, orjson.dumps], ids=["replica", "gateway"])
def test_an_event_is_one_line_for_every_client(char: str, encode: Callable[[Any], bytes]) -> None:
    value = {"text": f"é{char}b{char}", f"k{char}": [char]}
    lines = format_event(encode(value), 7).decode().splitlines()
    assert len(lines) == 3 and lines[0] == "id: 7" and lines[2] == ""
    assert json.loads(lines[1].removeprefix("data: ")) == value


@given(st.text(alphabet=st.sampled_from([*LINE_ENDS, "a", "é", "日", "😀", "\\", '"'])))
def test_any_mixture_of_line_ends_stays_one_line(text: str) -> None:
    lines = format_event(orjson.dumps(text), 0).decode().splitlines()
    assert len(lines) == 3 and json.loads(lines[1].removeprefix("data: ")) == text


def test_the_end_of_a_stream_counts_nothing_and_carries_nothing() -> None:
    assert event_data(DONE) is None and event_tokens(DONE) is None


def test_an_event_without_an_id_is_read_but_counts_nothing() -> None:
    assert event_data(b"data: {}\n\n") == b"{}" and event_tokens(b"data: {}\n\n") is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b": comment\n\n",
        b"id: 5\n\n",
        b"id: -5\ndata: {}\n\n",
        b"id: 5.5\ndata: {}\n\n",
        b"id: " + b"9" * 400 + b"\ndata: {}\n\n",
        b"id: 5\nid: 6\ndata: {}\n\n",
        b"id: 5\ndata: {}\nevent: x\n\n",
        b"id: 5\ndata: {}",
        b"data: {}\nid: 5\n\n",
    ],
)
def test_anything_else_is_no_event_of_a_replica(raw: bytes) -> None:
    assert event_tokens(raw) is None and event_data(raw) is None
