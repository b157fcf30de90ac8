"""The page of an evaluation in a browser: a square for each row, and nothing that is cut off on a telephone."""

from __future__ import annotations

from pathlib import Path

import pytest

from marketplace.catalog.models import Evaluation
from tests.marketplace.web.browser.conftest import WIDTHS, Open
from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.browser


def test_the_page_of_an_evaluation_shows_each_row(open_page: Open, site: tuple[str, World], tmp_path: Path) -> None:
    page = open_page(None)
    page.goto(f"/evaluations/{Evaluation.objects.get().run_id}")
    assert page.locator("svg.grid").count() == 2
    assert page.locator("svg.grid").first.locator("rect.right").count() == 113
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 1100})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=tmp_path / f"evaluation-{width}.png")
