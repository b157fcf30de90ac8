"""Tokenizers of the two kinds that the served families use, small enough to reason about."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from serving.tokenization.tokenizer import Tokenizer
from tests.serving.tiny import write_tokenizer

SPECIAL = "<s>"


def byte_level(folder: Path) -> Tokenizer:
    """One token per byte."""
    write_tokenizer(folder)
    return Tokenizer.from_dir(folder)


def byte_fallback() -> Tokenizer:
    """Return a vocabulary of SentencePiece's kind: a few words, and a token for each byte that no word covers."""
    pieces = [SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁word", "é"]
    backend = Backend(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(SPECIAL, special=True, normalized=False)])
    return Tokenizer(backend, frozenset({0}), None)
