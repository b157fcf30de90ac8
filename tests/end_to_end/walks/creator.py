"""A creator's way: an organization, a colleague who joins and pushes, a figure, a price, a publication, a payout."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from examples.score import read_heldout
from tests.end_to_end.walks.customer import sign_up, top_up
from tests.end_to_end.walks.person import Person
from tests.terminal import make_machine, run_at_a_terminal

SLUG, NAME, MODEL = "larkfield", "Larkfield", "My model"
ADAPTER = Path(__file__).parents[3] / "examples" / "adapters" / "finance"
ROWS = 6
TARIFF = "0.02"  # dollars per prediction: a payout carries at least a cent


def found_organization(owner: Person) -> None:
    """Come for *Sell a model*, sign up, make an organization and put money into its wallet for the measurement."""
    owner.arrive()
    owner.follow("Sell a model")
    sign_up(owner)
    owner.follow("Settings")
    owner.follow("New organization")
    owner.fill(Name_in_addresses=SLUG, Name_that_people_read=NAME)
    owner.press("Create organization")
    owner.sees(f"{NAME} is there, and you act for it now.")


def invite(owner: Person, colleague: Person) -> None:
    """Invite a developer by mail, who signs up by the link and is a member then."""
    owner.follow("Members")
    owner.field("E-mail address").fill(colleague.address)
    owner.press("Send the invite")
    owner.sees(f"The invite is on its way to {colleague.address}.")
    colleague.open_link_of(colleague.mail(f"Join {SLUG}"))
    colleague.follow("Sign up", within=colleague.page.locator("main"))
    colleague.fill(**{"E-mail": colleague.address, "Password": colleague.password})
    colleague.press("Create account")
    colleague.sees(f"You joined {NAME}, as developer.")


class Machine:
    """The colleague's machine: commands are copied from the page *My models*, and logins confirmed in the browser."""

    def __init__(self, person: Person, home: Path) -> None:
        self._person = person
        self._environment = make_machine(home)
        self.folder = home / "work"

    def run(self, lines: list[str], **answers: str) -> str:
        """Run lines one after the other, answer questions by a word of theirs; return what the terminal showed."""
        return run_at_a_terminal(lines, self._environment, self.folder, self._confirm, answers)

    def printed(self, title: str) -> list[str]:
        """Return the commands of a step of the checklist, as they are copied."""
        step = self._person.page.get_by_role("listitem").filter(
            has=self._person.page.get_by_role("heading", name=title)
        )
        return self._person.copied(step).splitlines()

    def set_up(self) -> None:
        """Install the command and log in, as printed. What the shell has entered then stays entered."""
        shown = self.run([*self.printed("Install the command"), *self.printed("Log in")])
        assert f"for {SLUG}" in shown
        self._environment["PATH"] = f"{self.folder}/intarsia-env/bin:{self._environment['PATH']}"

    def push(self) -> None:
        """Write the example, put a trained adapter in its place as the page says, check it and push it."""
        example, check = self.printed("Check an adapter")
        self.run([example])
        for file in ADAPTER.iterdir():
            shutil.copy(file, self.folder / "my-adapter")
        shown = self.run([check, *self.printed("Push it")])
        assert "accepted" in shown and f"{SLUG}/my-model@1 is verified" in shown

    def measure(self) -> tuple[int, int]:
        """Write rows and have the platform ask them; return how many it found right, and how many with the base."""
        rows = read_heldout("finance")[:ROWS]
        lines = ({"message": row["messages"][-1]["content"], "expected": row["expected"]} for row in rows)
        (self.folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        shown = self.run(self.printed("Have it measured"), Start="y")
        right, base = re.search(r"right +(\d+) of", shown), re.search(r"base +(\d+) of", shown)
        assert right is not None and base is not None, shown
        return int(right[1]), int(base[1])

    def _confirm(self, code: str) -> None:
        """Open the page that the terminal names, type the code, compare, confirm."""
        person = self._person
        with person.new_tab():
            person.page.goto(f"{person.site}/device")
            person.fill(Code=code)
            person.press("Continue")
            person.sees("Let this machine act for you?")
            person.press("Confirm")
            person.sees("Go back to your terminal")


def set_price(person: Person) -> None:
    """Follow the checklist's way to the price, and ask for a fee per prediction."""
    person.follow("My models")
    person.follow(MODEL)
    person.field("Per prediction").fill(TARIFF)
    person.press("Set price")
    person.sees("The new price holds from now on.")


def publish(person: Person) -> None:
    """Follow the checklist to the versions, and offer the only one for sale."""
    person.follow("My models")
    person.follow("Its versions")
    person.unfold("Publish")
    person.press("Publish version 1")
    person.sees("Version 1 is in review")


def fill_wallet(owner: Person) -> None:
    """Put credit into the organization's wallet."""
    owner.follow("Wallet")
    top_up(owner, "5.00", name=NAME)


def set_up_payouts(owner: Person) -> None:
    """Follow the checklist to Stripe's page, fill it in and come back."""
    owner.follow("My models")
    owner.follow("Payouts", within=owner.page.locator("main"))
    owner.press("Set up payouts")
    owner.press("Agree and submit")


def pay_out(owner: Person) -> None:
    """Ask for everything that is payable, and look until the bank has it."""
    button = owner.page.get_by_role("button", name="Pay out now")
    owner.reloads_until(lambda: button.count() == 1 and button.is_enabled())
    owner.press("Pay out now")
    owner.sees("is on its way to your bank.")
    owner.reloads_until(lambda: owner.page.get_by_role("cell", name="paid", exact=True).count() == 1)
    owner.follow("Statement")
    owner.sees("Arrived at your bank")
