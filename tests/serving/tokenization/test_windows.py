"""Text that streams is the text that decodes, whatever the decoder strips from its beginning."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from serving.tokenization.output import TextOffsets, WindowDetokenizer
from serving.tokenization.tokenizer import Tokenizer
from tests.serving.tokenization.vocabularies import byte_fallback

PIECES = ["<s>", "<unk>", "▁", "▁▁", "▁a", "a", "b", "▁word", "é", " ", "<0xC3>"]
DECODERS = {
    "Llama 2": [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)],
    "three stripped": [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 3, 0)],
    "a first mark": [decoders.Metaspace("▁", "first")],
    "a mark always": [decoders.Metaspace("▁", "always")],
    "a mark never": [decoders.Metaspace("▁", "never")],
    "words": [decoders.WordPiece()],
}


def tokenizer_with(name: str) -> Tokenizer:
    backend = Backend(models.BPE({piece: i for i, piece in enumerate(PIECES)}, [], unk_token="<unk>"))
    backend.decoder = decoders.Sequence(DECODERS[name])
    backend.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    return Tokenizer(backend, frozenset({0}), None)


def pushed(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.finish()]


@pytest.mark.parametrize("name", DECODERS)
def test_random_tokens_stream_as_they_decode(name: str) -> None:
    tokenizer, dice = tokenizer_with(name), random.Random(1)
    for _ in range(1_000):
        token_ids = [dice.randrange(len(PIECES) + 1) for _ in range(dice.randrange(12))]  # the last is no token
        assert "".join(pushed(tokenizer, token_ids)) == tokenizer.decode(token_ids), token_ids


def test_a_space_that_is_a_token_of_its_own_at_the_beginning_is_kept() -> None:
    tokenizer = tokenizer_with("Llama 2")
    ids = [PIECES.index(piece) for piece in ("▁", "▁a", "▁word")]
    assert pushed(tokenizer, ids) == ["", " a", " word", ""]
    assert pushed(tokenizer, [0, ids[0], 0, ids[1]]) == ["", "", "", " a", ""], "special tokens take no part"


def test_offsets_count_the_space_that_is_kept() -> None:
    tokenizer = tokenizer_with("Llama 2")
    offsets = TextOffsets(tokenizer.detokenizer())
    assert [offsets.next(PIECES.index(piece)) for piece in ("▁", "▁a", "▁word")] == [0, 0, 2]


def test_a_character_of_bytes_that_was_shown_stays_when_a_broken_byte_follows_it() -> None:
    tokenizer = byte_fallback()
    ids = [2 + byte for byte in (*"é".encode(), 0x0A, 0xC3)]
    assert pushed(tokenizer, ids) == ["", "é", "\n", "", "\ufffd"], "shown at once, and never taken back"


def test_the_window_stays_short_however_long_the_text_is() -> None:
    tokenizer, widest = tokenizer_with("Llama 2"), 0

    def measured(token_ids: Sequence[int], **_: object) -> str:
        nonlocal widest
        widest = max(widest, len(token_ids))
        return Tokenizer.decode(tokenizer, token_ids)

    detokenizer = WindowDetokenizer(measured, tokenizer._hidden)
    for token_id in [2, 4, 0, 0, 99, 7, 5, 2, 2, 2, 4] * 20:
        detokenizer.push(token_id)
    assert widest <= 6
