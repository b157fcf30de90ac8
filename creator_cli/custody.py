"""The custody log: every release of the organization's keys, checked on this machine.

A chain is accepted only if it is the own organization's and a key that this machine has pinned signed its head.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from creator_cli.custody_records import Release
from creator_cli.errors import CliError, Refused
from creator_cli.known_platforms import KnownPlatforms, SeenHead
from creator_cli.private_files import read_json, write_json
from creator_cli.reading import Reader
from creator_cli.records import Me, time_of
from sealed_weights.errors import SealError
from sealed_weights.release_log import ReleaseEntry, SignedCheckpoint, verify_chain
from sealed_weights.wrap import fingerprint

FORMAT = "intarsia/custody/v2"
# A checkpoint may be this much older than the last one seen: clocks are set back, and answers cross.
CLOCK_TOLERANCE_US = 300_000_000


@dataclass(frozen=True, slots=True)
class Chain:
    """A whole chain, oldest release first, with its signed head."""

    creator_id: UUID
    vault_key: bytes
    checkpoint: SignedCheckpoint | None
    entries: tuple[ReleaseEntry, ...]

    @classmethod
    def parse(cls, value: Any) -> Chain:
        """Read an export; raises Refused if it is not one."""
        try:
            reader = Reader(value, "custody export")
            if reader.text("format") != FORMAT:
                raise Refused(f"format: must be {FORMAT}; export the chain again", field="format")
            checkpoint = SignedCheckpoint.from_json(reader.mapping("checkpoint")) if reader.has("checkpoint") else None
            entries = tuple(ReleaseEntry.from_json(item) for item in reader.items("releases"))
            return cls(reader.uuid("creator_id"), reader.data("vault_public_key"), checkpoint, entries)
        except SealError as error:
            raise Refused(str(error), field="custody") from None

    def verify(self) -> None:
        """Check every hash and the signature of the head; raises Refused naming the first broken release."""
        if self.checkpoint is None and not self.entries:
            return
        if self.checkpoint is None:
            raise Refused("custody: the signed checkpoint is missing", field="checkpoint")
        if self.checkpoint.creator_id != self.creator_id or self.checkpoint.sequence != len(self.entries):
            raise Refused("custody: the checkpoint is not that of the chain's last release", field="checkpoint")
        try:
            verify_chain(self.entries, checkpoint=self.checkpoint, vault_public=self.vault_key)
        except SealError as error:
            raise _broken(str(error)) from None

    def continues(self, seen: SeenHead) -> None:
        """Check that a verified chain contains the head `seen`, or was signed before it; raises Refused."""
        if seen.sequence <= len(self.entries):
            if self.entries[seen.sequence - 1].hash() != seen.head_hash:
                raise _broken(f"release {seen.sequence}: its hash is not the one in the signed checkpoint seen before")
        elif self.checkpoint is None or 0 < seen.signed_at < self.checkpoint.signed_at:
            raise self.shorter(seen)

    def shorter(self, seen: SeenHead) -> Refused:
        """Return the refusal of a chain that lost the releases up to `seen`."""
        when = f" ({time_of(seen.signed_at):%Y-%m-%d %H:%M:%S} UTC)" if seen.signed_at else ""
        return _broken(
            f"the chain has {len(self.entries)} releases, but had {seen.sequence} when it was last seen{when}"
        )

    def summary(self) -> dict[str, Any]:
        """Return what `--json` says about a verified chain; `ok` is true only if something was proven."""
        last = self.entries[-1] if self.entries else None
        return {
            "ok": last is not None,
            "creator_id": str(self.creator_id),
            "releases": len(self.entries),
            "head": last.hash().hex() if last else None,
            "last_released_at": time_of(last.released_at).isoformat() if last else None,
            "signed_at": time_of(self.checkpoint.signed_at).isoformat() if self.checkpoint else None,
            "vault_key": fingerprint(self.vault_key),
        }

    def releases_of(self, model_id: UUID, listed: Iterable[Release]) -> list[tuple[ReleaseEntry, Release | None]]:
        """Return the chain's releases of one model, newest first, each with the platform's remarks on it if it has any.

        Raises Refused if the platform lists a release that is not in the chain.
        """
        remarks = {}
        for release in listed:
            known = 1 <= release.sequence <= len(self.entries)
            entry = self.entries[release.sequence - 1] if known else None
            if entry is None or entry.hash() != release.entry_hash or entry.model_id != model_id:
                raise _broken(f"release {release.sequence}: the platform lists it, but the chain has another one there")
            remarks[release.sequence] = release
        return [(entry, remarks.get(entry.sequence)) for entry in reversed(self.entries) if entry.model_id == model_id]


def check_live_chain(url: str, value: dict[str, Any], me: Me, known: KnownPlatforms) -> Chain:
    """Verify the chain that a platform shows `me` now, against what this machine saw before; then remember its head.

    Raises Refused for a chain of another organization or signer, and for one that is broken or shorter than it was.
    """
    known.check_organization(url, me.organization, me.organization_id)
    chain = Chain.parse(value)
    if chain.creator_id != me.organization_id:
        raise _foreign(chain)
    known.check_vault_key(url, chain.vault_key)
    chain.verify()
    seen = known.last_head(url, chain.creator_id)
    if seen is not None:
        if seen.sequence > len(chain.entries):
            raise chain.shorter(seen)
        chain.continues(seen)
        if chain.checkpoint and chain.checkpoint.signed_at < seen.signed_at - CLOCK_TOLERANCE_US:
            raise _broken("the checkpoint is older than the one that was last seen")
    if chain.checkpoint:
        known.remember_checkpoint(url, chain.checkpoint, chain.vault_key)
    return chain


def verify_file(path: Path, known: KnownPlatforms) -> tuple[Chain, str]:
    """Verify an export offline; return the chain and the platform that its signer is pinned for.

    Raises Refused for a file that is not an export, an unknown signer, another organization's chain, a broken chain,
    one that contradicts a checkpoint seen before, and an empty one, which proves nothing.
    """
    try:
        value = read_json(path)
    except CliError as error:
        raise Refused(error.message, field="file") from None
    if value is None:
        raise Refused(f"{path}: is not there", field="file")
    try:
        chain = Chain.parse(value)
    except CliError as error:
        raise Refused(f"{path}: {error.message}", field=error.field or "file", code=error.code) from None
    platforms = known.platforms_of_vault_key(chain.vault_key)
    if not platforms:
        raise Refused(
            f"{path}: is signed by a key that this machine has not pinned ({fingerprint(chain.vault_key)[:16]}…): "
            "nothing is proven",
            hint="log in and run intarsia custody ORG/SLUG once, which pins the platform's key",
            code="unknown_signer",
            field="vault_public_key",
        )
    own = [url for url in platforms if str(chain.creator_id) in known.organization_ids(url)]
    if not own:
        raise _foreign(chain)
    chain.verify()
    for url in own:
        if seen := known.last_head(url, chain.creator_id):
            chain.continues(seen)
    if not chain.entries:
        raise Refused(f"{path}: holds no release: nothing is proven", code="nothing_proven", field="releases")
    return chain, own[0]


def export(path: Path, value: dict[str, Any]) -> None:
    """Write an export; raises CliError."""
    write_json(path, value)


def _broken(message: str) -> Refused:
    return Refused(f"custody: {message}", field="custody", code="chain_broken")


def _foreign(chain: Chain) -> Refused:
    return Refused(
        f"custody: the chain is that of organization {chain.creator_id}, not of yours: nothing is proven",
        hint="intarsia whoami shows your organization; log in to it once on this machine",
        field="creator_id",
        code="foreign_chain",
    )
