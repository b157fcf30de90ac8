"""Guard policies: what is done about each kind of personal data. Values alone, which anybody may import.

A policy comes from a consumer (per API key) and from a creator (per model); the stricter of the two holds.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

PACKAGE = "presidio-analyzer"
_MODULE = "presidio_analyzer"

# The kinds, in the order in which the dashboard shows them. A card number that looks like a telephone number, too, is
# a card number: the first kind of two that share characters wins.
KINDS: dict[str, str] = {
    "card": "card numbers",
    "iban": "bank accounts (IBAN)",
    "wallet": "Bitcoin addresses",
    "email": "e-mail addresses",
    "ip": "IP addresses",
    "id": "national identity numbers",
    "phone": "telephone numbers",
}
ACTIONS = ("mask", "refuse")

Action = Literal["pass", "mask", "refuse"]


class PolicyError(Exception):
    """A policy that cannot hold; `field` is the kind that is at fault, None where it is the whole."""

    def __init__(self, message: str, field: str | None = None) -> None:
        """Take the sentence that says why."""
        super().__init__(message)
        self.message, self.field = message, field


@dataclass(frozen=True)
class Policy:
    """The kinds that refuse a request, and those that are masked in it. An empty policy is false."""

    refused: frozenset[str] = frozenset()
    masked: frozenset[str] = frozenset()

    @classmethod
    def of(cls, stored: Mapping[str, str]) -> Policy:
        """Return the policy that a row holds: `{"email": "mask", "card": "refuse"}`."""
        return cls(
            frozenset(kind for kind, action in stored.items() if action == "refuse"),
            frozenset(kind for kind, action in stored.items() if action == "mask"),
        )

    def __bool__(self) -> bool:
        return bool(self.refused or self.masked)

    @property
    def kinds(self) -> frozenset[str]:
        """Return every kind that is looked for."""
        return self.refused | self.masked

    def action(self, kind: str) -> Action:
        """Return what is done about a kind."""
        return "refuse" if kind in self.refused else "mask" if kind in self.masked else "pass"

    def stricter(self, other: Policy) -> Policy:
        """Return what holds where both do: refuse before mask before pass."""
        refused = self.refused | other.refused
        return Policy(refused, (self.masked | other.masked) - refused)


NO_POLICY = Policy()


def is_installed() -> bool:
    """Return whether the package that finds personal data is there; it is not imported."""
    return importlib.util.find_spec(_MODULE) is not None


def check_policy(wanted: object) -> dict[str, str]:
    """Return the policy as a row holds it, without the kinds that pass. Raises PolicyError."""
    if not isinstance(wanted, Mapping):
        raise PolicyError("must map kinds of personal data to mask or refuse")
    for kind, action in wanted.items():
        if kind not in KINDS:
            raise PolicyError(f"is none of {', '.join(KINDS)}", str(kind)[:40])
        if action not in (*ACTIONS, "pass"):
            raise PolicyError("must be pass, mask or refuse", kind)
    found = {kind: wanted[kind] for kind in KINDS if wanted.get(kind, "pass") != "pass"}
    if found and not is_installed():
        raise PolicyError(f"needs the Python package {PACKAGE}, which this platform has not installed")
    return found
