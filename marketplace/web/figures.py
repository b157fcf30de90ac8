"""Pictures of plans, drawn anew for a page: elements and attributes that are listed here, and nothing else.

`python -m capacity` makes them, in a process that reads files of staff. Its text never reaches a page as it stands.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString

_LONGEST = 1 << 20  # characters; the longest that was seen has 60,000
_DEEPEST = 4
_NAMESPACE = "{http://www.w3.org/2000/svg}"
_ELEMENTS = {"svg", "title", "text", "line", "polyline", "polygon", "circle", "rect"}
_NUMBERS = re.compile(r"[-+0-9.,e ]*")
_WORD = re.compile(r"[a-z0-9]*")
_GEOMETRY = ("viewBox", "points", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height")
_ATTRIBUTES = {
    **dict.fromkeys(_GEOMETRY, _NUMBERS),
    "class": _WORD,
    "role": _WORD,
    "text-anchor": _WORD,
    "aria-label": re.compile(r".*", re.DOTALL),
}


class BadFigure(ValueError):
    """The text is no picture of a plan."""


def redrawn(svg: str) -> SafeString:
    """Return an `<svg>` for a page. Raises BadFigure for another element or attribute, or a declaration."""
    if len(svg) > _LONGEST or "<!" in svg or "<?" in svg:  # no declarations, so no entities but the five of XML
        raise BadFigure("is no picture of a plan")
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise BadFigure("is no XML") from error
    if root.tag != f"{_NAMESPACE}svg":
        raise BadFigure("is no svg")
    return _drawn(root, 0)


def _drawn(element: ElementTree.Element, depth: int) -> SafeString:
    name = element.tag.removeprefix(_NAMESPACE)
    if name not in _ELEMENTS or depth > _DEEPEST or (depth > 0) != (name != "svg"):
        raise BadFigure("has an element that no picture of a plan has")
    for key, value in element.attrib.items():
        allowed = _ATTRIBUTES.get(key)
        if allowed is None or not allowed.fullmatch(value):
            raise BadFigure("has an attribute that no picture of a plan has")
    attributes = format_html_join("", ' {}="{}"', element.attrib.items())
    inside = format_html_join(
        "", "{}{}", ((_drawn(child, depth + 1), conditional_escape(child.tail or "")) for child in element)
    )
    return format_html("<{}{}>{}{}</{}>", name, attributes, element.text or "", inside, name)
