"""What a key reaches, and whether another reach is within it: a key makes, changes and renews nothing beyond its own.

`is_within` is the one rule; `accounts.key_services`, `billing.limited_keys` and `billing.budgets.tree` apply it to the
key that acts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_network
from typing import Any

from marketplace.accounts import audit
from marketplace.accounts.errors import NotAllowed
from marketplace.accounts.models import ApiKey
from marketplace.accounts.policies import may_grant
from marketplace.guards.policies import ACTIONS, KINDS

_STRICTNESS = {action: rank for rank, action in enumerate(("pass", *ACTIONS))}


@dataclass(frozen=True, slots=True)
class Reach:
    """What a key may do. Empty `models` and `networks`, and None elsewhere, are no limit.

    limits: nano-dollars for one request, a day, a month and in all
    """

    scopes: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    networks: frozenset[str] = frozenset()
    expires_at: datetime | None = None
    guards: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[int | None, ...] = (None, None, None, None)

    @classmethod
    def of(cls, key: ApiKey, limits: tuple[int | None, ...] = (None, None, None, None)) -> Reach:
        """Return what a row says; its budget is not in the row."""
        return cls(
            frozenset(key.scopes),
            frozenset(key.allowed_models),
            frozenset(key.allowed_networks),
            key.expires_at,
            dict(key.guards),
            limits,
        )


def _scopes(inner: Reach, outer: Reach) -> bool:
    return may_grant(outer.scopes, inner.scopes)


def _models(inner: Reach, outer: Reach) -> bool:
    return not outer.models or (bool(inner.models) and inner.models <= outer.models)


def _networks(inner: Reach, outer: Reach) -> bool:
    if not outer.networks:
        return True
    return bool(inner.networks) and all(_is_in(text, outer.networks) for text in inner.networks)


def _is_in(text: str, wide: Collection[str]) -> bool:
    network: Any = ip_network(text)
    return any(network.version == one.version and network.subnet_of(one) for one in map(ip_network, wide))


def _expires_at(inner: Reach, outer: Reach) -> bool:
    return outer.expires_at is None or (inner.expires_at is not None and inner.expires_at <= outer.expires_at)


def _guards(inner: Reach, outer: Reach) -> bool:
    def rank(reach: Reach, kind: str) -> int:
        return _STRICTNESS[reach.guards.get(kind, "pass")]

    return all(rank(inner, kind) >= rank(outer, kind) for kind in KINDS)


def _limits(inner: Reach, outer: Reach) -> bool:
    pairs = zip(inner.limits, outer.limits, strict=True)
    return all(most is None or (mine is not None and mine <= most) for mine, most in pairs)


PARTS: Mapping[str, Callable[[Reach, Reach], bool]] = {
    "scopes": _scopes,
    "models": _models,
    "networks": _networks,
    "expires_at": _expires_at,
    "guards": _guards,
    "limits": _limits,
}


def beyond(inner: Reach, outer: Reach) -> str | None:
    """Return the first part in which `inner` reaches beyond `outer`, None if it is within."""
    return next((part for part, within in PARTS.items() if not within(inner, outer)), None)


def is_within(inner: Reach, outer: Reach) -> bool:
    """Return whether whoever has `inner` can do nothing that `outer` does not allow."""
    return beyond(inner, outer) is None


def require_within(inner: Reach, outer: Reach) -> None:
    """Raise NotAllowed, naming the part, if `inner` reaches beyond `outer`, which is the acting key's."""
    part = beyond(inner, outer)
    if part is not None:
        raise beyond_own(part)


def require_change_within(part: str, *, wanted: Reach, now: Reach) -> None:
    """Raise NotAllowed if the acting key may not give `part` of a key the value in `wanted`.

    It may give what it has itself, and take away from what is there `now`. People and the platform may do as they like.
    """
    maker = acting_key()
    within = PARTS[part]
    if maker is not None and not within(wanted, Reach.of(maker)) and not within(wanted, now):
        raise beyond_own(part)


def acting_key() -> ApiKey | None:
    """Return the key that acts in this request, None for a person and for the platform."""
    return audit.current_actor().key


def beyond_own(part: str) -> NotAllowed:
    """Return the refusal for what the acting key does not have itself."""
    return NotAllowed(
        "a key can give no more than it has itself: make or change this as a person, or with a key that may do as much",
        code="beyond_own_limits",
        field=part,
    )
