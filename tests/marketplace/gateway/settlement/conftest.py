"""A funded consumer and one replica with a journal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from marketplace.gateway import journals
from marketplace.vault.services import bootstrap_platform_keys
from tests.marketplace.gateway.settlement.sweeping import Consumer, JournalReplica, journal_replica


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that answers has a minute for it: the second of the product is too short on a busy machine."""
    monkeypatch.setattr(journals, "CALL_SECONDS", 60.0)


@pytest.fixture
def consumer(db: None) -> Consumer:
    bootstrap_platform_keys()
    return Consumer()


@pytest.fixture
def replica(consumer: Consumer) -> Iterator[JournalReplica]:
    with journal_replica() as made:
        yield made
