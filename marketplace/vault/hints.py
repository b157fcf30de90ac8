"""Hints of what a replica should load soon: over its fleet link where one is held, else by a call.

A hint may be lost, and then its adapters load when they are asked for. The order that lets the replica have the keys
stands before the hint goes out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import uuid4

from django.conf import settings
from redis import Redis
from redis.exceptions import RedisError

from marketplace.vault import replica_client
from marketplace.vault.demand import order
from marketplace.vault.models import ReleaseOrder, Replica
from marketplace.vault.replica_client import ReplicaAddress
from protocol.fleet_relay import FLEET_CHANNEL, FleetRelay, RelayedHint, encode_relay

log = logging.getLogger(__name__)

KEYS_SECONDS = 60.0  # for which the replica may ask for their keys
_SENDER = str(uuid4())


def hint(replica: Replica, digests: Sequence[str]) -> None:
    """Have a replica load adapters soon, where they displace only what is worth less. Raises ReplicaCallFailed."""
    if not digests:
        return
    for digest in digests:
        order(replica_id=replica.pk, digest=digest, kind=ReleaseOrder.Kind.PREFETCH, seconds=KEYS_SECONDS)
    # A replica that closed its link, or never had one, hears nothing there.
    if replica.left_at is not None or not _say(replica, digests):
        replica_client.prefetch(ReplicaAddress.of(replica), digests)


def _say(replica: Replica, digests: Sequence[str]) -> bool:
    """Pass the hint to the web processes; return whether any listens."""
    message = FleetRelay(_SENDER, hints=(RelayedHint(str(replica.pk), tuple(digests)),))
    try:
        with Redis.from_url(settings.ENV.valkey_url, socket_timeout=1, socket_connect_timeout=1) as valkey:
            return bool(valkey.publish(FLEET_CHANNEL, encode_relay(message)))
    except RedisError as error:
        log.warning("a hint goes by a call: %s", type(error).__name__)
        return False
