"""The one page of billing: where Stripe reports events."""

from __future__ import annotations

import logging

from celery.exceptions import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from billing.models import StripeEvent
from billing.stripe import stripe_gateway
from billing.stripe.events import InvalidWebhookSignature
from billing.tasks import process_stripe_event

logger = logging.getLogger(__name__)

MAX_WEBHOOK_BYTES = 256 * 1024


@csrf_exempt
@require_POST
def stripe_webhook(request: HttpRequest) -> HttpResponse:
    """Verify the raw body, note the event's id, answer; a task does the rest.

    Answers 200 also to an event noted before, and 400 to a bad signature or body, which writes nothing. An unreachable
    queue does no harm: `catch_up_stripe_events` finds the noted event.
    """
    try:
        # A longer body is cut here, so its signature is wrong.
        body = request.read(MAX_WEBHOOK_BYTES)
        event = stripe_gateway().events.verify_webhook(body, request.headers.get("stripe-signature", ""))
    except InvalidWebhookSignature:
        logger.warning("refused a Stripe webhook without a valid signature")
        return HttpResponseBadRequest("invalid signature")
    row, created = StripeEvent.objects.get_or_create(
        id=event.id, defaults={"type": event.type, "object_id": event.object_id}
    )
    if created or row.processed_at is None:
        try:
            process_stripe_event.apply_async((event.id,), retry=False)
        except OperationalError:
            logger.exception("Stripe event %s is stored and waits for catch-up: the queue is unreachable", event.id)
    return HttpResponse(status=200)
