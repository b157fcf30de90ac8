"""Answers of the control API as the platform double gives them, in the fields and with the defaults of the real one."""

from __future__ import annotations

import uuid
from typing import Any

from tests.creator_cli.adapters import BASE_FINGERPRINT

NOW = "2026-01-02T03:04:05Z"
_KEPT_BACK = ("dek", "polls")  # what the double notes on a version for itself


def model_body(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """A listing as it is after it was created with `body`."""
    return {
        "id": str(uuid.uuid4()),
        "name": name,
        "organization": "acme",
        "kind": "adapter",
        "summary": "",
        "industry": "",
        "tags": [],
        "visibility": "public",
        "card_markdown": "",
        "price": None,
        "newest_version": None,
        "evaluation": None,
        "example_messages": [],
        **body,
        "base": {"name": "tiny", "fingerprint": BASE_FINGERPRINT, "context_length": 64},
    }


def version_body(model: dict[str, Any], creator_id: uuid.UUID, number: int, body: dict[str, Any]) -> dict[str, Any]:
    """A version whose upload has been opened with `body`."""
    return {
        "id": str(uuid.uuid4()),
        "model": model["name"],
        "model_id": model["id"],
        "number": number,
        "state": "uploading",
        "changelog": body["changelog"],
        "package_digest": None,
        "package_size": body["package_size"],
        "base_fingerprint": BASE_FINGERPRINT,
        "created_at": NOW,
        "published_at": None,
        "creator_id": str(creator_id),
        "uploaded_bytes": 0,
        "report": {},
        "review": None,
        "state_changed_at": NOW,
    }


def review_body(state: str = "open") -> dict[str, Any]:
    """A review of a version of an organization without a record."""
    return {
        "id": str(uuid.uuid4()),
        "kind": "version",
        "state": state,
        "reasons": ["No public model of this organization has been reviewed yet."],
        "due_at": "2026-01-05T03:04:05Z",
        "decision": "" if state == "open" else "The card promises what no model can do.",
        "appealed_at": None,
    }


def shown(version: dict[str, Any]) -> dict[str, Any]:
    """A version as its own organization sees it."""
    return {key: value for key, value in version.items() if key not in _KEPT_BACK}


def payout_overview_body() -> dict[str, Any]:
    """Forty dollars to pay out, and an account that takes them."""
    return {
        "reserve_nano_usd": 5_000_000_000,
        "payable_nano_usd": 40_000_000_000,
        "in_transit_nano_usd": 0,
        "owed_nano_usd": 0,
        "reserve_days": 14,
        "next_release_at": NOW,
        "next_payout_on": "2026-02-01",
        "minimum_cents": 2_500,
        "may_start": True,
        "freezes": [],
        "account": {
            "state": "active",
            "requirements": [],
            "bank_name": "STRIPE TEST BANK",
            "bank_last4": "6789",
            "schedule": "monthly",
            "minimum_cents": 2_500,
        },
    }


def payout_body(amount_cents: int) -> dict[str, Any]:
    """A payout that has just been asked for."""
    return {
        "id": str(uuid.uuid4()),
        "amount_cents": amount_cents,
        "state": "created",
        "frozen_by": "",
        "failure_code": "",
        "bank_last4": "6789",
        "arrives_on": None,
        "created_at": NOW,
        "paid_at": None,
        "returned_at": None,
    }


def earnings_body(*, second_page: bool) -> dict[str, Any]:
    """Three predictions of one model on one day, and of another model on the second page."""
    line = {
        "predictions": 3,
        "consumers": 2,
        "completion_tokens": 30,
        "charged_nano_usd": 1250,
        "creator_nano_usd": 1000,
        "day": None,
        "model": None,
    }
    return {
        "reserve_nano_usd": 900,
        "payable_nano_usd": 100,
        "owed_nano_usd": 0,
        "total_nano_usd": 1000,
        "predictions": 3,
        "consumers": 2,
        "next": None if second_page else "http://elsewhere.example/api/v1/earnings?cursor=behind-triage",
        "by_day": [] if second_page else [{**line, "day": "2026-01-02"}],
        "by_model": [{**line, "model": "acme/sums" if second_page else "acme/triage"}],
    }
