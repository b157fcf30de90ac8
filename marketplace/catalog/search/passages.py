"""A listing cut into passages of a few hundred characters: title, summary, industry and tags, then the card. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

MAX_PASSAGES = 8  # of a listing
PASSAGE_CHARACTERS = 480  # about 110 tokens: the encoder reads 128
_MAX_CARD = 20_000  # characters of a card that are read


def cut(*, title: str, summary: str, industry: str, tags: Sequence[str], card_markdown: str) -> list[str]:
    """Return the passages of a listing, at most MAX_PASSAGES; short paragraphs share one, a long one is divided."""
    passages = [" ".join(f"{title}. {summary} {', '.join(filter(None, (industry, *tags)))}".split())]
    rest = ""
    for piece in _pieces(card_markdown[:_MAX_CARD]):
        if rest and len(rest) + len(piece) >= PASSAGE_CHARACTERS:
            passages.append(rest)
            rest = ""
        rest = f"{rest} {piece}".strip()
    if rest:
        passages.append(rest)
    return passages[:MAX_PASSAGES]


def _pieces(markdown: str) -> Iterator[str]:
    """Yield the text of a card's paragraphs, headings and cells, none longer than a passage; code says no meaning."""
    for token in MarkdownIt("commonmark", {"html": False}).enable("table").parse(markdown):
        if token.type != "inline":
            continue
        text = " ".join("".join(map(_plain, token.children or [])).split())
        while len(text) > PASSAGE_CHARACTERS:
            end = text.rfind(" ", 1, PASSAGE_CHARACTERS)
            end = PASSAGE_CHARACTERS if end < 0 else end
            yield text[:end]
            text = text[end:].strip()
        if text:
            yield text


def _plain(token: Token) -> str:
    if token.type in ("softbreak", "hardbreak"):
        return " "
    return token.content if token.type in ("text", "code_inline") else ""
