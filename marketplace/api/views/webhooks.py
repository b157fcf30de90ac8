"""Webhooks: addresses that the organization's events are posted to, and what was posted there."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.budgets.addresses import MAX_URL
from billing.budgets.webhooks import body_of, secret_of
from billing.models import Webhook
from marketplace.alerts import selectors
from marketplace.alerts import webhooks as services
from marketplace.alerts.delivery import message_id_of, message_of
from marketplace.alerts.events import ALERTS, KINDS
from marketplace.alerts.models import Delivery
from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView

_EVENTS = [kind.name for kind in KINDS]


class EventsField(serializers.ListField):
    """Kinds of events that a webhook asks for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(child=serializers.ChoiceField(_EVENTS), min_length=1, max_length=len(_EVENTS), **settings)


class WebhookFields(serializers.Serializer):  # shows a Webhook
    id = serializers.UUIDField()
    url = serializers.CharField()
    events = EventsField()
    secret = serializers.SerializerMethodField(help_text="proves the signature of what is posted there")
    previous_secret_until = serializers.DateTimeField(
        allow_null=True, help_text="until then, what is posted is signed with the secret before as well"
    )
    failing_since = serializers.DateTimeField(allow_null=True, help_text="since then no attempt has arrived")
    disabled_at = serializers.DateTimeField(allow_null=True, help_text="nothing is posted there")
    created_at = serializers.DateTimeField()

    def get_secret(self, webhook: Webhook) -> str:
        """Return the secret."""
        return secret_of(webhook)


class DeliveryFields(serializers.Serializer):  # shows a Delivery
    id = serializers.IntegerField()
    webhook = serializers.UUIDField(source="webhook_id")
    webhook_message_id = serializers.SerializerMethodField(help_text="the header webhook-id")
    body = serializers.SerializerMethodField(help_text="what is posted, byte for byte")
    is_replay = serializers.BooleanField()
    attempts = serializers.IntegerField()
    status = serializers.IntegerField(allow_null=True, help_text="HTTP status of the last answer")
    error = serializers.CharField(help_text="of the last attempt")
    created_at = serializers.DateTimeField()
    delivered_at = serializers.DateTimeField(allow_null=True)
    next_attempt_at = serializers.DateTimeField(allow_null=True, help_text="null: it arrived, or was given up")

    def get_webhook_message_id(self, delivery: Delivery) -> str:
        """Return the id of the message."""
        return message_id_of(delivery)

    def get_body(self, delivery: Delivery) -> str:
        """Return the body."""
        return body_of(message_of(delivery)).decode()


class WebhooksView(ControlView):
    """List and create."""

    scopes: ClassVar = {"GET": ("account",), "POST": ("account",)}

    class CreateWebhook(serializers.Serializer):
        url = serializers.CharField(max_length=MAX_URL)
        events = EventsField(required=False)

    @extend_schema(operation_id="list_webhooks", responses=WebhookFields(many=True))
    def get(self, request: Request) -> Response:
        """The organization's webhooks, newest first."""
        return self.page(selectors.webhooks_of(self.organization), WebhookFields)

    @extend_schema(operation_id="create_webhook", request=CreateWebhook, responses={201: WebhookFields})
    def post(self, request: Request) -> Response:
        """Post events to this address too; without `events`, every alert."""
        wanted = self.parse(self.CreateWebhook)
        webhook = services.create_webhook(
            organization=self.organization,
            url=wanted["url"],
            events=wanted.get("events", (ALERTS,)),
            actor=self.actor,
        )
        return Response(self.show(WebhookFields, webhook), status=201)


class OneWebhook(ControlView):
    """Base of the operations on one webhook."""

    def own_webhook(self, webhook_id: UUID) -> Webhook:
        """Return the webhook, if it is the organization's; any other is not found."""
        webhook = selectors.webhook_of(self.organization, webhook_id)
        if webhook is None:
            raise not_found("webhook")
        return webhook


