"""A query as the arms of the search read it. Pure: any text is one, and none reaches SQL as code."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

MAX_LENGTH = 200  # characters of a query
MAX_WORDS = 8  # looked for by their spelling
_WORD = re.compile(r"\w+")
_OPERATOR = re.compile(r'"|(?:^|\s)-\w|\sOR\s')  # of PostgreSQL's web search: a phrase, a word that must not be there
# Words that say nothing of a model. (Full text has a list of its own.)
_EMPTY = frozenset(
    re.split(
        " ",
        "a about an and any are as at be by can do for from get give has have help how i if in into is it its me model "
        "my need of on or our out please so some something that the them these they this those to us want was we what "
        "when where which who will with you your",
    )
)


@dataclass(frozen=True, slots=True)
class Query:
    """One query, cleaned."""

    text: str  # at most MAX_LENGTH characters, single spaces, no control characters
    words: tuple[str, ...]  # small letters; what spelling is compared with
    is_exact: bool  # it has operators: words alone answer it

    @property
    def beginning(self) -> str:
        """Return a `to_tsquery` of the words, the last of which may be the beginning of one; "" without a word."""
        all_words = _WORD.findall(_without_accents(self.text.lower()))
        if self.is_exact or not all_words:
            return ""
        whole = [word for word in all_words[:-1] if word not in _EMPTY][:MAX_WORDS]
        return " & ".join([*whole, f"{all_words[-1]}:*"])


def parse(raw: str) -> Query:
    """Return the query of what was typed; `text` is empty where nothing was."""
    printable = "".join(
        " " if unicodedata.category(c) in ("Cc", "Cs", "Co", "Cn") else c for c in raw[: 4 * MAX_LENGTH]
    )
    text = " ".join(unicodedata.normalize("NFC", printable).split())[:MAX_LENGTH].strip()
    # Two letters have too few trigrams to be told from others.
    spelled = [word for word in _WORD.findall(_without_accents(text.lower())) if len(word) > 2 and word not in _EMPTY]
    return Query(text, tuple(dict.fromkeys(spelled))[:MAX_WORDS], _OPERATOR.search(text) is not None)


def _without_accents(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def trigrams(word: str) -> frozenset[str]:
    """Return the trigrams of a word, as pg_trgm cuts it."""
    padded = f"  {_without_accents(word.lower())} "
    return frozenset(padded[i : i + 3] for i in range(len(padded) - 2))
