"""Licences of listings: known ones by their SPDX or usual name, or the creator's own text. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

OWN = "own"  # the text is the creator's
MAX_LICENCE_TEXT = 20_000
_SPDX = "https://spdx.org/licenses"


@dataclass(frozen=True, slots=True)
class Licence:
    """A licence that is known by its name; `url` leads to its text."""

    id: str
    name: str
    url: str


KNOWN = {
    one.id: one
    for one in (
        Licence("Apache-2.0", "Apache License 2.0", f"{_SPDX}/Apache-2.0.html"),
        Licence("MIT", "MIT License", f"{_SPDX}/MIT.html"),
        Licence("BSD-3-Clause", "BSD 3-Clause", f"{_SPDX}/BSD-3-Clause.html"),
        Licence("CC0-1.0", "Creative Commons Zero 1.0", f"{_SPDX}/CC0-1.0.html"),
        Licence("CC-BY-4.0", "Creative Commons Attribution 4.0", f"{_SPDX}/CC-BY-4.0.html"),
        Licence("CC-BY-SA-4.0", "Creative Commons Attribution-ShareAlike 4.0", f"{_SPDX}/CC-BY-SA-4.0.html"),
        Licence("CC-BY-NC-4.0", "Creative Commons Attribution-NonCommercial 4.0", f"{_SPDX}/CC-BY-NC-4.0.html"),
        Licence(
            "OpenRAIL-M",
            "BigScience OpenRAIL-M",
            "https://www.licenses.ai/blog/2022/8/26/bigscience-open-rail-m-license",
        ),
        Licence("Llama-3.1", "Llama 3.1 Community License", "https://www.llama.com/llama3_1/license/"),
        Licence("Gemma", "Gemma Terms of Use", "https://ai.google.dev/gemma/terms"),
    )
}
CHOICES = (*KNOWN, OWN)


def name_of(licence: str) -> str:
    """Return the name that people read; empty for no licence."""
    if licence == OWN:
        return "The creator's own licence"
    return KNOWN[licence].name if licence in KNOWN else licence


def url_of(licence: str) -> str:
    """Return the address of a known licence's text, else nothing."""
    return KNOWN[licence].url if licence in KNOWN else ""


def terms_digest(licence: str, text: str) -> str:
    """Return the digest (SHA-256, hex) of what is accepted: the licence's id, a line break, and the creator's text.

    The gateway computes the same in SQL.
    """
    return hashlib.sha256(f"{licence}\n{text}".encode()).hexdigest()
