"""One platform for all walks, one Chromium, and the people who are met in more than one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from tests.end_to_end.platform import Platform, running_platform
from tests.end_to_end.walks.customer import Customer, become_customer
from tests.end_to_end.walks.person import Person
from tests.end_to_end.walks.spans import Collector, collecting
from tests.end_to_end.walks.staff import Staff, become_staff, name_the_platform
from tests.marketplace.web.browser.conftest import browser

__all__ = ["browser"]  # the fixture

People = Callable[[str], Person]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def platform(collector: Collector) -> Iterator[Platform]:
    """An empty market: nothing is for sale but the base model. Earnings are payable at once, and spans are sent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        with running_platform(samples=False, pay_at_once=True) as running:
            yield running


@pytest.fixture(scope="module")
def complaints() -> list[str]:
    """The complaints of all pages' consoles."""
    return []


@pytest.fixture(autouse=True)
def _consoles_stay_silent(complaints: list[str]) -> Iterator[None]:
    complaints.clear()
    yield
    assert complaints == []


@pytest.fixture(scope="module")
def people(platform: Platform, browser: Browser, complaints: list[str]) -> People:
    """`people("ada")`: a new person with a browser and an address of their own."""

    def meet(name: str) -> Person:
        return Person(browser, platform.url, f"{name}@walks.example", platform.state.mails, complaints)

    return meet


@pytest.fixture(scope="module")
def staff(platform: Platform, people: People) -> Staff:
    """The first member of staff of a new platform, who wrote its legal name."""
    found = become_staff(platform, people("stella"))
    name_the_platform(found)
    return found


@pytest.fixture(scope="module")
def customer(staff: Staff, people: People) -> Customer:
    """A consumer with $12.50 and a key."""
    return become_customer(people("cora"))
