"""Saved cards: a customer saves one on Stripe's page, and removes it here. We know its last four digits
and Stripe's fingerprint of it, never its number."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from billing.card_uses import note_use
from billing.errors import CardInUse, CardNotFound, TooManyAttempts
from billing.locks import lock_auto_top_up
from billing.models import AutoTopUp, SavedCard, StripeCustomer
from billing.stripe import StripeGateway, stripe_gateway
from billing.stripe.cards import SetupPage
from marketplace.accounts import audit
from marketplace.accounts.models import Organization
from marketplace.accounts.verification import require_verified

MAX_CARDS = 5  # per organization
MAX_NEW_CARDS, NEW_CARD_WINDOW = 10, timedelta(days=30)  # removed ones count: cards are tested that way


def cards_of(organization: Organization) -> QuerySet[SavedCard]:
    """Return the organization's cards that are not removed, oldest first."""
    return SavedCard.objects.filter(organization=organization, removed_at=None).order_by("created_at", "id")


def open_card_page(
    *,
    key: UUID,
    organization: Organization,
    success_url: str,
    cancel_url: str,
    by: UUID | None = None,
    gateway: StripeGateway | None = None,
) -> str:
    """Open a page at Stripe where a card is saved, and return its address. `key` makes a retry open the same page.

    `by` is the id of the person who saves it. Raises EmailUnverified, PaymentProviderUnavailable, CardInUse where the
    organization has as many cards as it may, and TooManyAttempts where it has saved as many within a month.
    """
    require_verified(by=by)
    if cards_of(organization).count() >= MAX_CARDS:
        raise CardInUse(f"an organization saves up to {MAX_CARDS} cards; remove one first")
    recent = SavedCard.objects.filter(organization=organization, created_at__gt=timezone.now() - NEW_CARD_WINDOW)
    if recent.count() >= MAX_NEW_CARDS:
        days = NEW_CARD_WINDOW.days
        raise TooManyAttempts(f"{MAX_NEW_CARDS} cards were saved within {days} days; use one of them, or wait")
    gateway = gateway or stripe_gateway()
    return gateway.cards.open_setup_page(
        key=key,
        customer_id=customer_of(organization=organization, gateway=gateway),
        organization_id=organization.pk,
        success_url=success_url,
        cancel_url=cancel_url,
    ).url


def customer_of(*, organization: Organization, gateway: StripeGateway) -> str:
    """Return the organization's customer at Stripe, making it at first use. Raises PaymentProviderUnavailable."""
    known = StripeCustomer.objects.filter(organization=organization).first()
    if known is None:
        # The idempotency key gives two callers at once the same customer.
        customer_id = gateway.cards.create_customer(organization_id=organization.pk, name=organization.name)
        known, _created = StripeCustomer.objects.get_or_create(
            organization=organization, defaults={"customer_id": customer_id}
        )
    return known.customer_id


def save_card(*, session_id: str, gateway: StripeGateway | None = None) -> SavedCard | None:
    """Note the card that was saved on a page of ours. Idempotent; None for a page without a card, or not of ours.

    Raises PaymentProviderUnavailable.
    """
    return keep_card(page=(gateway or stripe_gateway()).cards.retrieve_setup_page(session_id))


def keep_card(*, page: SetupPage) -> SavedCard | None:
    """Note the card of a page, for the organization that opened it. A removed card stays removed."""
    try:
        organization_id = UUID(page.organization_id)
    except ValueError:
        return None
    if page.card is None or not Organization.objects.filter(pk=organization_id).exists():
        return None
    card, _created = SavedCard.objects.get_or_create(
        payment_method_id=page.card.id,
        defaults={
            "organization_id": organization_id,
            "brand": page.card.brand,
            "last4": page.card.last4,
            "exp_month": page.card.exp_month,
            "exp_year": page.card.exp_year,
            "fingerprint": page.card.fingerprint,
        },
    )
    note_use(organization_id=organization_id, fingerprint=page.card.fingerprint, at=timezone.now())
    return card


def remove_card(*, organization: Organization, card_id: UUID, gateway: StripeGateway | None = None) -> None:
    """Forget a card, here and at Stripe. Idempotent.

    Raises CardNotFound, CardInUse while automatic top-ups charge it, and PaymentProviderUnavailable: nothing charges
    the card any more, and a call again makes Stripe forget it.
    """
    card = SavedCard.objects.filter(pk=card_id, organization=organization).first()
    if card is None:
        raise CardNotFound
    with transaction.atomic():
        rule = lock_auto_top_up(organization.pk)
        if rule is not None and rule.card_id == card.pk and rule.state != AutoTopUp.State.OFF:
            raise CardInUse("automatic top-ups charge this card; turn them off or choose another card first")
        # From now on nothing charges it, whether or not Stripe answers.
        if SavedCard.objects.filter(pk=card.pk, removed_at=None).update(removed_at=timezone.now()):
            audit.record(organization=organization, act="card.removed", subject=str(card.pk))
    (gateway or stripe_gateway()).cards.remove(card.payment_method_id)
