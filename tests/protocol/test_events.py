"""Events of a stream say how many tokens they complete, and only what has that form is read as one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.events import DONE, event_data, event_tokens, format_event


@given(st.text().map(lambda text: text.replace("\n", " ").encode()), st.integers(0, 2**31))
def test_an_event_gives_back_its_data_and_its_tokens(data: bytes, tokens: int) -> None:
    raw = format_event(data, tokens)
    assert raw.startswith(b"id: %d\n" % tokens) and raw.endswith(b"\n\n")
    assert (event_data(raw), event_tokens(raw)) == (data, tokens)


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
