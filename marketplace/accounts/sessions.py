"""The sessions of a person: from where each was used, and how to end them."""

from __future__ import annotations

from allauth.usersessions.models import UserSession
from django.db.models import QuerySet

from marketplace.accounts.models import User


def sessions_of(*, user: User) -> list[UserSession]:
    """Return the person's live sessions, the last used first; rows of ended ones are deleted on the way."""
    return list(live_sessions_of(user=user).order_by("-last_seen_at"))


def live_sessions_of(*, user: User) -> QuerySet[UserSession]:
    """Return the person's live sessions as a query; rows of ended ones are deleted on the way."""
    UserSession.objects.purge_and_list(user)
    found: QuerySet[UserSession] = UserSession.objects.filter(user=user)
    return found


def end_session(*, user: User, session_id: int) -> bool:
    """End one session of the person at once; False if there is none of this id."""
    row = UserSession.objects.filter(user=user, pk=session_id).first()
    if row is None:
        return False
    row.end()
    return True


def end_other_sessions(*, user: User, current_key: str) -> int:
    """End every session of the person but the one at hand, and return how many ended."""
    others = list(UserSession.objects.filter(user=user).exclude(session_key=current_key))
    for row in others:
        row.end()
    return len(others)
