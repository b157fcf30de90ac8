"""The tasks of this app. Each may run twice, or be killed at any line."""

from __future__ import annotations

from celery import shared_task
from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from marketplace.alerts.services import tell
from marketplace.protection import policies
from marketplace.protection.models import Customer, Measure
from marketplace.protection.selectors import protection_of, rules_of, standing_of
from marketplace.protection.services import untold

AT_ONCE = 100
KIND_NOTICED, KIND_ASKED = "model.copying", "model.more_calls"

# Calls in three different weeks and five paid dollars within the time for which sums are read: a year.
_TRUST_SQL = """
UPDATE protection_customer c SET trusted_at = now()
WHERE c.trusted_at IS NULL AND c.noticed_at IS NULL AND c.first_seen_at <= now() - make_interval(days => %(after)s)
AND EXISTS (
    SELECT 1 FROM billing_usageday u
    WHERE u.organization_id = c.organization_id AND u.model_id = c.model_id AND u.day > now() - interval '1 year'
    HAVING sum(u.charged_nano_usd) >= %(paid)s AND count(DISTINCT date_trunc('week', u.day)) >= %(weeks)s)
"""


@shared_task
def tell_creators() -> int:
    """Tell creators of customers that were noticed, or that ask for more; return how many messages there were."""
    found = Customer.objects.filter(untold()).select_related("model__organization").order_by("pk")[:AT_ONCE]
    return sum(_tell(customer) for customer in found)


@shared_task
def trust_customers() -> int:
    """Trust those who have called and paid for weeks without being noticed; return how many."""
    with connection.cursor() as cursor:
        cursor.execute(
            _TRUST_SQL,
            {
                "after": policies.TRUST_AFTER.days,
                "paid": policies.TRUST_PAID_NANO_USD,
                "weeks": policies.TRUST_WEEKS,
            },
        )
        return cursor.rowcount


@transaction.atomic
def _tell(customer: Customer) -> int:
    count = 0
    if customer.noticed_at is not None and customer.told_at is None:
        _tell_notice(customer)
        Customer.objects.filter(pk=customer.pk).update(told_at=timezone.now())
        count += 1
    if customer.asked_at is not None and customer.asked_told_at is None:
        _tell_request(customer)
        Customer.objects.filter(pk=customer.pk).update(asked_told_at=timezone.now())
        count += 1
    return count


_DONE = {
    "": "Nothing was done about it",
    Measure.TELL: "Nothing was done about it",
    Measure.SLOW: "Its calls are slowed down",
    Measure.ASK: "Its calls are down to the introductory allowance until you answer",
    Measure.STOP: "Its calls are refused",
}


def _tell_notice(customer: Customer) -> None:
    model, name = customer.model, _name(customer)
    measure = policies.measure_of(rules_of(protection_of(model)), standing_of(customer))
    permille = customer.evenness_permille
    even = "" if permille is None else f", and they use {permille / 10:.0f} % of its answers evenly"
    tell(
        organization_id=model.organization_id,
        kind=KIND_NOTICED,
        once=str(customer.pk),
        subject=f"{name} may be copying {model.full_name}",
        text=(
            f"{name} sent {customer.noticed_distinct:,} different messages in {customer.noticed_calls:,} calls to "
            f"{model.full_name}{even}.\nThat is how a copy of a model is made from its answers. A large evaluation "
            f"looks the same.\n\n{_DONE[measure]}. Trust it, slow it or stop it with one click:\n{_page(customer)}\n"
        ),
        data={
            "model": model.full_name,
            "customer": name,
            "distinct_messages": customer.noticed_distinct,
            "calls": customer.noticed_calls,
            "evenness_permille": customer.evenness_permille,
            "measure": measure,
        },
    )


def _tell_request(customer: Customer) -> None:
    assert customer.asked_at is not None
    model, name = customer.model, _name(customer)
    tell(
        organization_id=model.organization_id,
        kind=KIND_ASKED,
        once=f"{customer.pk}:{customer.asked_at:%Y-%m-%d}",  # one message a day, however often it asks
        subject=f"{name} asks for more calls of {model.full_name}",
        text=(
            f"{name} would like to make {customer.asked_calls_per_day or 0:,} calls a day to {model.full_name}.\n\n"
            f"Grant or decline it with one click:\n{_page(customer)}\n"
        ),
        data={"model": model.full_name, "customer": name, "calls_per_day": customer.asked_calls_per_day},
    )


def _name(customer: Customer) -> str:
    return policies.pseudonym(model_id=customer.model_id, organization_id=customer.organization_id)


def _page(customer: Customer) -> str:
    return f"{settings.ENV.public_url}/dashboard/models/{customer.model.slug}/protection"
