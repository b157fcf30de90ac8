"""A model card that tries to do something, or whose links do not lead where they say.

Pages show a card's raw HTML as text and let no script through, whatever it holds; but who writes one wants something.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

from marketplace.accounts.names import fold
from marketplace.publishing.checks.findings import Finding

_SCRIPT = re.compile(
    r"<\s*(?:script|iframe|object|embed|svg|form|meta|base|link)\b|\bon[a-z]{3,20}\s*=\s*[\"']|(?:javascript|vbscript)\s*:"
    r"|data\s*:\s*text/html",
    re.IGNORECASE,
)
_HOST = re.compile(r"(?:https?://)?((?:[\w-]+\.)+[\w-]{2,})(?:[/:?#].*)?", re.IGNORECASE)
_MOST_SHOWN = 80  # characters of a link in a sentence


def card_findings(markdown: str, *, own_host: str) -> list[Finding]:
    """Return a finding for a script in the card, and one for each link that pretends, at most three of them.

    `own_host` is the platform's: a host that only looks like it pretends as well.
    """
    found = []
    if match := _SCRIPT.search(_prose(markdown)):
        found.append(_finding("Its card holds what a browser would run, if pages let it through", match[0]))
    for text, address in _links(markdown):
        why = _pretends(text, address, own_host)
        if why is not None:
            found.append(_finding(why, address))
    return found[:4]


def _finding(why: str, what: str) -> Finding:
    return Finding("card", f"{why}: “{what[:_MOST_SHOWN]}”.", hashlib.sha256(what.encode()).hexdigest()[:16])


def _pretends(text: str, address: str, own_host: str) -> str | None:
    host = (urlsplit(address).hostname or "").rstrip(".") if "://" in address else ""
    shown = _HOST.fullmatch(text.strip())
    if host and shown and not _same_site(shown[1].lower(), host):
        return f"A link of its card says {shown[1][:_MOST_SHOWN]} and leads elsewhere"
    if not host or _same_site(host, own_host):
        return None
    if "@" in urlsplit(address).netloc:
        return "A link of its card hides its host behind a name"
    if host.startswith("xn--") or ".xn--" in host or not host.isascii():
        return "A link of its card leads to a host in letters that look like others"
    if own_host and fold(own_host.split(".")[0]) in fold(host) and "." in own_host:
        return "A link of its card leads to a host that looks like the platform’s"
    return None


def _same_site(one: str, other: str) -> bool:
    one, other = one.removeprefix("www."), other.removeprefix("www.")
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def _links(markdown: str) -> Iterator[tuple[str, str]]:
    """Yield the text and the address of each link, as pages show them."""
    for block in MarkdownIt("commonmark", {"html": False}).enable("table").parse(markdown):
        yield from _links_of(block.children or [])


def _links_of(tokens: list[Token]) -> Iterator[tuple[str, str]]:
    address, text = None, ""
    for token in tokens:
        if token.type == "link_open":
            address, text = str(token.attrGet("href") or ""), ""
        elif token.type == "link_close" and address is not None:
            yield text, address
            address = None
        elif address is not None:
            text += token.content


def _prose(markdown: str) -> str:
    """Return the card without its code: an example may show HTML."""
    tokens = MarkdownIt("commonmark", {"html": False}).enable("table").parse(markdown)
    return "\n".join(
        child.content
        for token in tokens
        for child in (token.children or [])
        if child.type not in ("code_inline", "softbreak")
    )
