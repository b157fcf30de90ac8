"""A consumer, two models, and an API in memory that answers as it is told and charges each name once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from billing.services import credit_promotion
from marketplace.accounts.models import ApiKey, Organization
from marketplace.calls import CallRefused, CallsEnded, ChatAnswer, ChatCall
from marketplace.trials import queue, running, services
from marketplace.trials.models import Trial
from marketplace.trials.rows import Row
from marketplace.vault import services as vault
from tests.marketplace.catalog.factories import make_model, make_organization, make_version

COST = 1_000


@dataclass
class FakeApi:
    """`say(model, message)` gives each answer's text; None refuses the call. `budget` ends the calls."""

    say: Callable[[str, str], str | None] = lambda model, message: "right"
    budget: int = 10**12
    charged: dict[str, ChatAnswer] = field(default_factory=dict)  # by purse and name
    order: list[tuple[str, str]] = field(default_factory=list)  # name and model, as the calls came
    die_after: int = 10**9  # outcomes, then the worker is killed

    @property
    def spent(self) -> int:
        return sum(answer.cost_nano_usd for answer in self.charged.values())

    def outcome(self, purse: ApiKey, call: ChatCall) -> ChatAnswer | CallRefused | None:
        """Answer one call; None: the budget does not suffice."""
        self.order.append((call.name, call.body["model"]))
        known = self.charged.get(f"{purse.pk}:{call.name}")
        if known is not None:
            return known
        text = self.say(call.body["model"], call.body["messages"][0]["content"])
        if text is None:
            return CallRefused(call.name, 400, "context_length_exceeded")
        if self.spent + COST > self.budget:
            return None
        answer = ChatAnswer(call.name, text, "stop", uuid.uuid4(), COST)
        self.charged[f"{purse.pk}:{call.name}"] = answer
        return answer


class FakeCaller:
    """`marketplace.calls.Caller` over `FakeApi`."""

    api: FakeApi

    def __init__(self, purse: ApiKey) -> None:
        self._purse = purse

    def __enter__(self) -> FakeCaller:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def run(self, calls: Iterable[ChatCall]) -> Iterator[ChatAnswer | CallRefused]:
        for call in calls:
            outcome = self.api.outcome(self._purse, call)
            if outcome is None:
                raise CallsEnded("budget", "the budget of the run is used up")
            if self.api.die_after <= 0:
                raise KeyboardInterrupt  # kill -9 writes nothing more
            self.api.die_after -= 1
            yield outcome


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """The API in memory; nothing is sent to a queue."""
    FakeCaller.api = FakeApi()
    monkeypatch.setattr(running, "Caller", FakeCaller)
    monkeypatch.setattr(services, "enqueue_run", lambda trial_id: None)
    monkeypatch.setattr(queue, "enqueue_run", lambda trial_id: None)
    return FakeCaller.api


@pytest.fixture
def buyer(db: None) -> Organization:
    vault.bootstrap_platform_keys()
    organization = make_organization("buyer")
    credit_promotion(organization=organization, amount_nano_usd=10**9, reference="buyer")
    seller = make_organization("acme")
    for slug in ("good", "poor"):
        make_version(make_model(seller, slug, slug.title()))
    return organization


def rows_of(count: int, expected: Any = "right") -> list[Row]:
    return [Row(f"message {number}", expected) for number in range(1, count + 1)]


def start(buyer: Organization, count: int = 40, **changes: Any) -> Trial:
    """A run of `acme/good` and `acme/poor` on rows with expected answers."""
    terms = {
        "first": "acme/good",
        "second": "acme/poor",
        "rows": rows_of(count),
        "budget_nano_usd": 10**8,
        "scoring": Trial.Scoring.JSON,
    }
    return services.start_trial(organization=buyer, **(terms | changes))
