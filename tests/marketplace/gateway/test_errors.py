"""Refusals in OpenAI's envelope."""

from __future__ import annotations

from uuid import uuid4

import pytest

from billing.errors import BudgetExceeded, DuplicateRequest, InsufficientFunds
from marketplace.accounts.errors import Refusal
from marketplace.gateway import errors
from protocol.messages import OpenAIError, OpenAIErrorAnswer, decode


@pytest.mark.parametrize(
    ("refusal", "status", "code", "kind"),
    [
        (errors.bad_request("bad", "n"), 400, "invalid", "invalid_request_error"),
        (errors.unauthorized("no key"), 401, "invalid_api_key", "authentication_error"),
        (InsufficientFunds(1, 2), 402, "insufficient_funds", "billing_error"),
        (errors.revoked("Gone."), 403, "model_revoked", "permission_error"),
        (errors.not_found("a/b"), 404, "model_not_found", "invalid_request_error"),
        (errors.method_not_allowed("POST", "/v1/quote"), 405, "method_not_allowed", "invalid_request_error"),
        (DuplicateRequest(uuid4(), "open", same_body=True), 409, "in_progress", "invalid_request_error"),
        (DuplicateRequest(uuid4(), "settled", same_body=True), 409, "already_processed", "invalid_request_error"),
        (DuplicateRequest(uuid4(), "open", same_body=False), 422, "idempotency_key_reused", "invalid_request_error"),
        (BudgetExceeded(1, 1, 1), 429, "budget_exceeded", "billing_error"),
        (Refusal("slow down", code="rate_limited", status=429), 429, "rate_limited", "rate_limit_error"),
        (errors.replica_failed("broke"), 502, "replica_error", "server_error"),
        (errors.unavailable("away"), 503, "no_replica", "server_error"),
    ],
)
def test_openais_error_type_follows_from_the_refusal(refusal: Refusal, status: int, code: str, kind: str) -> None:
    assert refusal.status == status
    assert errors.error_answer(refusal).error == OpenAIError(refusal.message, kind, refusal.field, code)


def test_a_replicas_refusal_keeps_the_replicas_words() -> None:
    error = OpenAIError("full", "overloaded_error", None, "overloaded")
    refusal = errors.ReplicaRefusal(error, status=429, headers={"retry-after": "1"})
    assert errors.error_answer(refusal).error == error
    assert decode(errors.body(refusal, "r1"), OpenAIErrorAnswer).error == error
    assert refusal.headers == {"retry-after": "1"}
