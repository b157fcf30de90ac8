"""`manage.py seed_samples`: the sample people and organizations, and the platform's own listing of the bare base model.

Run it as often as you like: what exists is kept, and passwords are made to match the credentials file.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from billing.services import credit_promotion
from marketplace.accounts import services as accounts
from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import Membership, Organization, User
from marketplace.accounts.names import PLATFORM_SLUG
from marketplace.accounts.second_factor import set_authenticator
from marketplace.accounts.verification import mark_verified
from marketplace.catalog import services as catalog
from marketplace.catalog.services.listings import ExampleMessage, ListingText

BASE_SLUG = "smollm2-135m-instruct"
BASE_LISTING = ListingText(
    title="SmolLM2 135M Instruct",
    summary="The bare base model that the sample adapters build on: small, fast, general.",
    card_markdown=(
        "# SmolLM2 135M Instruct\n\n"
        "The base model, without any adapter. Use it to see what an adapter adds: every model page compares the two on "
        "the same held-out rows.\n"
    ),
    industry="general",
    tags=["base", "general"],
    example_messages=[ExampleMessage("user", "Explain in one sentence what a LoRA adapter is.")],
)
BASE_PRICE = {
    "input_micro_usd_per_mtok": 20_000,
    "cached_input_micro_usd_per_mtok": 5_000,
    "output_micro_usd_per_mtok": 80_000,
    "embedding_micro_usd_per_mtok": 10_000,
    "interactive_bps": 15_000,
    "batch_bps": 5_000,
}


@dataclass(frozen=True, slots=True)
class SampleAccount:
    """One sample person and the organization they own."""

    role: str
    slug: str
    name: str
    is_staff: bool = False


ACCOUNTS = (
    SampleAccount("staff", PLATFORM_SLUG, "Intarsia", is_staff=True),
    SampleAccount("finance", "ledgerline", "Ledgerline"),
    SampleAccount("health", "carepath", "Carepath"),
    SampleAccount("telecom", "signalbox", "Signalbox"),
    SampleAccount("consumer", "northwind", "Northwind"),
)


_CREATORS = ("finance", "health", "telecom")
EVAL_CREDIT_NANO_USD = 10**9  # $1


@dataclass(frozen=True, slots=True)
class Login:
    """A person's e-mail and password."""

    email: str
    password: str
    totp_secret: str = field(default="", repr=False)  # of an authenticator app, which staff need


class Command(BaseCommand):
    help = "Create the sample users, organizations and wallets, and list the base model. Idempotent."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take paths to the base model and the logins; passwords never come from the command line."""
        parser.add_argument("--base-dir", required=True, type=Path, help="Hugging Face folder of the base model")
        parser.add_argument(
            "--credentials", required=True, help="JSON file, or - for stdin: role -> {email, password}; " + _ROLES
        )
        parser.add_argument("--base-name", default="", help="name of the base model (default: the folder's name)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it in one transaction: all samples or none."""
        logins = read_logins(options["credentials"])
        directory = Path(options["base_dir"])
        try:
            with transaction.atomic():
                organizations = {one.role: ensure_account(one, logins[one.role]) for one in ACCOUNTS}
                base = catalog.register_base_directory(
                    name=options.get("base_name") or directory.resolve().name, directory=directory
                )
                listing = catalog.list_base_model(
                    organization=organizations["staff"],
                    slug=BASE_SLUG,
                    base_model=base,
                    text=BASE_LISTING,
                    price=BASE_PRICE,
                )
        except Refusal as error:
            raise CommandError(error.message) from None
        names = ", ".join(organization.slug for organization in organizations.values())
        self.stdout.write(f"organizations: {names}; base listing: {listing.full_name}")


_ROLES = "roles: " + ", ".join(account.role for account in ACCOUNTS)


def read_logins(source: str) -> dict[str, Login]:
    """Parse the credentials; raises CommandError naming what is missing, and never shows a password."""
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
        found = json.loads(text)
        return {one.role: _login(found[one.role]) for one in ACCOUNTS}
    except OSError as error:
        raise CommandError(f"{source}: cannot be read ({error.strerror})") from None
    except (KeyError, TypeError):
        raise CommandError(f"{source}: every role needs email and password; {_ROLES}") from None
    except ValueError:
        raise CommandError(f"{source}: not JSON") from None


def _login(found: dict[str, Any]) -> Login:
    return Login(str(found["email"]), str(found["password"]), str(found.get("totp_secret", "")))


def ensure_account(account: SampleAccount, login: Login) -> Organization:
    """Find or make the user and the organization; raises Conflict if the name is taken."""
    user = User.objects.filter(email__iexact=login.email).first()
    if user is None:
        user = User.objects.create_user(login.email, login.password, is_staff=account.is_staff)
    elif not user.check_password(login.password):
        user.set_password(login.password)
        user.save(update_fields=["password"])
    if login.totp_secret:
        set_authenticator(user=user, secret=login.totp_secret)
    mark_verified(user=user)
    membership = Membership.objects.filter(user=user, organization__slug=account.slug).first()
    if membership is not None:
        return membership.organization
    made = accounts.create_organization(owner=user, slug=account.slug, name=account.name, allow_reserved=True)
    if account.role in _CREATORS:  # they pay for the evaluation of what they publish
        credit_promotion(organization=made, amount_nano_usd=EVAL_CREDIT_NANO_USD, reference=f"samples:{account.slug}")
    return made
