"""The real enrolment for a scripted replica: challenge, registration and heartbeats, with the serving tier's code."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.admin import ReplicaFigures
from protocol.fleet import LoadNow
from serving.platform.fleet_link import Acts
from serving.platform.fleet_views import Snapshot
from serving.platform.identity import ReplicaIdentity
from serving.platform.leases import LeaseTable
from serving.platform.link import Description, PlatformLink
from serving.platform.receipts import ReceiptSigner
from serving.platform.tickets import TicketVerifier
from serving.platform.vault_client import VaultClient

REGISTER_SECONDS = 60.0
_NOTHING = Snapshot(
    LoadNow(),
    ReplicaFigures(
        steps=0,
        max_adapters_in_one_batch=0,
        batches_with_several_adapters=0,
        prompt_tokens=0,
        generated_tokens=0,
        finished=0,
        failed=0,
        running=0,
        waiting=0,
        kv_blocks_used=0,
        kv_blocks_total=0,
    ),
)


def _done() -> Future[int]:
    future: Future[int] = Future()
    future.set_result(0)
    return future


class Enrolment:
    """One replica name at one platform; each `register` is a new boot with new keys."""

    def __init__(self, platform_url: str, name: str, base: str, folder: Path) -> None:
        """Keep the identity in `folder`, where the credential's file is: `credential`."""
        self._platform_url, self._name, self._base = platform_url, name, base
        self._identity = ReplicaIdentity(folder / "identity", name, folder / "credential")
        self._signer = ReceiptSigner(base)
        self._link: PlatformLink | None = None

    @property
    def receipt_key(self) -> Ed25519PrivateKey:
        """Return this boot's private key: a liar signs with it what it likes."""
        return self._signer._key

    @property
    def replica_id(self) -> str:
        """Return the id of this boot."""
        assert self._link is not None and self._link.replica_id is not None
        return self._link.replica_id

    async def register(self, url: str) -> None:
        """Introduce a new boot at `url`; returns when the platform knows it, and beats from then on."""
        self._signer = ReceiptSigner(self._base)
        known, ready = threading.Event(), threading.Event()
        ready.set()
        self._link = PlatformLink(
            VaultClient(self._platform_url),
            self._identity,
            self._signer,
            TicketVerifier(),
            LeaseTable(),
            acts=Acts(lambda: _NOTHING, drop=lambda digests: [_done() for _ in digests], prefetch=lambda digests: None),
            on_registered=lambda replica_id: known.set(),
        )
        self._link.start(Description(url, self._base, {"kind": "none"}), ready)
        if not await asyncio.to_thread(known.wait, REGISTER_SECONDS):
            raise TimeoutError(f"{self._name} was not registered within {REGISTER_SECONDS:.0f} s")

    async def close(self) -> None:
        """End the heartbeats of this boot."""
        if self._link is not None:
            link, self._link = self._link, None
            await asyncio.to_thread(link.close)
