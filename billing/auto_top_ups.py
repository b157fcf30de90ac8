"""Automatic top-ups: a saved card is charged when less than a threshold is left, while its holder is away.

A bank that wants to ask the holder (3-D Secure) gets a payment page for the same top-up instead, which a member opens.
Each top-up is charged under one idempotency key, and credited once, like one that a member pays on a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F, Sum
from django.db.models.functions import Coalesce, Now
from django.utils import timezone

from billing.cards import customer_of
from billing.errors import CardNotFound, InvalidAutoTopUp
from billing.locks import lock_auto_top_up, lock_top_up
from billing.models import Account, AutoTopUp, Outbox, SavedCard, TopUp
from billing.models.payments import MAX_TOP_UP_CENTS, MIN_TOP_UP_CENTS
from billing.notices import tell_members
from billing.pricing import NANO_PER_CENT
from billing.stripe import StripeGateway, stripe_gateway
from billing.stripe.cards import AUTHENTICATION_REQUIRED, CardPayment
from billing.top_ups import CHECKOUT_LIFETIME, announce, credit_card_payment
from marketplace.accounts import audit
from marketplace.accounts.features import RETRY_SECONDS, is_on
from marketplace.accounts.models import Organization
from marketplace.accounts.suspension import is_suspended
from marketplace.accounts.verification import require_verified
from protocol.money import CENTS, usd

MAX_FAILURES = 3  # in a row; then a member has to turn the rule on again
FIRST_WAIT = timedelta(hours=1)  # after a refusal, doubled by each further one
BATCH = 100


@transaction.atomic
def set_auto_top_up(
    *,
    organization: Organization,
    card_id: UUID,
    threshold_cents: int,
    amount_cents: int,
    monthly_limit_cents: int,
    by: UUID | None = None,
) -> AutoTopUp:
    """Buy `amount_cents` with the card whenever less than `threshold_cents` is available, from now on.

    All payments of a calendar month (UTC) with the card stay within `monthly_limit_cents`. `by` is the id of the person
    who decides. Raises EmailUnverified, CardNotFound, InvalidAutoTopUp.
    """
    require_verified(by=by)
    card = SavedCard.objects.filter(pk=card_id, organization=organization, removed_at=None).first()
    if card is None:
        raise CardNotFound
    if not MIN_TOP_UP_CENTS <= amount_cents <= MAX_TOP_UP_CENTS:
        raise InvalidAutoTopUp("amount_cents", "an automatic top-up buys between $1 and $10,000")
    if not 0 < threshold_cents <= MAX_TOP_UP_CENTS:
        raise InvalidAutoTopUp("threshold_cents", "the threshold is between 1 cent and $10,000")
    if not amount_cents <= monthly_limit_cents <= 100 * MAX_TOP_UP_CENTS:
        raise InvalidAutoTopUp("monthly_limit_cents", "the monthly limit is between the amount and $1,000,000")
    rule, _created = AutoTopUp.objects.update_or_create(
        organization=organization,
        defaults={
            "card": card,
            "threshold_cents": threshold_cents,
            "amount_cents": amount_cents,
            "monthly_limit_cents": monthly_limit_cents,
            "state": AutoTopUp.State.ON,
            "failures": 0,
            "next_attempt_at": timezone.now(),
        },
    )
    cents = {"threshold": threshold_cents, "amount": amount_cents, "monthly_limit": monthly_limit_cents}
    audit.record(organization=organization, act="auto_top_up.set", data=cents)
    return rule


@dataclass(frozen=True, slots=True)
class AutoTopUpStatus:
    """An organization's rule with what it has done lately. Amounts in cents."""

    rule: AutoTopUp
    paid_this_month_cents: int
    last_attempt: TopUp | None

    @property
    def waits_for_next_month(self) -> bool:
        """Return whether one more payment would exceed the monthly limit."""
        return self.paid_this_month_cents + self.rule.amount_cents > self.rule.monthly_limit_cents


def auto_top_up_of(organization: Organization) -> AutoTopUpStatus | None:
    """Return the organization's rule, also one that is off; None before the first one."""
    rule = AutoTopUp.objects.select_related("card").filter(organization=organization).first()
    if rule is None:
        return None
    attempts = TopUp.objects.filter(organization=organization).exclude(card=None).select_related("card")
    return AutoTopUpStatus(rule, _paid_this_month_cents(organization.pk), attempts.order_by("-created_at").first())


