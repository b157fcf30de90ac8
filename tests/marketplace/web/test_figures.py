"""Pictures of plans on pages: those that `capacity` draws, and nothing that could do anything."""

from __future__ import annotations

import pytest
from django.template import Context, Template

from marketplace.web.figures import BadFigure, redrawn
from tests.marketplace.planning.plans import document

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 240" role="img" aria-label="A">'


@pytest.mark.parametrize("figure", document()["figures"], ids=lambda figure: figure["name"])
def test_what_capacity_draws_is_drawn_again_as_it_was(figure: dict[str, str]) -> None:
    drawn = redrawn(figure["svg"])
    assert drawn.startswith('<svg viewBox="0 0 640') and "style" not in drawn
    assert drawn.count("</text>") == figure["svg"].count("</text>") > 1
    assert ("free &lt;b&gt;" in drawn) is (figure["name"] == "memory")


@pytest.mark.parametrize(
    "svg",
    [
        "",
        "no picture",
        "<b>no svg</b>",
        '<svg viewBox="0 0 1 1"></svg>',  # of no namespace
        f"{HEAD}<script>alert(1)</script></svg>",
        f"{HEAD}<foreignObject><b>x</b></foreignObject></svg>",
        f"{HEAD}<b xmlns='http://www.w3.org/1999/xhtml'>x</b></svg>",
        f"{HEAD}<a href='https://example.com'><text>x</text></a></svg>",
        f"{HEAD}<rect onclick='alert(1)'/></svg>",
        f"{HEAD}<rect style='fill:red'/></svg>",
        f"{HEAD}<rect fill='url(https://example.com)'/></svg>",
        f"{HEAD}<rect x='expression(1)'/></svg>",
        f"{HEAD}<rect class='a b'/></svg>",
        f"{HEAD}<rect xmlns:xlink='http://www.w3.org/1999/xlink' xlink:href='#x'/></svg>",
        f"{HEAD}<use/></svg>",
        f"{HEAD}<svg/></svg>",
        f"{HEAD}<text>" + "<title>" * 9 + "</title>" * 9 + "</text></svg>",
        f"{HEAD}<!-- x --></svg>",
        f"<?xml version='1.0'?>{HEAD}</svg>",
        f'<!DOCTYPE svg [<!ENTITY a "aaaa">]>{HEAD}<text>&a;</text></svg>',
        f"{HEAD}<text>{'x' * (1 << 20)}</text></svg>",
        f"{HEAD}<text>x</svg>",
    ],
)
def test_anything_else_is_no_picture_and_its_text_reaches_no_page(svg: str) -> None:
    with pytest.raises(BadFigure):
        redrawn(svg)
    shown = Template("{% load intarsia %}{{ svg|figure }}").render(Context({"svg": svg}))
    assert shown.startswith('<p class="soft">This picture ') and shown.count("<") == 2


def test_text_stays_text() -> None:
    drawn = redrawn(f"{HEAD}<title>a</title><text x='1'>&lt;script&gt;&amp;</text> &lt;b&gt;</svg>")
    assert '<text x="1">&lt;script&gt;&amp;</text> &lt;b&gt;</svg>' in drawn
