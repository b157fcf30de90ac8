"""Requests made from the description of the control API: right ones and wrong ones, to every operation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import stripe
from django.conf import settings as live
from django.core.cache import cache
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from django.test import Client
from schemathesis import Case
from schemathesis.checks import ignored_auth

from billing.stripe import stripe_gateway
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.http_client import DoubleHTTPClient
from marketplace.accounts.models import User
from marketplace.api.description import description
from marketplace.api.throttling import CallerThrottle
from tests.eighths import Pick, picked
from tests.marketplace.api.victim import Victim, make_victim
from tests.marketplace.catalog.factories import make_key, make_organization, make_user
from tests.marketplace.fuzz.cases import operations_of, problems_of, put_known
from tests.marketplace.teams.fresh import freshen


class Callers:
    """The world's callers, one after the other: the owner's session, a key with every scope, a member of staff."""

    def __init__(self) -> None:
        self.victim = make_victim()
        _, text = make_key(self.victim.organization, "predict", "publish", "account", "read")
        staff = make_user(is_staff=True)
        make_organization("operations", staff)
        self.turn = 0
        self._django = WSGIHandler()
        self.key = {"headers": {"Authorization": f"Bearer {text}"}}
        self.owner = _session(self.victim.member, self.victim.organization.slug)
        self.staff = _session(staff, "operations")

    def app(self, environ: dict[str, Any], start_response: Any) -> Any:
        """The control API, asked from this machine."""
        return self._django({**environ, "REMOTE_ADDR": "127.0.0.1"}, start_response)

    def next(self, path: str) -> dict[str, Any]:
        """Headers and cookies of the next caller for a path."""
        self.turn += 1
        both = (self.staff, self.owner) if "/platform/" in path else (self.owner, self.key)
        return both[self.turn % 2]


def _session(user: User, organization: str) -> dict[str, Any]:
    client = Client()
    client.force_login(user)
    freshen(client)
    token = "a" * 32
    cookies = {"sessionid": client.cookies["sessionid"].value, "csrftoken": token}
    return {"headers": {"X-CSRFToken": token, "X-Organization": organization}, "cookies": cookies}


def known(victim: Victim, path: str) -> dict[str, Any]:
    """The things that exist, by the names of parameters and fields."""
    run = f"run_{victim.run.node_id.hex}" if path.startswith("/api/v1/runs") else victim.eval_run.id
    return {
        "org": victim.organization.slug,
        "slug": victim.model.slug,
        "user_id": victim.member.id,
        "invite_id": victim.invite.id,
        "key_id": victim.key.id,
        "node_id": victim.budget.id,
        "parent_id": victim.budget.id,
        "webhook_id": victim.webhook.id,
        "delivery_id": victim.delivery.id,
        "set_id": victim.eval_run.eval_set_id,
        "run_id": run,
        "prediction_id": victim.prediction.id,
        "request_id": victim.access_request.id,
        "review_id": victim.review.id,
        "version_id": victim.uploading.id if path.endswith(("package", "complete")) else victim.published.id,
        "top_up_id": victim.top_up.id,
        "card_id": victim.card.id,
        "prompt_id": victim.prompt.id,
        "trial_id": victim.trial.id,
        "paper_id": victim.paper.id,
        "payout_id": victim.payout.id,
        "signing_key_id": victim.uploading.signing_key_id,
    }


@pytest.fixture
def callers(db: None, settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Callers]:
    settings.ROOT_URLCONF = "tests.marketplace.api.urls"
    settings.ALLOWED_HOSTS = ["*"]
    settings.ENV = dataclasses.replace(settings.ENV, blob_dir=tmp_path / "blobs")
    double = StripeDouble(api_key=live.ENV.stripe_api_key, webhook_secret=live.ENV.stripe_webhook_secret)
    monkeypatch.setattr(stripe, "RequestsClient", lambda **options: DoubleHTTPClient(double))
    monkeypatch.setattr(CallerThrottle, "limit", 10**9)
    stripe_gateway.cache_clear()
    for signal in (request_started, request_finished):  # as Django's own test client does
        signal.disconnect(close_old_connections)
    yield Callers()
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)
    stripe_gateway.cache_clear()


@picked
def test_every_operation_answers_as_it_is_described(callers: Callers, pick: Pick) -> None:
    with_credentials: set[str] = set()  # operations that were seen to refuse without any, and with wrong ones

    def send(case: Case) -> None:
        asked = [ignored_auth] if case.operation.label in with_credentials else []
        put_known(case, known(callers.victim, case.path))
        caller = callers.next(case.path)
        cache.clear()
        with transaction.atomic():
            try:
                case._has_explicit_auth = True  # the caller's own, which schemathesis takes for generated ones
                case.call_and_validate(base_url="http://localhost", excluded_checks=asked, **caller)
            finally:
                transaction.set_rollback(True)
        with_credentials.add(case.operation.label)

    problems = list(problems_of(pick(operations_of(description(), "/api/v1/", callers.app)), send))
    assert not problems, "\n\n".join(problems)
