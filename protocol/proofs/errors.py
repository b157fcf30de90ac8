"""The one error of proofs."""

from __future__ import annotations

from protocol.errors import ProtocolError


class ProofRejected(ProtocolError):
    """A document does not prove what it should: `rule` names the rule that it breaks, the text says how."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule
