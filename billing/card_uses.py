"""Cards by their fingerprints: which organizations used one, and which top-ups it paid.

Stripe gives the same card number the same fingerprint, whoever saves it or pays with it. A wallet on a phone pays with
a token of the card, which has a fingerprint of its own, and prepaid cards are sold by the hundred: both link
organizations as other cards do, but what they paid for has no card that counts (`TopUp.card_fingerprint` is "").
"""

from __future__ import annotations

import logging
from datetime import datetime
from uuid import UUID

from django.utils import timezone

from billing.errors import PaymentProviderUnavailable
from billing.models import CardUse, SavedCard, TopUp
from billing.stripe import StripeGateway
from billing.stripe.charges import Charge

logger = logging.getLogger(__name__)

BATCH = 50  # one call to Stripe each


def note_use(*, organization_id: UUID, fingerprint: str, at: datetime) -> None:
    """Note that the organization used a card at that time; the first time stands. Idempotent."""
    if not fingerprint:
        return
    use = CardUse(organization_id=organization_id, fingerprint=fingerprint, first_used_at=at)
    CardUse.objects.bulk_create([use], ignore_conflicts=True)
    # A payment of long ago may be learned of after a later one.
    CardUse.objects.filter(organization_id=organization_id, fingerprint=fingerprint, first_used_at__gt=at).update(
        first_used_at=at
    )


def note_payment(*, top_up: TopUp, charge: Charge | None) -> None:
    """Note the card of a paid top-up, once. None, of a payment whose charge is not known yet, changes nothing."""
    if charge is None or top_up.card_fingerprint is not None:
        return
    note_use(
        organization_id=top_up.organization_id,
        fingerprint=charge.card.fingerprint,
        at=top_up.credited_at or timezone.now(),
    )
    top_up.card_fingerprint = charge.card.fingerprint if charge.card.counts else ""
    TopUp.objects.filter(pk=top_up.pk, card_fingerprint=None).update(card_fingerprint=top_up.card_fingerprint)


def learn_cards(*, gateway: StripeGateway, limit: int = BATCH) -> int:
    """Ask Stripe about up to `limit` paid top-ups, and as many saved cards, whose card is not known yet.

    Returns how many were learned. One that Stripe does not answer for is asked about by a later call.
    """
    return _learn_payments(gateway, limit) + _learn_saved_cards(gateway, limit)


def _learn_payments(gateway: StripeGateway, limit: int) -> int:
    unknown = TopUp.objects.filter(state=TopUp.State.CREDITED, card_fingerprint=None)
    learned = 0
    for top_up in unknown.exclude(payment_intent_id=None).order_by("-credited_at")[:limit]:
        try:
            payment = gateway.cards.retrieve_payment(str(top_up.payment_intent_id))
        except PaymentProviderUnavailable as error:
            logger.warning("the card of top-up %s is not known yet: %s", top_up.pk, type(error).__name__)
            continue
        note_payment(top_up=top_up, charge=payment.charge)
        learned += top_up.card_fingerprint is not None
    return learned


def _learn_saved_cards(gateway: StripeGateway, limit: int) -> int:
    learned = 0
    for card in SavedCard.objects.filter(fingerprint=None, removed_at=None).order_by("-created_at")[:limit]:
        try:
            fingerprint = gateway.cards.retrieve(card.payment_method_id).fingerprint
        except PaymentProviderUnavailable as error:
            logger.warning("the fingerprint of card %s is not known yet: %s", card.pk, type(error).__name__)
            continue
        note_use(organization_id=card.organization_id, fingerprint=fingerprint, at=card.created_at)
        SavedCard.objects.filter(pk=card.pk).update(fingerprint=fingerprint)
        learned += 1
    return learned
