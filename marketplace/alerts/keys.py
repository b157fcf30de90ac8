"""Revoking an API key as members do it: the key ends, and the organization's webhooks are told."""

from __future__ import annotations

from django.db import transaction

from marketplace.accounts.audit import PLATFORM, Actor
from marketplace.accounts.key_services import revoke_api_key
from marketplace.accounts.locks import lock_api_key
from marketplace.accounts.models import ApiKey
from marketplace.alerts.events import emit


@transaction.atomic
def revoke_key(*, key: ApiKey, actor: Actor = PLATFORM) -> ApiKey:
    """Revoke a key at once, with the event `key.revoked`. Revoking twice keeps the first time and tells nothing."""
    was_live = lock_api_key(key.pk).revoked_at is None
    revoked = revoke_api_key(key=key, actor=actor)
    if was_live:
        data = {"key_id": str(key.pk), "prefix": key.prefix, "name": key.name}
        emit(organization=key.organization, kind="key.revoked", data=data)
    return revoked
