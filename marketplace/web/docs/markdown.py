"""Markdown of our own pages as HTML: anchors at headings, links between pages, tables that scroll, code to copy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token

# A page's file, as a link names it → its address and title, or None: it is not on the site.
Resolve = Callable[[str], tuple[str, str] | None]
_LINK = re.compile(r"^(?P<file>[^#:]*)(?P<anchor>#.*)?$")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of the second level, for the table of contents."""

    anchor: str
    text: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page's HTML and its headings."""

    html: SafeString
    headings: tuple[Heading, ...]


def render_page(markdown: str, *, resolve: Resolve) -> Rendered:
    """Return the HTML of one of our own pages. A link to what is not on the site becomes plain text."""
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    tokens = parser.parse(markdown)
    headings = []
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            text = _text(tokens[index + 1])
            token.attrSet("id", anchor_of(tokens[index + 1].content))
            if token.tag == "h2":
                headings.append(Heading(str(token.attrs["id"]), text))
        elif token.type == "inline":
            token.children = _linked(token.children or [], resolve)
    renderer = parser.renderer
    parts: list[str] = []
    for group in _blocks(tokens):
        html = renderer.render(group, parser.options, {})
        parts.append(_framed(group, html, len(parts)))
    return Rendered(mark_safe("".join(parts)), tuple(headings))  # the parser escapes everything: raw HTML is off


def anchor_of(heading: str) -> str:
    """Return the fragment that Markdown renderers give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _blocks(tokens: list[Token]) -> list[list[Token]]:
    """Return the top-level blocks, each with all its tokens."""
    blocks: list[list[Token]] = []
    depth = 0
    for token in tokens:
        if depth == 0:
            blocks.append([])
        blocks[-1].append(token)
        depth += token.nesting
    return blocks


def _framed(block: list[Token], html: str, number: int) -> str:
    if block[0].type == "table_open":
        return format_html('<div class="table-wrap" tabindex="0">{}</div>', mark_safe(html))
    if block[0].type == "fence":
        code = conditional_escape(block[0].content.rstrip("\n"))
        return format_html(
            '<div class="copyable"><pre id="code-{0}" tabindex="0"><code>{1}</code></pre>'
            '<button class="button small copy" type="button" data-copy="code-{0}" hidden>Copy</button></div>',
            number,
            code,
        )
    return html


def _text(inline: Token) -> str:
    return "".join(child.content for child in inline.children or [] if child.type in ("text", "code_inline"))


def _linked(children: list[Token], resolve: Resolve) -> list[Token]:
    """Return the tokens of one paragraph with links as the site has them, and without images.

    A link that is worded as the name of a file gets the page's title instead.
    """
    kept: list[Token] = []
    target: tuple[str, str] | None = None
    for token in children:
        if token.type == "image":
            continue
        if token.type == "link_open":
            target = _target(str(token.attrGet("href") or ""), resolve)
            if target is None:
                continue
            token.attrSet("href", target[0])
        elif token.type == "link_close":
            if target is None:
                continue
            target = None
        elif token.type == "text" and target is not None and target[1] and token.content.endswith(".md"):
            token.content = target[1]
        kept.append(token)
    return kept


def _target(href: str, resolve: Resolve) -> tuple[str, str] | None:
    """Return a link's address and the title of the page; no title for other sites and places on the same page."""
    found = _LINK.match(href)
    if found is None or not found["file"]:
        return href, ""
    page = resolve(found["file"])
    return None if page is None else (page[0] + (found["anchor"] or ""), page[1])
