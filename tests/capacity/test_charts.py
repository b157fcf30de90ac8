"""Pictures are well-formed, hold their figures and words, and pass no markup through."""

from __future__ import annotations

import math
from xml.etree import ElementTree

from capacity.charts import Limit, Line, line_chart, stacked_bar, standalone, tornado_chart

SVG = "{http://www.w3.org/2000/svg}"


def test_line_chart_has_axes_fan_and_limit() -> None:
    points = [(float(x), float(x * x)) for x in range(10)]
    text = line_chart(
        'Calls <b>"by"</b> hour',
        [
            Line("bears", points, chosen=(3.0, 9.0)),
            Line("measured", [], style="second", dots=[(2.0, 5.0), (4.0, 15.0)]),
        ],
        x_label="hours",
        y_label="calls/s",
        fan=[(x, y / 2, y * 2) for x, y in points],
        limits=[Limit("the promise", 50.0)],
    )
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == 'Calls <b>"by"</b> hour' and "<b>" not in text
    assert len(root.findall(f"{SVG}circle")) == 3
    words = [one.text for one in root.iter(f"{SVG}text")]
    assert {"hours", "calls/s", "the promise", "measured", "0", "150"} <= set(words)
    polygon = root.find(f"{SVG}polygon")
    assert polygon is not None and len(polygon.get("points", "").split()) == 20
    assert ElementTree.fromstring(standalone(text)).find(f"{SVG}style") is not None


def test_figures_that_are_not_finite_are_left_out() -> None:
    text = line_chart("t", [Line("l", [(0, 1), (1, math.nan), (2, math.inf), (3, 2)])], x_label="", y_label="")
    polyline = ElementTree.fromstring(text).find(f"{SVG}polyline")
    assert polyline is not None and len(polyline.get("points", "").split()) == 2 and "nan" not in text
    assert "nan" not in line_chart("empty", [], x_label="x", y_label="y")


def test_stacked_bar_fills_its_width() -> None:
    text = stacked_bar("Memory", {"weights": 16.1, "adapters": 21.5, "KV cache": 34.0, "free": 8.4}, "GB")
    widths = [float(one.get("width", 0)) for one in ElementTree.fromstring(text).iter(f"{SVG}rect")]
    assert sum(width for width in widths if width > 10) == 624
    assert "KV cache: 34 GB" in text
    assert "nan" not in stacked_bar("Nothing", {"weights": 0.0}, "GB")


def test_tornado_says_where_no_fleet_serves() -> None:
    text = tornado_chart("Inputs", [("demand", math.inf, 100.0, 140.0), ("price", 80.0, 100.0, 120.0)], "USD")
    root = ElementTree.fromstring(text)
    bars = [one for one in root.findall(f"{SVG}rect") if one.get("height") == "15"]  # the others are the legend's
    assert len(bars) == 3 and "no fleet serves" in text and "planned: 100.00 USD" in text
    assert "80.00" in text and "20 % greater" in text
    assert "no change" in tornado_chart("Inputs", [("demand", 100.0, 100.0, 100.0)], "USD")
    assert "nan" not in tornado_chart("None", [], "USD")


def test_limits_neither_flatten_a_line_nor_hide_one_another() -> None:
    limits = [Limit("fast", 1.0), Limit("slow", 1.05), Limit("batch", 60.0)]
    text = line_chart("t", [Line("l", [(0, 0.5), (1, 0.9)])], x_label="", y_label="", limits=limits)
    assert "batch 60: far above" in text and "e+" not in text
    words = ElementTree.fromstring(text).iter(f"{SVG}text")
    places = [float(one.get("y", 0)) for one in words if one.text in ("fast", "slow")]
    assert abs(places[0] - places[1]) >= 14
