"""The contracts of adapters that this replica holds, from the moment a package is opened until its lease goes back."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol

from sealed_weights import Contract


@dataclass(slots=True, eq=False, repr=False)
class HeldContract:
    """A contract, and whatever was made from it for one tokenizer: both are forgotten together."""

    contract: Contract
    prepared: Any = None


class ContractShelf:
    """Contracts by adapter digest; an adapter that is known to have none is there as None. Thread-safe."""

    def __init__(self) -> None:
        self._held: dict[str, HeldContract | None] = {}
        self._lock = threading.Lock()

    def put(self, digest: str, contract: Contract | None) -> HeldContract | None:
        """Keep the contract of an opened package, unless it is here already, and return what is kept."""
        with self._lock:
            if digest not in self._held:
                self._held[digest] = None if contract is None else HeldContract(contract)
            return self._held[digest]

    def find(self, digest: str) -> tuple[bool, HeldContract | None]:
        """Return whether the adapter is known, and its contract, if it has one."""
        with self._lock:
            return digest in self._held, self._held.get(digest)

    def drop(self, digest: str) -> None:
        """Forget an adapter. A request that is under way keeps what it was given."""
        with self._lock:
            self._held.pop(digest, None)


class ContractSource(Protocol):
    """Knows the contracts of adapters by digest."""

    contracts: ContractShelf

    def contract(self, digest: str) -> HeldContract | None:
        """Return the adapter's contract, None if it has none. May block: call it off the event loop.

        Raises AdapterUnavailable or AdapterRevoked.
        """
        ...