@transaction.atomic
def stop_auto_top_up(*, organization: Organization) -> None:
    """Turn automatic top-ups off. A payment that is under way still counts."""
    AutoTopUp.objects.filter(organization=organization).update(state=AutoTopUp.State.OFF)
    audit.record(organization=organization, act="auto_top_up.stopped")


def due_organizations() -> list[UUID]:
    """Return whose credit is below the threshold, and whose card may be charged now."""
    wallets = Account.objects.filter(
        kind=Account.Kind.CUSTOMER_CREDIT, organization__auto_top_up__state="on", organization__suspended_at=None
    )
    low = wallets.filter(
        organization__auto_top_up__next_attempt_at__lte=Now(),
        posted__lt=F("held") + F("organization__auto_top_up__threshold_cents") * NANO_PER_CENT,
    )
    return list(low.values_list("organization_id", flat=True)[:BATCH])


def charge_if_low(*, organization_id: UUID, gateway: StripeGateway | None = None) -> TopUp | None:
    """Begin one automatic top-up, if credit is low and no payment with the card is under way; return it.

    None begins while staff have switched top-ups off; one that has begun goes on. Raises PaymentProviderUnavailable:
    the payment may or may not have been made, and `refresh_card_top_up` finds out.
    """
    top_up = _begin(organization_id)
    if top_up is not None:
        refresh_card_top_up(top_up_id=top_up.pk, gateway=gateway)
        top_up.refresh_from_db()
    return top_up


@transaction.atomic
def _begin(organization_id: UUID) -> TopUp | None:
    rule = lock_auto_top_up(organization_id)
    if rule is None or rule.state != AutoTopUp.State.ON or rule.next_attempt_at > timezone.now():
        return None
    if is_suspended(organization_id):
        return None
    wallet = Account.objects.filter(kind=Account.Kind.CUSTOMER_CREDIT, organization_id=organization_id).first()
    available = 0 if wallet is None else wallet.available
    mine = TopUp.objects.filter(organization_id=organization_id).exclude(card=None)
    if available >= rule.threshold_cents * NANO_PER_CENT or mine.filter(state__in=TopUp.WAITING).exists():
        return None
    if _paid_this_month_cents(organization_id) + rule.amount_cents > rule.monthly_limit_cents:
        _wait(rule, FIRST_WAIT)
        return None
    if not is_on("top-ups", organization_id):
        _wait(rule, timedelta(seconds=RETRY_SECONDS))
        return None
    # The first look at the payment is this process's; others wait for a while.
    return TopUp.objects.create(
        organization_id=organization_id,
        card=rule.card,
        amount_cents=rule.amount_cents,
        next_check_at=timezone.now() + timedelta(minutes=1),
    )


def _wait(rule: AutoTopUp, wait: timedelta) -> None:
    """Look again after `wait`: whoever is always due would take the place of others in `due_organizations`."""
    AutoTopUp.objects.filter(pk=rule.pk).update(next_attempt_at=Now() + wait)


def _paid_this_month_cents(organization_id: UUID) -> int:
    """Return what saved cards of the organization have paid in this calendar month (UTC)."""
    month = timezone.now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    paid = TopUp.objects.filter(organization_id=organization_id, created_at__gte=month, state=TopUp.State.CREDITED)
    total: int = paid.exclude(card=None).aggregate(cents=Coalesce(Sum("amount_cents"), 0))["cents"]
    return total


def refresh_card_top_up(*, top_up_id: UUID, gateway: StripeGateway | None = None) -> None:
    """Charge the card of a top-up, or find out how its payment went. Idempotent: it is charged once.

    Raises PaymentProviderUnavailable, PaymentMismatch.
    """
    top_up = TopUp.objects.select_related("organization", "card").get(pk=top_up_id)
    if top_up.card is None or top_up.state != TopUp.State.CREATED:
        return
    gateway = gateway or stripe_gateway()
    customer_id = customer_of(organization=top_up.organization, gateway=gateway)
    payment = gateway.cards.find_payment(customer_id=customer_id, top_up_id=top_up.pk) if top_up.checks else None
    if payment is None and timezone.now() - top_up.created_at > CHECKOUT_LIFETIME:
        # Stripe forgets the key after a day, so asking again could charge twice; and there was no payment.
        TopUp.objects.filter(pk=top_up.pk, state=TopUp.State.CREATED).update(state=TopUp.State.EXPIRED)
        return
    if payment is None:
        payment = gateway.cards.charge(
            top_up_id=top_up.pk,
            organization_id=top_up.organization_id,
            customer_id=customer_id,
            card_id=top_up.card.payment_method_id,
            amount_cents=top_up.amount_cents,
        )
    take_card_payment(payment=payment, gateway=gateway)


