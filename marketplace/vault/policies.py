"""Rules for the release of keys: pure functions."""

from __future__ import annotations

from marketplace.catalog.models import Version
from marketplace.vault.models import Release

# For which purposes a key may be held, by the states of its version.
WHY_LENT: dict[str, frozenset[str]] = {
    Release.Purpose.VERIFY: frozenset({Version.State.VERIFYING}),
    Release.Purpose.SERVE: frozenset({Version.State.VERIFIED, Version.State.IN_REVIEW, Version.State.PUBLISHED}),
}
ENDED_STATES = frozenset({Version.State.RETIRED, Version.State.REVOKED})


def release_allowed(state: str, purpose: str) -> bool:
    """Return whether the key of a version in `state` may be held for `purpose`."""
    return state in WHY_LENT.get(purpose, frozenset())
