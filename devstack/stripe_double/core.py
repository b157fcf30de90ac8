"""The double itself: objects, idempotency, events, payments. Both doors hand it requests; it is safe to share."""

from __future__ import annotations

import copy
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from stripe import api_version

from devstack.stripe_double import listing, objects
from devstack.stripe_double.faults import FaultPlan
from devstack.stripe_double.messages import JsonObject, Refused, Request, Response, invalid, json_response, missing
from devstack.stripe_double.parameters import decode_form, parse_parameters
from devstack.stripe_double.routes import find_route
from devstack.stripe_double.state import Delivery, State

MIN_AMOUNT_CENTS = 50  # Stripe's own limits in US dollars
MAX_AMOUNT_CENTS = 99_999_999
RETRY_SECONDS = (0.5, 1, 2, 4, 8, 15, 30, 60)  # between attempts at a webhook; Stripe takes hours, tests do not
MAX_ATTEMPTS = 200


class StripeDouble:
    """One account at Stripe. `base_url` is where its checkout pages are reached; `clock` gives unix time.

    `tax_percent` is added to each page, as an account with automatic tax does.
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
        self._api_key = api_key
        self._webhook_secret = webhook_secret
        self._base_url = base_url
        self._clock = clock
        self._state = State.load(state_file)
        self._lock = threading.RLock()

    # Door: the API

    def handle(self, request: Request) -> Response:
        """Answer one API request. Raises ConnectionDropped where the fault plan says so."""
        with self._lock:
            try:
                self._authorize(request)
                self.faults.before_commit(request)
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
        found = find_route(request.method, request.path)
        if found is None:
            raise Refused(404, "invalid_request_error", f"Unrecognized request URL ({request.method}: {request.path}).")
        route, object_id = found
        encoded = request.query if request.method == "GET" else request.body.decode("utf-8", "replace")
        key = request.headers.get("idempotency-key") if request.method == "POST" else None
        fingerprint = hashlib.sha256(f"{request.path}?{encoded}".encode()).hexdigest()
        if key is not None and key in self._state.answers:
            answer = self._state.answers[key]
            if answer["fingerprint"] != fingerprint:
                message = f"Keys for idempotent requests can only be used with the same parameters: {key}"
                raise Refused(400, "idempotency_error", message)
            return json_response(200, answer["body"], idempotent_replayed="true")
        parameters = parse_parameters(route.shape, decode_form(encoded))
        for name in parameters:
            if name not in route.supported:
                raise invalid(name, f"Stripe knows {name}, its double does not: teach it first")
        self._expire_due_sessions()
        body = route.run(self, object_id, parameters, key)
        if key is not None:
            self._state.answers[key] = {"fingerprint": fingerprint, "body": body}
        if request.method == "POST":
            self._state.save()
        return json_response(200, body, request_id=objects.new_id("req"))

    # Operations, called by routes

    def create_customer(self, parameters: JsonObject, key: str | None) -> JsonObject:
        customer = self._add(objects.customer(self._now(), parameters))
        self._emit("customer.created", customer, key)
        return self._shown(customer, parameters)

    def create_session(self, parameters: JsonObject, key: str | None) -> JsonObject:
        """Open a Checkout page in payment mode with inline prices, which is all that buying credit needs."""
        for name in ("mode", "success_url", "line_items"):
            if not parameters.get(name):
                raise missing(name)
        if parameters["mode"] != "payment":
            raise invalid("mode", "this double knows payment mode only")
        for name in ("success_url", "cancel_url"):
            url = urlsplit(parameters.get(name) or "http://absent")
            if url.scheme not in ("http", "https") or not url.netloc:
                raise invalid(name, "Not a valid URL", code="url_invalid")
        customer = parameters.get("customer")
        if customer is not None:
            self._find("customer", customer)
        amount, currency = _total(parameters["line_items"])
        session = self._add(
            objects.checkout_session(
                self._now(),
                parameters,
                amount=amount,
                tax=amount * self.tax_percent // 100,
                currency=currency,
                base_url=self._base_url,
            )
        )
        return self._shown(session, parameters)

    def expire_session(self, session_id: str, parameters: JsonObject, key: str | None) -> JsonObject:
        session = self._find("checkout.session", session_id)
        if session["status"] != "open":
            raise Refused(400, "invalid_request_error", "Only Checkout Sessions with a status of open can be expired.")
        self._expire(session, key)
        return self._shown(session, parameters)

    def retrieve(self, kind: str, object_id: str, parameters: JsonObject) -> JsonObject:
        return self._shown(self._find(kind, object_id), parameters)

    def list_objects(self, kind: str, path: str, parameters: JsonObject, filters: tuple[str, ...]) -> JsonObject:
        return listing.page(self._state, kind, path, parameters, filters)

    # Door: the checkout page

    def session_for_page(self, session_id: str) -> JsonObject | None:
        """Return the session as it is now, or None."""
        with self._lock:
            self._expire_due_sessions()
            found = self._state.objects.get(session_id)
            return copy.deepcopy(found) if found is not None and found["object"] == "checkout.session" else None

    def pay(self, session_id: str) -> JsonObject | None:
        """Pay with a card that works. Paying twice takes the money once.

        Returns the session, or None for an unknown page.
        """
        with self._lock:
            self._expire_due_sessions()
            session = self._state.objects.get(session_id)
            if session is None or session["object"] != "checkout.session":
                return None
            if session["status"] == "open":
                now = self._now()
                intent = self._add(objects.payment_intent(now, session))
                charge = self._add(objects.charge(now, intent))
                intent["latest_charge"] = charge["id"]
                session |= {"payment_intent": intent["id"], "payment_status": "paid", "status": "complete", "url": None}
                self._emit("charge.succeeded", charge)
                self._emit("payment_intent.succeeded", intent)
                self._emit("checkout.session.completed", session)
                charge["balance_transaction"] = self._add(objects.balance_transaction(now, charge))["id"]
                self._emit("charge.updated", charge)
                self._state.save()
            return copy.deepcopy(session)

    # Webhooks

    def due_events(self) -> list[JsonObject]:
        """Return the events to deliver now; the fault plan may delay, shuffle and repeat them."""
        with self._lock:
            latest = self._clock() - self.faults.webhooks.delay_seconds
            due = [
                self._state.objects[delivery.event_id] for delivery in self._state.deliveries if delivery.due <= latest
            ]
            return copy.deepcopy(self.faults.webhooks.apply(due))

    def signed_webhook(self, event: JsonObject) -> tuple[bytes, str]:
        """Return the body of one webhook and its `Stripe-Signature` header."""
        body = json.dumps(objects.public(event)).encode()
        moment = self._now()
        signature = hmac.new(self._webhook_secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
        return body, f"t={moment},v1={signature}"

    def record_delivery(self, event_id: str, *, delivered: bool) -> None:
        """Note how an attempt ended; the double tries a failed delivery again, up to `MAX_ATTEMPTS` times."""
        with self._lock:
            delivery = next((found for found in self._state.deliveries if found.event_id == event_id), None)
            if delivery is None:
                return  # an injected copy of an event that is already delivered
            delivery.attempts += 1
            delivery.due = self._clock() + RETRY_SECONDS[min(delivery.attempts, len(RETRY_SECONDS)) - 1]
            if delivered:
                self._state.objects[event_id]["pending_webhooks"] = 0
            if delivered or delivery.attempts >= MAX_ATTEMPTS:
                self._state.deliveries.remove(delivery)
            self._state.save()

    # Inside

    def _now(self) -> int:
        return int(self._clock())

    def _add(self, found: JsonObject) -> JsonObject:
        self._state.objects[found["id"]] = found
        return found

    def _find(self, kind: str, object_id: str) -> JsonObject:
        found = self._state.objects.get(object_id)
        if found is None or found["object"] != kind:
            raise Refused(
                404, "invalid_request_error", f"No such {kind}: '{object_id}'", code="resource_missing", param="id"
            )
        return found

    def _shown(self, found: JsonObject, parameters: JsonObject) -> JsonObject:
        return listing.expanded(self._state, found, parameters.get("expand", []))

    def _emit(self, kind: str, subject: JsonObject, key: str | None = None) -> None:
        event = self._add(objects.event(self._now(), kind, subject, api_version=api_version, request_key=key))
        self._state.deliveries.append(Delivery(event["id"], attempts=0, due=self._clock()))

    def _expire(self, session: JsonObject, key: str | None = None) -> None:
        session |= {"status": "expired", "url": None}
        self._emit("checkout.session.expired", session, key)

    def _expire_due_sessions(self) -> None:
        for session in self._state.of_kind("checkout.session"):
            if session["status"] == "open" and session["expires_at"] <= self._now():
                self._expire(session)
                self._state.save()


def _total(line_items: list[JsonObject]) -> tuple[int, str]:
    """Return the sum in cents and the currency of inline-priced lines. Raises Refused."""
    total = 0
    for number, item in enumerate(line_items):
        param = f"line_items[{number}]"
        price = item.get("price_data")
        if price is None or "unit_amount" not in price or "product_data" not in price:
            raise invalid(param, "this double knows lines with price_data, unit_amount and product_data only")
        if price["currency"] != "usd":
            raise invalid(f"{param}[price_data][currency]", "this double knows US dollars only")
        quantity = item.get("quantity", 1)
        if price["unit_amount"] < 0 or quantity < 1:
            raise invalid(param, "Invalid amount or quantity", code="parameter_invalid_integer")
        total += price["unit_amount"] * quantity
    if not MIN_AMOUNT_CENTS <= total <= MAX_AMOUNT_CENTS:
        code = "amount_too_small" if total < MIN_AMOUNT_CENTS else "amount_too_large"
        raise invalid("line_items", f"The total must be between {MIN_AMOUNT_CENTS} and {MAX_AMOUNT_CENTS}", code=code)
    return total, "usd"
