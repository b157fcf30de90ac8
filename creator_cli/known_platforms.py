"""The keys of platforms, pinned on first use (`known_platforms.json`): a changed key is refused.

Someone who replaced the intake key unseen would receive the data keys of every later version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from creator_cli.errors import CliError
from creator_cli.private_files import read_json, write_json
from creator_cli.settings import Settings
from sealed_weights.release_log import SignedCheckpoint
from sealed_weights.wrap import fingerprint


class KnownPlatforms:
    """The pinned keys and the last checkpoints of each platform, by URL."""

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
        """Compare the key that signs custody checkpoints in the same way."""
        return self._check(
            url, "vault_key_fingerprint", fingerprint(public_key), trust_new, "the key that signs the custody log"
        )

    def forget_vault_key(self, url: str) -> None:
        """Forget the pinned vault key, so that the next one is pinned: the user has accepted changed keys."""
        entry = self._entry(url)
        entry.pop("vault_key_fingerprint", None)
        entry.pop("checkpoints", None)
        self._save()

    def knows_vault_key(self, public_key: bytes) -> str | None:
        """Return the URL of the platform whose pinned vault key this is, or None."""
        wanted = fingerprint(public_key)
        for url, entry in self._known.items():
            if isinstance(entry, dict) and entry.get("vault_key_fingerprint") == wanted:
                return url
        return None

    def last_checkpoint(self, url: str, creator_id: str) -> SignedCheckpoint | None:
        """Return the newest checkpoint of this creator's chain that this machine has seen."""
        stored = self._entry(url).get("checkpoints", {}).get(creator_id)
        return SignedCheckpoint.from_json(stored) if stored else None

    def remember_checkpoint(self, url: str, checkpoint: SignedCheckpoint) -> None:
        """Store a verified checkpoint: a chain that is rewritten later contradicts it."""
        self._entry(url).setdefault("checkpoints", {})[str(checkpoint.creator_id)] = checkpoint.to_json()
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
            raise CliError(f"{self._path}: is damaged", hint=f"compare and repair it: {self._path}")
        return entry

    def _save(self) -> None:
        write_json(self._path, self._known)
