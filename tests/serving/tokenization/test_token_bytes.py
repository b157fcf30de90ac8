"""Tokens are bytes, and only together text: what is streamed, counted or listed per token follows from their bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.tokenization.output import TextOffsets
from serving.tokenization.tokenizer import Tokenizer
from tests.serving.tokenization.vocabularies import byte_fallback, byte_level

SENTENCES = ["plain words", "naïve café", "日本語のテキスト", "😀👍🏽 flags 🇩🇪", "ひ\u3099", "ⵣ᭄ꦏ", "a\u2028b\u0085c"]


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_level(tmp_path_factory.mktemp("bytewise"))


@pytest.fixture(scope="module")
def fallback() -> Tokenizer:
    return byte_fallback()


def streamed(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    detokenizer = tokenizer.detokenizer()
    return "".join([*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.finish()])


@given(st.lists(st.integers(0, 258), max_size=40))
def test_any_tokens_stream_as_they_decode(bytewise: Tokenizer, token_ids: list[int]) -> None:
    assert streamed(bytewise, token_ids) == bytewise.decode(token_ids)


@pytest.mark.parametrize("broken", [b"\x80" * 8, b"\xe2\x82" * 6, b"\xf0\x9f\x98" * 5, b"\xff" * 30, b"\xed\xa0\x80"])
@pytest.mark.parametrize("whole", ["ₜ", "é", "a", "😀"])
def test_a_character_after_any_number_of_broken_ones_is_whole(bytewise: Tokenizer, broken: bytes, whole: str) -> None:
    token_ids = [token_of(bytewise, byte) for byte in broken + whole.encode()]
    assert streamed(bytewise, token_ids) == (broken + whole.encode()).decode("utf-8", "replace")
    assert streamed(bytewise, token_ids) == bytewise.decode(token_ids)


def token_of(tokenizer: Tokenizer, byte: int) -> int:
    return next(i for i in range(3, tokenizer.vocab_size) if tokenizer.token_bytes.of(i) == bytes([byte]))


@pytest.mark.parametrize("text", SENTENCES)
def test_text_in_bytes_of_a_fallback_streams_as_it_decodes(fallback: Tokenizer, text: str) -> None:
    token_ids = fallback.encode(text, add_special_tokens=False)
    assert streamed(fallback, token_ids) == fallback.decode(token_ids) == text


def test_a_long_broken_run_of_a_fallback_streams_as_it_decodes(fallback: Tokenizer) -> None:
    token_ids = [2 + 0x80] * 40 + fallback.encode("word", add_special_tokens=False)
    assert streamed(fallback, token_ids) == fallback.decode(token_ids)


@pytest.mark.parametrize("text", SENTENCES)
def test_the_bytes_of_tokens_joined_are_the_text(bytewise: Tokenizer, fallback: Tokenizer, text: str) -> None:
    for tokenizer, before in ((bytewise, ""), (fallback, " ")):
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes.of, token_ids)) == (before + text).encode()


def test_a_token_that_is_no_character_is_written_in_escapes(bytewise: Tokenizer, fallback: Tokenizer) -> None:
    for tokenizer in (bytewise, fallback):
        assert tokenizer.token_bytes.text(token_of(tokenizer, 0xF0)) == r"\xf0"
    assert bytewise.token_bytes.text(2) == "<|im_end|>" and fallback.token_bytes.text(0) == "<s>"
    assert bytewise.token_bytes.of(10_000) == b"", "a model's vocabulary may be padded"


@pytest.mark.parametrize("text", SENTENCES)
def test_a_token_begins_where_its_character_does(bytewise: Tokenizer, text: str) -> None:
    offsets = TextOffsets(bytewise.detokenizer())
    found = [offsets.next(token_id) for token_id in bytewise.encode(text, add_special_tokens=False)]
    assert found == [at for at, char in enumerate(text) for _ in char.encode()]
