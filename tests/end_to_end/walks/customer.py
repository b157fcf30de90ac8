"""A consumer's way: sign up, verify, top up, make a key, call as the model's page prints it, read the bill."""

from __future__ import annotations

import contextlib
import io
import os
import re
from dataclasses import dataclass
from typing import Any
from unittest import mock
from uuid import UUID

from playwright.sync_api import expect

from tests.end_to_end.walks.person import Person

BASE_MODEL = "SmolLM2 135M Instruct"
CARD_NAME = "Brightwater Ltd"


@dataclass(frozen=True)
class Customer:
    """A person with credit, and the key of their program."""

    person: Person
    key: str


@dataclass(frozen=True)
class Bill:
    """The words of a prediction's receipt: dollars as the page writes them."""

    number: UUID
    charged: str
    lines: tuple[str, ...]


def sign_up(person: Person) -> None:
    """Sign up from the page that is open, and verify the address from the mail."""
    person.follow("Sign up")
    person.fill(**{"E-mail": person.address, "Password": person.password})
    person.press("Create account")
    person.sees("Verify your e-mail address.")
    person.open_link_of(person.mail("erify"))
    person.press("Yes, verify it")
    person.sees(f"You have confirmed {person.address}.")


def top_up(person: Person, dollars: str, *, name: str, country: str = "US") -> None:
    """Buy credit from the wallet's page on Stripe's page, and come back."""
    person.fill(Amount_in_dollars=dollars)
    person.press("Continue to payment")
    person.fill(Name=name)
    person.page.get_by_label("Country").select_option(country)
    person.press(f"Pay ${dollars}")
    person.sees(f"Payment received: ${dollars} is in your credit.")


def make_key(person: Person, name: str) -> str:
    """Make a key on the page of keys; return it as it was copied."""
    person.fill(Name=name)
    person.press("Create key")
    key = person.copied(person.page.locator("main"))
    person.follow("I have saved it")
    return key


def become_customer(person: Person) -> Customer:
    """Arrive, and follow the steps of *Your first prediction* up to the call."""
    person.arrive()
    sign_up(person)
    person.follow("Add credit")
    top_up(person, "12.50", name=CARD_NAME, country="DE")
    person.follow("Overview")
    person.sees("Done: $12.50 available.")
    person.follow("Create a key")
    return Customer(person, make_key(person, "my program"))


def printed_call(person: Person) -> str:
    """Return the call for openai-python as it is copied from the model's page, which is open."""
    section = person.section("Call it from your code")
    person.unfold("Python (openai)", within=section)
    return person.copied(section.locator("details").filter(has_text="Python (openai)"))


def call(customer: Customer, printed: str) -> Any:
    """Run the printed program with the customer's key in the variable that it names; return its answer."""
    shown, names = io.StringIO(), dict[str, Any]()
    with mock.patch.dict(os.environ, INTARSIA_API_KEY=customer.key), contextlib.redirect_stdout(shown):
        exec(compile(printed, "printed on the page", "exec"), names)
    assert names["answer"].choices[0].message.content.strip() == shown.getvalue().strip() != ""
    return names["answer"]


def read_bill(person: Person) -> Bill:
    """Open the receipt of the newest prediction from the dashboard."""
    person.follow("Dashboard")
    person.follow("Usage")
    newest = person.page.get_by_role("table").last.get_by_role("row").nth(1)
    newest.get_by_role("link").click()
    person.sees("Signature verified.")
    person.picture()
    rows = person.page.get_by_role("table").first.get_by_role("row").all_inner_texts()
    number = person.page.locator("dd.mono").first.inner_text()
    return Bill(UUID(number), rows[-1].split()[-1], tuple(row.split("\t")[-1].strip() for row in rows[1:-1]))


def nano(text: str) -> int:
    """Return the nano-dollars of an amount as pages write it."""
    found = re.fullmatch(r"−?\$(\d+)\.(\d{1,9})", text.strip())
    assert found is not None, text
    return int(found[1]) * 10**9 + int(found[2].ljust(9, "0"))


def download(person: Person, name: str) -> bytes:
    """Follow a link to a file; return its content."""
    with person.page.expect_download() as started:
        person.page.get_by_role("link", name=name).first.click()
    return started.value.path().read_bytes()


def sees_wallet(person: Person, exactly: int) -> None:
    """Assert what the wallet's page says is available, to the nano-dollar."""
    person.follow("Wallet")
    dollars = f"${exactly / 1e9:.9f}".rstrip("0")
    expect(person.page.get_by_text(f"exactly {dollars}", exact=True)).to_be_visible()
