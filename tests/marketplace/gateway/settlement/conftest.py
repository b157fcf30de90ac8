"""A funded consumer and one replica with a journal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from marketplace.vault.services import bootstrap_platform_keys
from tests.marketplace.gateway.settlement.sweeping import Consumer, JournalReplica, journal_replica


@pytest.fixture
def consumer(db: None) -> Consumer:
    bootstrap_platform_keys()
    return Consumer()


@pytest.fixture
def replica(consumer: Consumer) -> Iterator[JournalReplica]:
    with journal_replica() as made:
        yield made
