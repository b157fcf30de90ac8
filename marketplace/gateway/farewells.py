"""The good-bye of a replica, as the platform takes it: its last words close holds, then its name is retired."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponseBase

from billing.models import Hold
from billing.selectors import holds_to_sweep
from marketplace.gateway.tasks import close_by_journal
from marketplace.vault.absences import retire
from marketplace.vault.models import Replica
from marketplace.vault.views import answered, endpoint, parsed, session_of
from protocol.admin import MAX_JOURNAL_KEYS, JournalKey, JournalState
from protocol.replicas import GoodBye, GoodByeAnswer, LastWord


@endpoint("POST")
def goodbye(request: HttpRequest, replica_id: UUID) -> HttpResponseBase:
    """Take a replica's last words; retire its name once nothing waits for it any more."""
    return answered(say_goodbye(session_of(request, replica_id), parsed(request, GoodBye).words))


def say_goodbye(replica: Replica, words: list[LastWord]) -> GoodByeAnswer:
    """Close the holds that the words are about and retire the replica's name, unless more is owed."""
    boots = set(Replica.objects.filter(name=replica.name).values_list("pk", flat=True))
    states = {
        (UUID(word.jti), word.attempt): JournalState("final" if word.receipt else "unknown", word.receipt)
        for word in words
    }
    waiting = holds_to_sweep(limit=MAX_JOURNAL_KEYS, replica_ids=boots)
    said = ((one, states.get((one.hold.id, one.hold.attempt))) for one in waiting)
    close_by_journal((one, state) for one, state in said if state is not None)
    # Without a verdict a hold is its gateway's for a moment longer: it is waited for, and nothing is owed.
    still = holds_to_sweep(limit=MAX_JOURNAL_KEYS, replica_ids=boots)
    owed = [JournalKey(str(one.hold.id), one.hold.attempt) for one in still if one.hold.delivered_tokens is not None]
    retired = not Hold.objects.filter(state=Hold.State.OPEN, replica_id__in=boots).exists()
    if retired:
        retire(replica=replica)
    return GoodByeAnswer(retired, owed)