class WebhookView(OneWebhook):
    """Read, change and delete."""

    scopes: ClassVar = {"GET": ("account",), "PATCH": ("account",), "DELETE": ("account",)}

    class ChangeWebhook(serializers.Serializer):
        url = serializers.CharField(max_length=MAX_URL, required=False)
        events = EventsField(required=False)
        enabled = serializers.BooleanField(required=False, help_text="false: nothing is posted; true: again")

    @extend_schema(operation_id="get_webhook", responses=WebhookFields)
    def get(self, request: Request, webhook_id: UUID) -> Response:
        """One webhook."""
        return Response(self.show(WebhookFields, self.own_webhook(webhook_id)))

    @extend_schema(operation_id="change_webhook", request=ChangeWebhook, responses=WebhookFields)
    def patch(self, request: Request, webhook_id: UUID) -> Response:
        """Change address or events, disable it, or enable it again."""
        webhook = self.own_webhook(webhook_id)
        changed = services.change_webhook(webhook=webhook, actor=self.actor, **self.parse(self.ChangeWebhook))
        return Response(self.show(WebhookFields, changed))

    @extend_schema(operation_id="delete_webhook", responses={204: None})
    def delete(self, request: Request, webhook_id: UUID) -> Response:
        """Post nothing more there, and forget its deliveries."""
        if not services.delete_webhook(organization=self.organization, webhook_id=webhook_id, actor=self.actor):
            raise not_found("webhook")
        return Response(status=204)


class RotateSecretView(OneWebhook):
    """A new secret."""

    scopes: ClassVar = {"POST": ("account",)}

    @extend_schema(operation_id="rotate_webhook_secret", request=None, responses=WebhookFields)
    def post(self, request: Request, webhook_id: UUID) -> Response:
        """Sign with a new secret; for 24 hours, what is posted is signed with the one before as well."""
        webhook = services.rotate_secret(webhook=self.own_webhook(webhook_id), actor=self.actor)
        return Response(self.show(WebhookFields, webhook))


class TestWebhookView(OneWebhook):
    """A test event."""

    scopes: ClassVar = {"POST": ("account",)}

    @extend_schema(operation_id="test_webhook", request=None, responses={201: DeliveryFields})
    def post(self, request: Request, webhook_id: UUID) -> Response:
        """Post an event `webhook.test` to this webhook alone."""
        delivery = services.send_test(webhook=self.own_webhook(webhook_id), actor=self.actor)
        return Response(self.show(DeliveryFields, delivery), status=201)


class DeliveriesView(OneWebhook):
    """The log."""

    scopes: ClassVar = {"GET": ("account",)}

    class Filter(serializers.Serializer):
        webhook = serializers.UUIDField(required=False)

    @extend_schema(
        operation_id="list_webhook_deliveries",
        parameters=[OpenApiParameter("webhook", UUID, description="only what went to this webhook")],
        responses=DeliveryFields(many=True),
    )
    def get(self, request: Request) -> Response:
        """Deliveries of the last 30 days, newest first."""
        wanted = self.parse(self.Filter, query=True).get("webhook")
        webhook = None if wanted is None else self.own_webhook(wanted)
        rows = selectors.deliveries_of(self.organization, webhook=webhook)
        return self.page(rows, DeliveryFields, ordering=("-id",))


class OneDelivery(ControlView):
    """Base of the operations on one delivery."""

    def own_delivery(self, delivery_id: int) -> Delivery:
        """Return the delivery, if it went to a webhook of the organization; any other is not found."""
        # Larger than any id is no id, and must not reach the database.
        delivery = selectors.delivery_of(self.organization, delivery_id) if delivery_id < 2**63 else None
        if delivery is None:
            raise not_found("delivery")
        return delivery


class DeliveryView(OneDelivery):
    """Read one."""

    scopes: ClassVar = {"GET": ("account",)}

    @extend_schema(operation_id="get_webhook_delivery", responses=DeliveryFields)
    def get(self, request: Request, delivery_id: int) -> Response:
        """One delivery."""
        return Response(self.show(DeliveryFields, self.own_delivery(delivery_id)))


class ReplayView(OneDelivery):
    """Post it again."""

    scopes: ClassVar = {"POST": ("account",)}

    @extend_schema(operation_id="replay_webhook_delivery", request=None, responses={201: DeliveryFields})
    def post(self, request: Request, delivery_id: int) -> Response:
        """Post the same message once more, under the same `webhook-id`."""
        delivery = services.replay_delivery(delivery=self.own_delivery(delivery_id), actor=self.actor)
        return Response(self.show(DeliveryFields, delivery), status=201)
