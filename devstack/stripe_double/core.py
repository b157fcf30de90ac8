"""The double itself: keys, idempotency, faults, events. Both doors hand it requests; it is safe to share.

Resource modules (`registry.MODULES`) make the objects; they use the public methods of the section *For resources*.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stripe import api_version

from devstack.stripe_double import listing, objects, registry, responses, tax
from devstack.stripe_double.faults import FaultPlan
from devstack.stripe_double.messages import JsonObject, Refused, Request, Response, invalid, json_response
from devstack.stripe_double.parameters import decode, parse_parameters
from devstack.stripe_double.resource import Route
from devstack.stripe_double.state import Delivery, State

RETRY_SECONDS = (0.5, 1, 2, 4, 8, 15, 30, 60)  # between attempts at a webhook; Stripe takes hours, tests do not
MAX_ATTEMPTS = 200
# Answers that say that nothing was executed; every other is kept for its idempotency key, errors too, as at Stripe.
NOT_KEPT = frozenset({400, 404, 409, 429})


class StripeDouble:
    """One account at Stripe. `base_url` is where its checkout pages are reached; `clock` gives unix time.

    `payer` is who pays its pages. `tax_percent` is added to each page, whatever the payer's country.
    """

    def __init__(
        self,
        *,
        api_key: str,
        webhook_secret: str,
        base_url: str = "http://stripe.invalid",
        state_file: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.faults = FaultPlan()
        self.tax_percent = 0
        self.payer = tax.payer()
        self.base_url = base_url
        self.state = State.load(state_file)
        self.acting_account: str | None = None  # the connected account that the request in progress acts for
        self._api_key = api_key
        self._webhook_secret = webhook_secret
        self._clock = clock
        self._lock = threading.RLock()

    # Door: the API

    def handle(self, request: Request) -> Response:
        """Answer one API request. Raises ConnectionDropped where the fault plan says so."""
        with self._lock:
            try:
                self._authorize(request)
                response = self._answer(request)
            except Refused as refusal:
                return refusal.response()
            self.faults.after_commit(request)
            return response

    def authorized(self, request: Request) -> bool:
        """Return whether the request shows this account's secret key."""
        return hmac.compare_digest(request.headers.get("authorization", ""), f"Bearer {self._api_key}")

    def _authorize(self, request: Request) -> None:
        if not self.authorized(request):
            raise Refused(401, "invalid_request_error", "Invalid API Key provided.")

    def _answer(self, request: Request) -> Response:
        found = registry.find_route(request.method, request.path)
        if found is None:
            raise Refused(404, "invalid_request_error", f"Unrecognized request URL ({request.method}: {request.path}).")
        route, object_id = found
        self.acting_account = self._connected_account(request)
        key = request.headers.get("idempotency-key") if request.method == "POST" else None
        given = decode(request)
        fingerprint = hashlib.sha256(f"{self.acting_account} {request.path}?{given}".encode()).hexdigest()
        if key is not None and key in self.state.answers:
            answer = self.state.answers[key]
            if answer["fingerprint"] != fingerprint:
                message = f"Keys for idempotent requests can only be used with the same parameters: {key}"
                raise Refused(400, "idempotency_error", message)
            return json_response(answer["status"], answer["body"], idempotent_replayed="true")
        parameters = parse_parameters(route.shape, given)
        for name in parameters:
            if name not in route.supported:
                raise invalid(name, f"Stripe knows {name}, its double does not: teach it first")
        status, body = self._run(route, request, object_id, parameters, key)
        if key is not None and status not in NOT_KEPT:
            self.state.answers[key] = {"fingerprint": fingerprint, "status": status, "body": body}
        if request.method == "POST":
            self.state.save()
        return json_response(status, body, request_id=objects.new_id("req"))

    def _run(
        self, route: Route, request: Request, object_id: str, parameters: JsonObject, key: str | None
    ) -> tuple[int, JsonObject]:
        """Return status and body, also those of a refusal. Raises ConnectionDropped, and WrongAnswer."""
        registry.let_time_pass(self)
        try:
            self.faults.before_commit(request)
            body = route.run(self, object_id, parameters, key)
        except Refused as refusal:
            return refusal.status, refusal.body()
        responses.check(body)
        return 200, body

    def _connected_account(self, request: Request) -> str | None:
        account_id = request.headers.get("stripe-account")
        if account_id is not None and account_id not in self.state.objects:
            message = f"The provided key does not have access to account '{account_id}' (or it does not exist)."
            raise Refused(403, "invalid_request_error", message, code="account_invalid")
        return account_id

    # Webhooks

    def due_events(self) -> list[JsonObject]:
        """Return the events to deliver now; the fault plan may delay, shuffle and repeat them."""
        with self._lock:
            latest = self._clock() - self.faults.webhooks.delay_seconds
            due = [
                self.state.objects[delivery.event_id] for delivery in self.state.deliveries if delivery.due <= latest
            ]
            due = [event for event in due if event["type"] not in self.faults.webhooks.lost]
            return copy.deepcopy(self.faults.webhooks.apply(due))

    def signed_webhook(self, event: JsonObject) -> tuple[bytes, str]:
        """Return the body of one webhook and its `Stripe-Signature` header."""
        body = json.dumps(objects.public(event)).encode()
        moment = self.now()
        signature = hmac.new(self._webhook_secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
        return body, f"t={moment},v1={signature}"

    def record_delivery(self, event_id: str, *, delivered: bool) -> None:
        """Note how an attempt ended; the double tries a failed delivery again, up to `MAX_ATTEMPTS` times."""
        with self._lock:
            delivery = next((found for found in self.state.deliveries if found.event_id == event_id), None)
            if delivery is None:
                return  # an injected copy of an event that is already delivered
            delivery.attempts += 1
            delivery.due = self._clock() + RETRY_SECONDS[min(delivery.attempts, len(RETRY_SECONDS)) - 1]
            if delivered:
                self.state.objects[event_id]["pending_webhooks"] = 0
            if delivered or delivery.attempts >= MAX_ATTEMPTS:
                self.state.deliveries.remove(delivery)
            self.state.save()

    # For resources

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the double for one step that no API request makes (a page, a bank's decision), and save what it did."""
        with self._lock:
            self.acting_account = None
            registry.let_time_pass(self)
            yield
            self.state.save()

    def now(self) -> int:
        return int(self._clock())

    def add(self, found: JsonObject) -> JsonObject:
        """Remember a new object."""
        self.state.objects[found["id"]] = found
        return found

    def find(self, kind: str, object_id: str) -> JsonObject:
        """Return the object itself, to read or change. Raises Refused (404)."""
        found = self.state.objects.get(object_id)
        # Objects of a connected account are seen by calls for that account, and accounts by the platform itself.
        hidden = found is not None and found.get("_account") != self.acting_account and kind != "account"
        if found is None or found["object"] != kind or hidden:
            raise Refused(
                404, "invalid_request_error", f"No such {kind}: '{object_id}'", code="resource_missing", param="id"
            )
        return found

    def shown(self, found: JsonObject, parameters: JsonObject) -> JsonObject:
        """Return a public copy, with the references that `parameters` ask to expand."""
        return listing.expanded(self.state, found, parameters.get("expand", []))

    def emit(self, kind: str, subject: JsonObject, key: str | None = None) -> None:
        """Make an event about the object as it is now, and queue it for the webhook."""
        event = self.add(objects.event(self.now(), kind, subject, api_version=api_version, request_key=key))
        account_id = subject["id"] if subject["object"] == "account" else subject.get("_account")
        if account_id is not None:
            event |= {"account": account_id, "_account": account_id}
        self.state.deliveries.append(Delivery(event["id"], attempts=0, due=self._clock()))
