"""The good-bye of a replica that drained to its end: its name is then never asked about the past again.

The platform names the attempts that wait for a word of this journal, and gets it. A replica whose journal is not
settled says nothing, so that a later boot of its name can.
"""

from __future__ import annotations

import logging
import time

from protocol.admin import JournalKey
from protocol.replicas import GoodBye, LastWord
from serving.platform.errors import PlatformError
from serving.platform.journal import UsageJournal
from serving.platform.vault_client import VaultClient

log = logging.getLogger(__name__)

GOODBYE_SECONDS = 5.0  # a gateway may need a moment to close what it just had from this replica
_PAUSE_SECONDS = 0.25


def say_goodbye(client: VaultClient, replica_id: str, journal: UsageJournal) -> bool:
    """Say good-bye and return whether the platform took it; never raises for a platform that is away."""
    deadline, words = time.monotonic() + GOODBYE_SECONDS, GoodBye([])
    while journal.settled() and time.monotonic() < deadline:
        try:
            answer = client.goodbye(replica_id, words)
        except PlatformError as error:
            log.warning("the platform did not take the good-bye: %s", error)
            return False
        if answer.retired:
            log.info("said good-bye: replica %s is retired", replica_id)
            return True
        if words.words or not answer.owed:  # they were said, or a gateway is at it
            time.sleep(_PAUSE_SECONDS)
        words = GoodBye([_last_word(journal, key) for key in answer.owed])
    log.warning("left without a good-bye: the journal has more to say")
    return False


def _last_word(journal: UsageJournal, key: JournalKey) -> LastWord:
    _, receipt = journal.lookup(key.jti, key.attempt)
    return LastWord(key.jti, key.attempt, receipt)
