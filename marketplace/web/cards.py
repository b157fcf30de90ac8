"""Model cards: Markdown written by strangers, rendered to HTML that cannot do anything."""

from __future__ import annotations

import nh3
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt

_TAGS = {
    *("h3", "h4", "h5", "h6", "p", "br", "hr", "strong", "em", "s", "code", "pre", "blockquote"),
    *("ul", "ol", "li", "a", "table", "thead", "tbody", "tr", "th", "td"),
}
_ATTRIBUTES = {"a": {"href", "title"}, "ol": {"start"}}
_SCHEMES = {"http", "https", "mailto"}


def render_card(markdown: str, *, title: str = "") -> SafeString:
    """Return the HTML of a card. Raw HTML is shown as text; images are dropped: they would tell their host who looks.

    Headings move down two levels, below the page's own; a first heading that repeats `title` is left out. Whatever
    the Markdown parser made, nh3 has the last word.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    tokens = parser.parse(markdown)
    if len(tokens) > 2 and tokens[0].tag == "h1" and tokens[1].content.strip() == title.strip() != "":
        del tokens[:3]
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 2, 6)}"
    html = parser.renderer.render(tokens, parser.options, {})
    clean = nh3.clean(
        html,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes=_SCHEMES,
        link_rel="nofollow noopener noreferrer ugc",
    )
    return mark_safe(clean)  # nh3 has just made it so
