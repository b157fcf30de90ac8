"""The keys of platforms and the own organizations there, pinned on first use (`known_platforms.json`): a change is
refused.

Someone who replaced the intake key unseen would receive the data keys of every later version.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from creator_cli.errors import CliError, Refused
from creator_cli.private_files import read_json, write_json
from creator_cli.settings import Settings
from sealed_weights.errors import SealError
from sealed_weights.release_log import SignedCheckpoint
from sealed_weights.strict_json import Fields, to_base64
from sealed_weights.wrap import fingerprint


@dataclass(frozen=True, slots=True)
class SeenHead:
    """The newest head of a chain that this machine has verified; `signed_at` is unix microseconds, 0 if not known."""

    sequence: int
    head_hash: bytes
    signed_at: int


class KnownPlatforms:
    """The pinned keys, own organizations and last checkpoints of each platform, by URL."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Any] = read_json(path) or {}

    @classmethod
    def load(cls, settings: Settings) -> KnownPlatforms:
        """Read the file of the configuration folder; raises CliError if it is damaged."""
        return cls(settings.config_dir / "known_platforms.json")

    def check_intake_key(self, url: str, public_key: bytes, *, trust_new: bool = False) -> bool:
        """Compare the platform's intake key with the pinned one; return True if it was pinned just now.

        Raises CliError if it changed, unless `trust_new`.
        """
        return self._check(
            url,
            "intake_key_fingerprint",
            fingerprint(public_key),
            trust_new,
            "the key that your data keys are sealed to",
        )

    def check_vault_key(self, url: str, public_key: bytes, *, trust_new: bool = False) -> bool:
        """Compare the key that signs custody checkpoints in the same way; raises Refused if it changed."""
        try:
            return self._check(
                url, "vault_key_fingerprint", fingerprint(public_key), trust_new, "the key that signs the custody log"
            )
        except CliError as error:
            if error.code != "key_changed":
                raise
            raise Refused(error.message, hint=error.hint, code="unknown_signer", field="vault_public_key") from None

    def forget_vault_key(self, url: str) -> None:
        """Forget the pinned vault key, so that the next one is pinned: the user has accepted changed keys.

        Checkpoints stay: the chain must go on from them, whichever key signs it now.
        """
        self._entry(url).pop("vault_key_fingerprint", None)
        self._save()

    def platforms_of_vault_key(self, public_key: bytes) -> list[str]:
        """Return the URLs of the platforms whose pinned vault key this is."""
        wanted = fingerprint(public_key)
        return [
            url
            for url, entry in self._known.items()
            if isinstance(entry, dict) and entry.get("vault_key_fingerprint") == wanted
        ]

    def check_organization(self, url: str, slug: str, organization_id: UUID, *, trust_new: bool = False) -> None:
        """Pin the id of an own organization on first use; raises Refused if the platform names another one later."""
        pinned = self._entry(url).setdefault("organizations", {})
        before = pinned.get(slug)
        if before == str(organization_id):
            return
        if before is not None and not trust_new:
            raise Refused(
                f"{url} says that {slug} is another organization than before ({str(organization_id)[:8]}…, was "
                f"{str(before)[:8]}…)",
                hint=f"if it was founded anew: intarsia login --url {url} --trust-new-key",
                code="organization_changed",
                field="organization",
            )
        pinned[slug] = str(organization_id)
        self._save()

    def organization_ids(self, url: str) -> set[str]:
        """Return the ids of the own organizations at this platform."""
        return set(self._entry(url).get("organizations", {}).values())

    def last_head(self, url: str, creator_id: UUID) -> SeenHead | None:
        """Return the newest head of this creator's chain that this machine has verified; raises CliError if the file is
        damaged."""
        stored = self._entry(url).get("checkpoints", {}).get(str(creator_id))
        if not stored:
            return None
        try:
            fields = Fields("checkpoint", stored, frozenset(stored))
            # Checkpoints of earlier versions of this command have no time.
            signed_at = fields.integer("signed_at") if "signed_at" in stored else 0
            return SeenHead(fields.integer("sequence"), fields.base64("head_hash"), signed_at)
        except (SealError, KeyError, TypeError):
            raise self._damaged() from None

    def remember_checkpoint(self, url: str, checkpoint: SignedCheckpoint, vault_key: bytes) -> None:
        """Store a verified checkpoint and its signer: a chain that is rewritten later contradicts it."""
        stored = {**checkpoint.to_json(), "vault_public_key": to_base64(vault_key)}
        self._entry(url).setdefault("checkpoints", {})[str(checkpoint.creator_id)] = stored
        self._save()

    def _check(self, url: str, name: str, found: str, trust_new: bool, what: str) -> bool:
        entry = self._entry(url)
        pinned = entry.get(name)
        if pinned == found:
            return False
        if pinned is not None and not trust_new:
            raise CliError(
                f"{url} shows a different key than before: {what} changed. Nothing was sent. Pinned "
                f"{str(pinned)[:16]}…, shown {found[:16]}…. Ask the platform, through another channel, "
                "whether it changed its keys",
                code="key_changed",
                hint=f"if it did: intarsia login --url {url} --trust-new-key",
            )
        entry[name] = found
        self._save()
        return True

    def _entry(self, url: str) -> dict[str, Any]:
        entry = self._known.setdefault(url, {})
        if not isinstance(entry, dict):
            raise self._damaged()
        return entry

    def _damaged(self) -> CliError:
        return CliError(f"{self._path}: is damaged", hint=f"compare and repair it: {self._path}")

    def _save(self) -> None:
        write_json(self._path, self._known)
