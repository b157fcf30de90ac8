"""Receipts on this machine: the key files that platforms published, kept for later, and checks with them alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from creator_cli.errors import Refused
from creator_cli.private_files import read_json, write_json
from creator_cli.settings import Settings
from protocol.proofs.documents import MAX_DOCUMENT_BYTES, VerifiedReceipt, verify_document
from protocol.proofs.errors import ProofRejected
from protocol.proofs.keys import MAX_KEY_FILE_BYTES, KeyFile, check_continues, read_key_file


@dataclass(frozen=True, slots=True)
class SavedKeys:
    """A key file and where it is from: the URL it was saved for, or its path."""

    source: str
    file: KeyFile


class ReceiptKeys:
    """The key file of each platform, by URL (`receipt_keys.json`). A newer file must continue the saved one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = read_json(path) or {}

    @classmethod
    def load(cls, settings: Settings) -> ReceiptKeys:
        """Read the file of the configuration folder; raises CliError if it is damaged."""
        return cls(settings.config_dir / "receipt_keys.json")

    def saved(self, url: str) -> KeyFile | None:
        """Return the key file saved for the platform, if there is one."""
        known = self._known.get(url)
        return None if known is None else _read(msgspec.json.encode(known), str(self._path))

    def save(self, url: str, data: bytes) -> KeyFile:
        """Check that a platform's key file continues the saved one, and save it; raises Refused if it does not."""
        found = _read(data, url)
        before = self.saved(url)
        if before is not None:
            try:
                check_continues(found, before)
            except ProofRejected as rejection:
                raise Refused(
                    f"{url} shows other receipt keys than it did: {rejection}. Nothing was saved",
                    hint="ask the platform, through another channel, what became of its keys",
                    code="key_changed",
                    field="keys",
                ) from None
        self._known[url] = msgspec.to_builtins(found)
        write_json(self._path, self._known)
        return found

    def all(self) -> list[SavedKeys]:
        """Return every saved key file."""
        return [
            SavedKeys(url, _read(msgspec.json.encode(value), str(self._path))) for url, value in self._known.items()
        ]


def read_keys(path: Path) -> SavedKeys:
    """Read a key file that the user kept; raises Refused."""
    return SavedKeys(str(path), _read(_bytes(path, MAX_KEY_FILE_BYTES), str(path)))


def verify_file(path: Path, keys: list[SavedKeys]) -> tuple[VerifiedReceipt, SavedKeys]:
    """Check a receipt with the first key file that knows its key; return what it proves and that key file.

    Raises Refused with the broken rule as its code; `unknown_key` if no file knows the key.
    """
    data = _bytes(path, MAX_DOCUMENT_BYTES)
    unknown: ProofRejected | None = None
    for saved in keys:
        try:
            return verify_document(data, saved.file), saved
        except ProofRejected as rejection:
            if rejection.rule != "unknown_key":
                raise Refused(f"{path}: {rejection}", code=rejection.rule, field="file") from None
            unknown = rejection
    raise Refused(
        f"{path}: {unknown or 'no key file is saved on this machine: nothing is proven'}",
        hint="intarsia receipt keys, or name a key file with --keys",
        code="unknown_key",
        field="file",
    )


def _read(data: bytes, where: str) -> KeyFile:
    try:
        return read_key_file(data)
    except ProofRejected as rejection:
        raise Refused(f"{where}: {rejection}", code=rejection.rule, field="keys") from None


def _bytes(path: Path, limit: int) -> bytes:
    """Read at most one byte more than the limit, which the parsers then refuse; raises Refused."""
    try:
        with path.open("rb") as file:
            return file.read(limit + 1)
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror})", field="file") from None
