"""A prompt that one replica has computed for another to answer, and the ticket by which that one pulls its KV."""

from __future__ import annotations

from dataclasses import dataclass

from marketplace.gateway.order import Order
from marketplace.gateway.pools import ReplicaAddress
from marketplace.vault.signing import TicketSigner
from protocol.encoding import encode_base64url
from protocol.pulls import PULL_HEADER, pull_ticket
from protocol.receipts import Receipt


@dataclass(frozen=True)
class Prefilled:
    """The replica that has the KV, and its receipt. Nothing is charged by that: its count of cached tokens goes into
    the ticket of the prediction, and comes back in the receipt that is charged."""

    source: ReplicaAddress
    receipt: Receipt

    def pull_headers(
        self, order: Order, reader: ReplicaAddress, *, attempt: int, signer: TicketSigner
    ) -> dict[str, str]:
        """Return the header by which `reader` pulls the KV; nothing for a replica that computes otherwise."""
        if self.source.base_fingerprint != reader.base_fingerprint:
            return {}
        ticket = pull_ticket(
            jti=order.id,
            attempt=attempt,
            source_id=self.source.id,
            source_url=self.source.transfer_url,
            source_key=encode_base64url(bytes(self.source.receipt_public_key)),
            reader_id=reader.id,
            reader_key=encode_base64url(bytes(reader.receipt_public_key)),
            adapter=order.adapter,
            cache_scope=str(order.principal.organization_id),
        )
        return {PULL_HEADER: signer.sign_pull(ticket)}
