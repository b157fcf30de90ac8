"""The error of this package; the command turns it into its own."""

from __future__ import annotations


class BridgeError(Exception):
    """The input cannot be used. `field` names the folder or option, `rule` the rule; `hint` says what to do."""

    def __init__(self, field: str, rule: str, hint: str | None = None) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule
        self.hint = hint
