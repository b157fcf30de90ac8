"""Asking the journals of many replicas: in batches, in parallel, each replica apart from the others."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import aiohttp

from marketplace.vault.replica_client import ReplicaAddress
from marketplace.vault.signing import TicketSigner
from protocol.admin import ADMIN_PATH, MAX_JOURNAL_KEYS, JournalAnswer, JournalKey, JournalRequest, JournalState
from protocol.bodies import collect_stream
from protocol.errors import ProtocolError
from protocol.messages import decode, encode
from protocol.tickets import TICKET_HEADER

logger = logging.getLogger(__name__)

# From connecting to the last byte of an answer, however slowly it comes. A replica that misses it is asked again in the
# next round, five seconds later.
CALL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One batch and its answer: the states in the order of the keys, or None from a replica that did not answer."""

    replica_id: UUID  # of the boot that was asked
    keys: Sequence[JournalKey]
    states: Sequence[JournalState] | None


def ask_journals(questions: Mapping[ReplicaAddress, Sequence[JournalKey]], signer: TicketSigner) -> Iterator[Asked]:
    """Ask every replica about its predictions and yield the answers as they come, the last after CALL_SECONDS."""
    batches = [
        (address, keys[start : start + MAX_JOURNAL_KEYS])
        for address, keys in questions.items()
        for start in range(0, len(keys), MAX_JOURNAL_KEYS)
    ]
    answers: queue.SimpleQueue[Asked] = queue.SimpleQueue()

    async def ask_all() -> None:
        limits = aiohttp.ClientTimeout(total=CALL_SECONDS)
        async with aiohttp.ClientSession(timeout=limits, connector=aiohttp.TCPConnector(limit=0)) as session:

            async def ask(address: ReplicaAddress, keys: Sequence[JournalKey]) -> None:
                states = None
                try:
                    states = await _ask(session, address, keys, signer)
                except (aiohttp.ClientError, TimeoutError, OSError, ProtocolError) as error:
                    logger.warning("journal of replica %s: %s", address.replica_id, error or type(error).__name__)
                finally:
                    answers.put(Asked(address.replica_id, keys, states))

            await asyncio.gather(*(ask(*batch) for batch in batches), return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(ask_all()), name="ask-journals", daemon=True)
    thread.start()
    for _ in batches:
        yield answers.get()
    thread.join()


async def _ask(
    session: aiohttp.ClientSession, address: ReplicaAddress, keys: Sequence[JournalKey], signer: TicketSigner
) -> Sequence[JournalState]:
    """Raises ProtocolError for an answer that is not one, and the errors of the connection."""
    body = encode(JournalRequest(list(keys)))
    ticket = signer.sign_admin(action="journal", replica_id=address.replica_id, body=body)
    headers = {TICKET_HEADER: ticket, "content-type": "application/json"}
    url = address.url + ADMIN_PATH.format(action="journal")
    async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
        if response.status != 200:
            raise ProtocolError(f"it answered {response.status}")
        states = decode(await collect_stream(response.content.iter_any()), JournalAnswer).states
    if len(states) != len(keys):
        raise ProtocolError(f"it answered for {len(states)} predictions and was asked for {len(keys)}")
    return states
