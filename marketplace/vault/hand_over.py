"""The conversations of a replica that drains go to their next homes: hints, by which those pull the KV.

Nothing depends on them. A conversation that was not handed over is computed again where it goes on.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict

import numpy as np

from marketplace.vault import replica_client
from marketplace.vault.errors import ReplicaCallFailed
from marketplace.vault.hints import hint
from marketplace.vault.models import Replica
from marketplace.vault.replica_client import ReplicaAddress
from marketplace.vault.selectors import live_replicas
from marketplace.vault.signing import TicketSigner, load_ticket_signer
from protocol.admin import Conversation, PullOrder
from protocol.encoding import encode_base64url
from protocol.pulls import PullTicket, pull_ticket
from routing import key_of
from routing.homes import weights

log = logging.getLogger(__name__)
MOST_CONVERSATIONS = 64  # of one replica: the ticket of a pull is good for half a minute


def hand_over_conversations(name: str) -> int:
    """Hand a draining replica's conversations to their next homes; return how many those took."""
    source = Replica.objects.filter(name=name, gone_at__isnull=True).first()
    if source is None or not source.transfer_url:
        return 0
    others = [
        one
        for one in live_replicas(source.base_fingerprint)
        if one.name != name and one.role != Replica.Role.PREFILL and not one.stats.get("draining")
    ]
    if not others:
        return 0
    signer = load_ticket_signer()
    try:
        found = replica_client.conversations(ReplicaAddress.of(source), MOST_CONVERSATIONS, signer=signer)
    except ReplicaCallFailed as error:
        log.warning("%s hands nothing over: %s", name, error)
        return 0
    homes: defaultdict[int, list[Conversation]] = defaultdict(list)
    keys = np.array([key_of(one.name) for one in others], np.uint64)
    for conversation in found.conversations:
        # The order of homes that gateways use: the first that is left inherits the adapter.
        homes[int(weights(key_of(conversation.adapter or "base"), keys).argmax())].append(conversation)
    return sum(_send(source, others[place], some, signer) for place, some in homes.items())


def _send(source: Replica, home: Replica, conversations: list[Conversation], signer: TicketSigner) -> int:
    orders = [
        PullOrder(signer.sign_pull(_ticket(source, home, conversation)), conversation.key)
        for conversation in conversations
    ]
    address = ReplicaAddress.of(home)
    adapters = dict.fromkeys(one.adapter for one in conversations if one.adapter is not None)
    try:
        hint(home, list(adapters))
        return replica_client.pull(address, orders, signer=signer).taken
    except ReplicaCallFailed as error:
        log.warning("%s takes nothing over from %s: %s", home.name, source.name, error)
        return 0


def _ticket(source: Replica, home: Replica, conversation: Conversation) -> PullTicket:
    return pull_ticket(
        jti=uuid.uuid4(),
        attempt=1,
        source_id=source.pk,
        source_url=source.transfer_url,
        source_key=encode_base64url(bytes(source.receipt_public_key)),
        reader_id=home.pk,
        reader_key=encode_base64url(bytes(home.receipt_public_key)),
        adapter=conversation.adapter,
        cache_scope=conversation.cache_scope,
    )
