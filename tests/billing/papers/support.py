"""Billing profiles, paid top-ups and the text of a PDF."""

from __future__ import annotations

import pypdfium2

from billing.models import Paper, TopUp
from billing.papers.profiles import ProfileText, save_profile
from billing.papers.receipts import issue_due_receipts
from billing.services import refresh_top_up
from devstack.stripe_double import tax
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Organization
from marketplace.accounts.names import PLATFORM_SLUG
from tests.billing.top_ups import begin, pay

SELLER = ProfileText(
    legal_name="Intarsia GmbH",
    line1="Torstraße 1",
    postal_code="10119",
    city="Berlin",
    country="DE",
    tax_id="DE123456789",
    email="billing@intarsia.example",
)
BUYER = ProfileText(
    legal_name="Łódź Analityka Sp. z o.o.",
    line1="ul. Piotrkowska 10",
    postal_code="90-001",
    city="Łódź",
    country="PL",
    tax_id="PL1234567890",
)


def make_platform() -> Organization:
    """The platform's own organization, with the profile that every paper needs."""
    platform, _created = Organization.objects.get_or_create(slug=PLATFORM_SLUG, defaults={"name": "Intarsia"})
    save_profile(organization=platform, text=SELLER, by=None)
    return platform


def paid_top_up(
    double: StripeDouble, organization: Organization, *, cents: int = 2_500, country: str = "US", tax_id: str = ""
) -> TopUp:
    """A top-up that a payer of this country paid."""
    double.payer = tax.payer(name="Łódź Analityka Sp. z o.o.", country=country, tax_id=tax_id)
    top_up = begin(organization, cents)
    pay(double, top_up)
    return refresh_top_up(top_up_id=top_up.pk)


def receipt_of(top_up: TopUp) -> Paper:
    issue_due_receipts()
    return Paper.objects.get(kind="receipt", subject=str(top_up.pk))


def text_of(pdf: bytes) -> str:
    """The text of all pages, in lines."""
    document = pypdfium2.PdfDocument(pdf)
    try:
        return "\n".join(page.get_textpage().get_text_bounded().replace("\r\n", "\n") for page in document)
    finally:
        document.close()
