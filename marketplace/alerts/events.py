"""Events that customers' webhooks can ask for, and the one function that emits them.

An event is stored when a webhook of the organization asked for its kind, and posted within 15 s. Nobody is mailed:
`services.tell` is for what a person should look at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from billing.models import Webhook
from marketplace.accounts.models import Organization
from marketplace.alerts.models import Delivery, Event

ALERTS = "alert.*"
TEST = "webhook.test"
MAX_DATA_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class EventKind:
    """One kind of event that a webhook can ask for."""

    name: str
    label: str


KINDS = (
    EventKind(ALERTS, "Every alert: budgets, models, reviews"),
    EventKind("prediction.completed", "A prediction in the background is answered"),
    EventKind("prediction.failed", "A prediction in the background failed"),
    EventKind("batch.completed", "A batch is done"),
    EventKind("batch.failed", "A batch failed"),
    EventKind("batch.cancelled", "A batch was cancelled"),
    EventKind("batch.expired", "A batch was not done in time"),
    EventKind("top_up.credited", "A top-up is in the wallet"),
    EventKind("top_up.failed", "A top-up failed"),
    EventKind("payout.paid", "A payout arrived at the bank"),
    EventKind("payout.failed", "A payout failed: the money is back in the balance"),
    EventKind("version.published", "A version is for sale"),
    EventKind("version.refused", "A version was refused by the checks of its package"),
    EventKind("review.decided", "A review of a model was decided"),
    EventKind("key.revoked", "An API key was revoked"),
)
NAMES = frozenset(kind.name for kind in KINDS)


def emit(*, organization: Organization, kind: str, data: Mapping[str, Any]) -> None:
    """Store an event for the organization's webhooks that asked for its kind, in the caller's transaction.

    `data` is JSON of ids and counts, at most 16 KiB: never a prompt, an answer or a secret. Raises ValueError for a
    kind that is none of `KINDS`, and for more data.
    """
    if kind not in NAMES or kind == ALERTS:
        raise ValueError(f"{kind} is no kind of event; marketplace.alerts.events lists them")
    if len(json.dumps(data)) > MAX_DATA_BYTES:
        raise ValueError(f"the data of {kind} has more than {MAX_DATA_BYTES} bytes")
    asking = Webhook.objects.filter(organization=organization, disabled_at=None, events__contains=[kind])
    webhooks = list(asking.order_by("pk"))
    if webhooks:
        event = Event.objects.create(organization=organization, kind=kind, data=dict(data))
        Delivery.objects.bulk_create([Delivery(event=event, webhook=webhook) for webhook in webhooks])
