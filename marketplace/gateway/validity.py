"""Whether an answer under a contract is whole, from the answer alone: a replica that says so is not believed.

A contract with an output schema promises answers that are whole. One that its contract's own limit, a lost replica or a
withdrawal cut off before it delivered what was asked (`protocol.contracts.delivers`) is free; one whose end its caller
could influence (any setting of its own, a budget, a run's deadline, hanging up) is paid for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from protocol.contracts import delivers
from protocol.events import event_data

# Ends of which the caller is the cause.
_BY_CALLER = frozenset({"budget", "cancelled"})


class Validity:
    """The choices of one answer so far."""

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        """Start with nothing read. `schema`: that of the contract; None: the answer is charged, whole or not."""
        self._schema = schema
        self._texts: dict[int, list[str]] = {}
        self._reasons: dict[int, object] = {}

    def read(self, answer: object) -> None:
        """Note a whole answer, or one event of a stream."""
        choices = answer.get("choices") if isinstance(answer, dict) else None
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and isinstance(index := choice.get("index"), int):
                self._read_choice(index, choice)

    def read_event(self, raw: bytes) -> None:
        """Note one event of a stream as it came; one that is not JSON adds nothing."""
        data = event_data(raw)
        if data is None:
            return
        try:
            self.read(orjson.loads(data))
        except orjson.JSONDecodeError:
            return

    def _read_choice(self, index: int, choice: dict[str, Any]) -> None:
        message = choice.get("message") or choice.get("delta")
        content = message.get("content") if isinstance(message, dict) else None
        content = choice.get("text") if message is None else content  # of a completion
        if isinstance(content, str):
            self._texts.setdefault(index, []).append(content)
        if choice.get("finish_reason") is not None:
            self._reasons[index] = choice["finish_reason"]

    def whole_text(self) -> str | None:
        """Return the text of the first choice; None while it has not ended."""
        return "".join(self._texts.get(0, [])) if 0 in self._reasons else None

    def cut_off(self, finish_reason: str) -> bool:
        """Return whether the answer is free; `finish_reason` is that of the receipt."""
        if self._schema is None or finish_reason in _BY_CALLER or "budget" in self._reasons.values():
            return False
        return not delivers(self._schema, "".join(self._texts.get(0, [])))
