"""A person at a browser: reads pages and mails, clicks what is written there, and types what a screen showed."""

from __future__ import annotations

import email
import email.policy
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect

SECONDS = 60  # until a page or a mail is there: three workers of the suite share two cores
# The folder for a picture of each step, at both widths: for whoever changes the pages.
PICTURES = "WALK_PICTURES"
PASSWORD = "a walk through the market 7"


class Person:
    """One person with a browser of their own and an address at which mails arrive.

    Clicks go through names that the screen shows; `page` is there for what a person reads.
    """

    def __init__(self, browser: Browser, site: str, address: str, mails: Path, complaints: list[str]) -> None:
        self.address = address
        self.password = PASSWORD
        self.site = site
        self._mails = mails
        self._read: set[Path] = set()
        self._pictures = 0
        context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(SECONDS * 1_000)
        self.page = context.new_page()
        self.page.on("console", lambda entry: complaints.append(_words_of(entry)) if _is_complaint(entry) else None)
        self.page.on("pageerror", lambda error: complaints.append(str(error)))

    def arrive(self) -> None:
        """Open the site at the address that everybody knows."""
        self.page.goto(self.site)
        self.picture()

    def follow(self, name: str, *, within: Locator | None = None, exact: bool = True) -> None:
        """Click a link by its words."""
        (within or self.page).get_by_role("link", name=name, exact=exact).first.click()
        self.picture()

    def press(self, name: str, *, within: Locator | None = None) -> None:
        """Press a button by its words."""
        (within or self.page).get_by_role("button", name=name, exact=True).first.click()
        self.picture()

    def unfold(self, name: str, *, within: Locator | None = None) -> None:
        """Open what a summary hides."""
        (within or self.page).locator("summary").filter(
            has_text=re.compile(rf"^\s*{re.escape(name)}\s*$")
        ).first.click()

    def fill(self, **fields: str) -> None:
        """Type into fields by their labels, with `_` for a space in the names here."""
        for label, text in fields.items():
            self.field(label.replace("_", " ")).fill(text)

    def field(self, label: str) -> Locator:
        """Return the field under a label."""
        return self.page.get_by_label(label, exact=True)

    def sees(self, text: str) -> None:
        """Assert that the page shows these words."""
        expect(self.page.get_by_text(text).first).to_be_visible(timeout=SECONDS * 1_000)

    def section(self, heading: str) -> Locator:
        """Return the part of the page with this heading."""
        return self.page.get_by_role("region", name=heading)

    def copied(self, within: Locator) -> str:
        """Press *Copy* and return what the clipboard has then."""
        within.get_by_role("button", name="Copy").first.click()
        text: str = self.page.evaluate("navigator.clipboard.readText()")
        return text

    def reloads_until(self, is_there: Callable[[], bool], seconds: float = 90) -> None:
        """Reload the page until it says what it is to say, as a person does who was told to wait."""
        deadline = time.monotonic() + seconds
        while not is_there():
            assert time.monotonic() < deadline, self.page.locator("main").inner_text()
            self.page.wait_for_timeout(300)
            self.page.reload()
        self.picture()

    def mail(self, subject: str, seconds: float = SECONDS) -> str:
        """Return the text of the next unread mail to this person whose subject has these words."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for path, found in self._unread():
                if subject in found["Subject"]:
                    self._read.add(path)
                    return str(found.get_content())
            self.page.wait_for_timeout(100)
        raise AssertionError(
            f"no mail to {self.address} about {subject!r}: {[m['Subject'] for _, m in self._unread()]}"
        )

    def open_link_of(self, text: str) -> None:
        """Open the link of a mail."""
        found = re.search(r"https?://\S+", text)
        assert found is not None, text
        self.page.goto(found[0])
        self.picture()

    @contextmanager
    def new_tab(self) -> Iterator[Page]:
        """Leave the page open and work in another tab."""
        before = self.page
        self.page = before.context.new_page()
        try:
            yield self.page
        finally:
            self.page.close()
            self.page = before

    def picture(self) -> None:
        """Keep pictures of the page at two widths, where a folder is named for them."""
        folder = os.environ.get(PICTURES)
        if not folder:
            return
        self._pictures += 1
        for width in (360, 1280):
            self.page.set_viewport_size({"width": width, "height": 900})
            name = f"{self.address.split('@')[0]}-{self._pictures:02}-{width}.png"
            self.page.screenshot(path=str(Path(folder) / name), full_page=True)

    def _unread(self) -> Iterator[tuple[Path, email.message.EmailMessage]]:
        """Yield the mails to this person that were not opened, oldest first. A file may hold several."""
        for path in sorted(self._mails.glob("*"), key=lambda one: one.stat().st_mtime):
            if path in self._read:
                continue
            found = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
            if found["To"] in (self.address, None):  # one to several people names none of them
                yield path, found


def _is_complaint(entry: ConsoleMessage) -> bool:
    return entry.type in ("error", "warning")


def _words_of(entry: ConsoleMessage) -> str:
    return f"{entry.text} {entry.location.get('url', '')}"
