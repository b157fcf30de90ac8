"""Names that people read: what they look like, and which would be taken for the platform or for somebody's mark.

A name is seen by strangers, in mails, on pages and in reviews. So it is one line without invisible characters, and it
does not look like the platform's own name or like its staff. `fold` says what a name looks like: the catalogue's checks
compare names of different organizations by it.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache

from marketplace.accounts.errors import InvalidInput

# The organization that runs the platform: it owns the bare base listings, and its staff are the operators.
PLATFORM_SLUG = "intarsia"

# Controls, format characters (also those that turn the direction of what follows), surrogates, unassigned, line ends.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# What the platform's people would sign with. A name of nothing but such words is theirs; one with another word is not.
_OFFICIAL = "admin administrator billing help helpdesk moderation moderator official root security staff support system"
_FILLING = "account accounts and center centre customer desk of our platform safety service services team the trust"
_DIGITS = str.maketrans("01345", "oleas")
_WORD = re.compile(r"[a-z0-9]+")


def check_name(text: str, *, field: str) -> str:
    """Return an organization's name as it is kept: one line, single blanks.

    Raises InvalidInput for one with invisible characters, and for one that could be the platform's or its staff's.
    """
    name = check_visible(text, field=field)
    words = set(_WORD.findall(fold(name)))
    is_staffs = bool(words & _folded(_OFFICIAL)) and words <= _folded(_OFFICIAL) | _folded(_FILLING)
    if is_staffs or names_the_platform(name):
        raise InvalidInput("could be taken for the platform or its staff; choose another", code="reserved", field=field)
    return name


def check_visible(text: str, *, field: str) -> str:
    """Return a text as one line with single blanks. Raises InvalidInput for characters that cannot be seen."""
    name = " ".join(text.split())
    for letter in name:
        if unicodedata.category(letter) in _HIDDEN:
            raise InvalidInput(
                f"holds a character that cannot be seen (U+{ord(letter):04X}); write it without", field=field
            )
    return name


def names_the_platform(text: str) -> bool:
    """Return whether the text holds the platform's name, whatever stands between its letters."""
    return fold(PLATFORM_SLUG) in "".join(_WORD.findall(fold(text)))


@lru_cache(maxsize=65_536)
def fold(text: str) -> str:
    """Return the text in plain small Latin letters and digits: no accents, no letters that only look Latin."""
    plain = "".join(_latin(letter) for letter in unicodedata.normalize("NFKD", text))
    # A digit within a word stands for a letter; a number stays a number, so that v1 and v2 are two versions.
    plain = re.sub(r"[a-z]*(?:[a-z][0-9]+[a-z]|[0-9]+[a-z]{2,})[a-z0-9]*", lambda m: m[0].translate(_DIGITS), plain)
    return plain.replace("rn", "m").replace("vv", "w").replace("i", "l")  # a capital I is drawn like a small l


def _latin(letter: str) -> str:
    """Return the small Latin letters that the letter is drawn like: one or two, or itself, or nothing for a mark."""
    if letter.isascii():
        return letter.lower()
    if unicodedata.combining(letter) or unicodedata.category(letter) in _HIDDEN:
        return ""
    return _drawn_like(letter) or _drawn_like(letter.casefold()) or letter.casefold()


def _drawn_like(letter: str) -> str:
    # As drawn, not as meant: a Greek capital rho is a P, although a small one is written with another letter.
    found = [entry["c"] for entry in _confusables().get(letter, ()) if entry["c"].isascii() and entry["c"].isalnum()]
    return found[0].lower() if found else _ADDED.get(letter, "")


# Drawn alike to people, if not to Unicode's table.
_ADDED = dict(zip("αβδεκητχµмɡħłøđ", "abdekntxumghlod", strict=True)) | {"æ": "ae", "œ": "oe", "ß": "ss"}


@cache
def _confusables() -> dict[str, list[dict[str, str]]]:
    # Unicode TR 39, half a megabyte: read when the first name is checked, not when the process starts.
    from confusable_homoglyphs.confusables import confusables_data

    table: dict[str, list[dict[str, str]]] = confusables_data
    return table


@cache
def _folded(words: str) -> frozenset[str]:
    return frozenset(fold(word) for word in words.split())
