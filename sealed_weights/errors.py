"""The errors of this package. Messages name the field and the rule, never a key or a weight."""

from __future__ import annotations


class SealError(Exception):
    """Base of every error raised by `sealed_weights`."""


class FormatError(SealError):
    """Bytes that are not a well-formed package, key, wrap, lease or log."""


class AuthenticationError(SealError):
    """Well-formed bytes that an authenticated check refused: changed, misplaced, or meant for someone else."""


class CommitmentError(SealError):
    """The key, or a header field, is not the one that the package commits to."""


class SignatureError(SealError):
    """An Ed25519 signature does not verify under the expected public key."""


class MemoryNotLocked(Exception):
    """Secret memory cannot be kept out of swap and the caller requires it. Says nothing about the package."""


class KeyFileError(SealError):
    """A key file is missing, too open, or not a key file."""


class IntakeError(SealError):
    """An adapter was refused. `field` names the part and `rule` the broken rule. Both are safe to show."""

    def __init__(self, field: str, rule: str) -> None:
        """Build the refusal of `field` (cut to 200 printable characters, since it may come from the file)."""
        self.field = _printable(field)
        self.rule = rule
        super().__init__(f"{self.field}: {rule}")

    def __reduce__(self) -> tuple[type[IntakeError], tuple[str, str]]:
        # Intake runs in a child process: the refusal must survive pickling with both of its parts.
        return (IntakeError, (self.field, self.rule))


def _printable(text: str) -> str:
    shown = text.encode("ascii", "backslashreplace").decode()
    shown = "".join(character if character.isprintable() else "?" for character in shown)
    return shown if len(shown) <= 200 else shown[:197] + "..."
