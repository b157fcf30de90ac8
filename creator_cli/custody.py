"""The custody log: every release of the organization's keys, checked on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from creator_cli.errors import CliError, Refused
from creator_cli.known_platforms import KnownPlatforms
from creator_cli.private_files import read_json, write_json
from creator_cli.records import Reader, time_of
from sealed_weights.errors import SealError
from sealed_weights.release_log import ReleaseEntry, SignedCheckpoint, verify_chain
from sealed_weights.wrap import fingerprint

FORMAT = "intarsia/custody/v1"


@dataclass(frozen=True, slots=True)
class Chain:
    """A whole chain, oldest release first, with its signed head."""

    creator_id: str
    vault_key: bytes
    checkpoint: SignedCheckpoint | None
    entries: tuple[ReleaseEntry, ...]

    @classmethod
    def parse(cls, value: Any) -> Chain:
        """Read an export; raises Refused if it is not one."""
        try:
            reader = Reader(value, "custody export")
            if reader.text("format") != FORMAT:
                raise Refused(f"format: must be {FORMAT}", field="format")
            checkpoint = SignedCheckpoint.from_json(reader.mapping("checkpoint")) if reader.has("checkpoint") else None
            entries = tuple(ReleaseEntry.from_json(item) for item in reader.items("releases"))
            return cls(reader.text("creator_id"), reader.data("vault_public_key"), checkpoint, entries)
        except SealError as error:
            raise Refused(str(error), field="custody") from None

    def verify(self, known: KnownPlatforms, url: str | None) -> None:
        """Check every hash, the signature of the head and, if this machine remembers one, its last checkpoint.

        `url` is the platform whose memory to compare with. Raises Refused naming the first broken release.
        """
        if self.entries and self.checkpoint is None:
            raise Refused("custody: the signed checkpoint is missing", field="checkpoint")
        if self.checkpoint and (
            str(self.checkpoint.creator_id) != self.creator_id or self.checkpoint.sequence != len(self.entries)
        ):
            raise Refused("custody: the checkpoint is not that of the chain's last release", field="checkpoint")
        remembered = known.last_checkpoint(url, self.creator_id) if url else None
        try:
            verify_chain(self.entries, checkpoint=self.checkpoint, vault_public=self.vault_key)
            # An older export is shorter than the chain seen since, and still valid.
            if remembered and remembered.sequence <= len(self.entries):
                verify_chain(self.entries, checkpoint=remembered, vault_public=self.vault_key)
        except SealError as error:
            raise Refused(f"custody: {error}", field="custody", code="chain_broken") from None

    def summary(self) -> dict[str, Any]:
        """Return what `--json` says about a verified chain."""
        last = self.entries[-1] if self.entries else None
        return {
            "ok": True,
            "creator_id": self.creator_id,
            "releases": len(self.entries),
            "head": last.hash().hex() if last else None,
            "last_released_at": time_of(last.released_at).isoformat() if last else None,
            "vault_key": fingerprint(self.vault_key),
        }


def check_live_chain(url: str, value: dict[str, Any], known: KnownPlatforms) -> Chain:
    """Verify the chain that a platform shows now, against what this machine saw before; then remember its head.

    Raises Refused for a chain that is broken, or shorter than it was, and CliError for a changed vault key.
    """
    chain = Chain.parse(value)
    known.check_vault_key(url, chain.vault_key)
    before = known.last_checkpoint(url, chain.creator_id)
    if before and before.sequence > len(chain.entries):
        raise Refused(
            f"custody: the chain has {len(chain.entries)} releases, but had {before.sequence} when it was last seen",
            field="custody",
            code="chain_broken",
        )
    chain.verify(known, url)
    if chain.checkpoint:
        known.remember_checkpoint(url, chain.checkpoint)
    return chain


def verify_file(path: Path, known: KnownPlatforms) -> tuple[Chain, str | None]:
    """Verify an export offline. Return the chain and the platform that its key is pinned for, None if unknown.

    Raises Refused for a file that is not an export and for a broken chain.
    """
    try:
        value = read_json(path)
    except CliError as error:
        raise Refused(error.message, field="file") from None
    if value is None:
        raise Refused(f"{path}: is not there", field="file")
    chain = Chain.parse(value)
    url = known.knows_vault_key(chain.vault_key)
    chain.verify(known, url)
    return chain, url


def export(path: Path, value: dict[str, Any]) -> None:
    """Write an export; raises CliError."""
    write_json(path, value)
