"""Somebody who runs the platform: their account with a second factor, reviews, refunds, the fleet."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

from playwright.sync_api import Locator

from devstack.state import REPOSITORY
from devstack.totp import totp
from tests.end_to_end.platform import Platform
from tests.end_to_end.walks.person import Person
from tests.terminal import answer_at_a_terminal


@dataclass
class Staff:
    """A member of staff with the recovery codes that they have kept on paper."""

    person: Person
    codes: list[str]


def become_staff(platform: Platform, person: Person) -> Staff:
    """Follow "Run the platform": `createsuperuser`, then the second factor that the first sign-in asks for."""
    answers = {"Email:": person.address, "Password:": person.password, "Password (again):": person.password}
    command = [sys.executable, "-m", "devstack", "manage", "createsuperuser"]
    environment = {**os.environ, "INTARSIA_HOME": str(platform.state.root)}
    assert "created" in answer_at_a_terminal(command, answers, environment, REPOSITORY)
    person.arrive()
    person.follow("Sign in")
    person.fill(**{"E-mail": person.address, "Password": person.password})
    person.press("Sign in")
    person.sees("The platform's pages open once you have a second factor: set one up here.")
    person.follow("Add an app")
    secret = person.page.get_by_text("Secret:").locator("code").inner_text()
    person.fill(Authenticator_code=totp(secret))
    person.press("Add the app")
    codes = person.page.locator("pre").inner_text().split()
    person.follow("I have kept them")
    return Staff(person, codes)


def sign_in_again(staff: Staff) -> None:
    """Sign out, and in again with the password and a recovery code."""
    person = staff.person
    person.follow("Sign out")
    person.press("Sign out", within=person.page.locator("main"))
    person.follow("Sign in")
    person.fill(**{"E-mail": person.address, "Password": person.password})
    person.press("Sign in")
    person.sees("The code of your authenticator app, or one of your recovery codes.")
    person.page.get_by_role("textbox").fill(staff.codes.pop())
    person.press("Sign in")
    person.follow("Platform")


def name_the_platform(staff: Staff) -> None:
    """Write the legal name that papers need, as the platform's overview asks for."""
    person = staff.person
    person.follow("Platform")
    person.sees("Papers wait")
    person.follow("Write the billing profile")
    person.fill(Legal_name="Intarsia GmbH", Street_and_number="Musterstraße 1", City="Berlin", Postal_code="10115")
    person.field("Country").select_option("DE")
    person.press("Save")


def approve(staff: Staff, title: str) -> None:
    """Look at the model that waits, and approve it."""
    person = staff.person
    person.follow("Platform")
    person.page.get_by_role("link", name=re.compile("^Reviews")).first.click()
    person.follow(title)
    person.sees("No public model of this organization has been reviewed yet.")
    person.press("Approve")
    person.sees("Approved:")


def refund(staff: Staff, number: str, reason: str) -> None:
    """Give the whole charge of a prediction back."""
    person = staff.person
    person.follow("Platform")
    person.follow("Refunds")
    person.page.get_by_role("main").get_by_role("textbox").first.fill(number)
    person.press("Find it")
    person.field("Reason, which the customer reads").fill(reason)
    person.press("Give it back")
    person.sees("The refund is booked.")


def replica_state(staff: Staff) -> Locator:
    """Return the state of the replica on the page of the fleet, which is open."""
    return staff.person.page.locator("[data-replica] [data-field=state]")
