"""One page after the other, looked at: two widths, both colour schemes, and the barriers that axe-core finds."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from marketplace.accounts.models import User
from tests.marketplace.web.browser.conftest import WIDTHS, Open

SCREENSHOTS = "SCREENSHOTS"
Scheme = Literal["light", "dark"]
PICTURED: list[tuple[int, Scheme]] = [(width, scheme) for width in WIDTHS for scheme in ("light", "dark")]
EXAMINED: list[tuple[int, Scheme]] = [(1280, "light"), (360, "dark")]  # both widths and both schemes are seen
axe = Axe()
# The innermost elements that reach beyond the window, by class or tag.
WIDER = """[...document.querySelectorAll("main *")].filter((one) => one.getBoundingClientRect().right > innerWidth + 1
    && !one.closest(".table-wrap, pre")).map((one) => one.className || one.tagName).slice(-3).join(", ")"""
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"], "resultTypes": ["violations"]}


class Shown(NamedTuple):
    """A page to look at; with `press`, the answer to that button, after fields, by their labels, were filled."""

    name: str
    user: User | None
    path: str
    status: int = 200
    press: str = ""
    fill: tuple[tuple[str, str], ...] = ()


def look_at_all(open_page: Open, pages: Iterable[Shown]) -> list[str]:
    """Open each page in the browser of its user and return what is wrong. With SCREENSHOTS, leave pictures there."""
    wrong: list[str] = []
    opened: dict[object, Page] = {}
    for shown in pages:
        who = (shown.user.pk if shown.user else None, shown.status)
        page = opened.get(who) or opened.setdefault(who, open_page(shown.user, status=shown.status))
        response = page.goto(shown.path)
        assert response is not None and response.status == shown.status, shown.path
        if shown.press:
            for label, text in shown.fill:
                page.get_by_label(label, exact=True).fill(text)
            page.get_by_role("button", name=shown.press).click()
            page.wait_for_load_state("load")
        wrong += look_at(page, shown.name)
    return wrong


def look_at(page: Page, name: str) -> list[str]:
    """Return what is wrong with the page that is open."""
    folder = os.environ.get(SCREENSHOTS)
    wrong: list[str] = []
    for width, scheme in PICTURED if folder else EXAMINED:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        if page.evaluate("document.documentElement.scrollWidth") > width:
            wrong.append(f"{name} scrolls sideways at {width}: {page.evaluate(WIDER)}")
        if folder:
            page.screenshot(path=Path(folder) / f"{name}-{width}-{scheme}.png", full_page=True)
        if (width, scheme) in EXAMINED:
            wrong += [f"{name} at {width}, {scheme}: {one}" for one in _barriers(page)]
    return wrong


def _barriers(page: Page) -> list[str]:
    """Return what axe-core finds serious or critical, with the elements."""
    found = axe.run(page, options=RULES).response["violations"]
    return [
        f"{one['id']} ({one['help']}): {', '.join(str(node['target'][0]) for node in one['nodes'][:4])}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