def take_card_payment(*, payment: CardPayment, gateway: StripeGateway) -> None:
    """Act on a payment with a saved card as it is now: credit it, ask its holder, or give up. Idempotent.

    Raises PaymentProviderUnavailable, PaymentMismatch.
    """
    top_up = credit_card_payment(payment=payment)
    if top_up is None:
        return
    if top_up.state == TopUp.State.CREDITED:
        AutoTopUp.objects.filter(pk=top_up.organization_id, state__in=["on", "waiting"]).update(
            state=AutoTopUp.State.ON, failures=0
        )
    elif payment.failure and top_up.state == TopUp.State.CREATED:
        # Only one that is ended for certain is replaced by a page or by a later payment.
        ended = gateway.cards.cancel_payment(payment.intent_id)
        if ended.succeeded:
            credit_card_payment(payment=ended)
        elif payment.failure == AUTHENTICATION_REQUIRED:
            _ask_holder(top_up, gateway)
        else:
            _give_up(top_up.pk, payment.failure)


def _ask_holder(top_up: TopUp, gateway: StripeGateway) -> None:
    """Open a payment page for the top-up, where the bank can ask the card's holder, and tell the members."""
    back = f"{settings.PUBLIC_URL}/dashboard/wallet?top_up={top_up.pk}"
    session = gateway.checkout.create(
        top_up_id=top_up.pk,
        organization_id=top_up.organization_id,
        amount_cents=top_up.amount_cents,
        success_url=f"{back}&checkout=done",
        cancel_url=f"{back}&checkout=cancelled",
    )
    with transaction.atomic():  # the members are told, or the page is not noted
        waiting = TopUp.objects.filter(pk=top_up.pk, state=TopUp.State.CREATED)
        if waiting.update(
            state=TopUp.State.PENDING,
            checkout_session_id=session.id,
            checkout_url=session.url,
            failure=AUTHENTICATION_REQUIRED,
            checks=0,
        ):
            AutoTopUp.objects.filter(pk=top_up.organization_id, state=AutoTopUp.State.ON).update(
                state=AutoTopUp.State.WAITING
            )
            tell_members(
                top_up.organization,
                kind="wallet.confirmation_asked",
                once=str(top_up.pk),
                subject="Your bank asks you to confirm a top-up",
                text="The bank of your card wants to know that an automatic top-up of "
                f"{usd(top_up.amount_cents, CENTS)} is yours. Confirm it in your wallet:\n\n"
                f"{settings.PUBLIC_URL}/dashboard/wallet\n\n"
                "No money has moved. Automatic top-ups go on when it is paid.",
                data={"top_up_id": str(top_up.pk), "amount_cents": top_up.amount_cents},
            )


@transaction.atomic
def _give_up(top_up_id: UUID, failure: str) -> None:
    top_up = lock_top_up(top_up_id)
    if top_up is None or top_up.state != TopUp.State.CREATED:
        return
    top_up.state = TopUp.State.FAILED
    top_up.failure = failure[:64]
    top_up.save(update_fields=["state", "failure"])
    announce(top_up, Outbox.Topic.TOP_UP_FAILED)
    rule = lock_auto_top_up(top_up.organization_id)
    if rule is None or rule.state != AutoTopUp.State.ON:
        return
    rule.failures += 1
    rule.next_attempt_at = timezone.now() + FIRST_WAIT * 2 ** (rule.failures - 1)
    if rule.failures >= MAX_FAILURES:
        rule.state = AutoTopUp.State.STOPPED
        tell_members(
            top_up.organization,
            kind="wallet.top_ups_stopped",
            once=str(top_up.pk),
            subject="Automatic top-ups have stopped",
            text=f"Your card was refused {MAX_FAILURES} times, so it is not charged any more. Choose another card in "
            f"your wallet:\n\n{settings.PUBLIC_URL}/dashboard/wallet",
            data={"top_up_id": str(top_up.pk)},
        )
    rule.save(update_fields=["failures", "next_attempt_at", "state"])
