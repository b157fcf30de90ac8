"""Answers as they are kept: the bytes come back, the size is bounded."""

from __future__ import annotations

import os
import uuid
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.gateway import closing, kept
from marketplace.gateway.kept import IdempotencyKey, Keeper, Replay, opened
from marketplace.vault.answer_keys import AnswerCipher
from protocol.events import DONE, format_event

CIPHER = AnswerCipher(b"\7" * 32)
PATH = "/v1/chat/completions"
ID = uuid.UUID(int=7)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
USAGE = st.dictionaries(st.sampled_from(["prompt_tokens", "cost", "x"]), st.integers(0, 9))


def keeper() -> Keeper:
    return Keeper(ID, IdempotencyKey("key", PATH, CIPHER))


def replay(one: Keeper, cost: int = 5) -> Replay:
    assert one.kept
    return opened(one.kept, ID, cost, CIPHER)


@given(st.dictionaries(st.text(), JSON, max_size=4), USAGE, st.integers(0, 2**60))
async def test_a_whole_answer_comes_back_as_it_was_sent(
    answer: dict[str, Any], usage: dict[str, int], cost: int
) -> None:
    answer["usage"] = usage
    one = keeper()
    await one.keep_whole(orjson.dumps(answer))
    sent = closing.whole_body(orjson.loads(orjson.dumps(answer)), ID, cost)
    assert replay(one, cost) == Replay(PATH, sent, closing.WHOLE_HEADERS)


@given(st.lists(st.binary(min_size=1)), st.none() | st.dictionaries(st.text(), JSON, max_size=3), st.integers(0, 2**60))
def test_a_stream_comes_back_as_it_was_sent(pieces: list[bytes], last: dict[str, Any] | None, cost: int) -> None:
    one = keeper()
    for number, piece in enumerate(pieces):
        one.add(piece, number)
    one.keep_stream(last)
    if last is None:
        end = closing.cut_end(one.tokens, ID, cost)
    else:
        end = closing.stream_end(orjson.loads(orjson.dumps(last)), one.tokens, ID, cost)
    assert replay(one, cost) == Replay(PATH, b"".join(pieces) + end, closing.STREAM_HEADERS)


async def test_a_large_answer_is_packed_and_one_that_stays_large_is_not_kept() -> None:
    for size, fits in ((kept.MAX_ANSWER_BYTES, True), (kept.MAX_ANSWER_BYTES + 1, False)):
        one = keeper()
        await one.keep_whole(b'"' + b"a" * (size - 2) + b'"')
        assert one.fetchable == fits and one.kept is not None and len(one.kept) < kept.MAX_KEPT_BYTES
    noise = keeper()
    await noise.keep_whole(os.urandom(kept.MAX_KEPT_BYTES))
    assert noise.kept == kept.TOO_LARGE and not noise.fetchable


def test_a_stream_that_grows_too_large_is_not_kept_and_takes_no_more_memory() -> None:
    noise, plain = keeper(), keeper()
    for number in range(1, 4 * kept.MAX_KEPT_BYTES // 2**16):
        noise.add(os.urandom(2**16), number)
    assert len(noise._body) < kept.MAX_KEPT_BYTES + 2**18
    for number in range(kept.MAX_ANSWER_BYTES // 2**16 + 1):
        plain.add(b"a" * 2**16, number)
    for one in (noise, plain):
        one.keep_stream({})
        assert one.kept == kept.TOO_LARGE


def test_the_first_seal_stands() -> None:
    one = keeper()
    one.add(format_event(b"{}", 3), 3)
    one.keep_stream({})
    one.keep_stream(None)
    assert replay(one).body == format_event(b"{}", 3) + DONE


@pytest.mark.parametrize("cost", [None, 0, 5])
def test_the_end_of_an_answer_says_whether_it_is_settled(cost: int | None) -> None:
    body = orjson.loads(closing.whole_body({"usage": {"total_tokens": 1}}, ID, cost))
    assert body["intarsia"]["settled"] == (cost is not None) and body["usage"].get("cost_nano_usd") == cost
