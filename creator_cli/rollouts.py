"""The version that a bare name means, as the API says it: the default, the rollout beside it, and those before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from creator_cli.reading import Reader


@dataclass(frozen=True, slots=True)
class Rollout:
    """A version that `percent` of the customers get, beside the baseline. `outcome` is empty while it runs."""

    version: int
    baseline: int
    percent: int
    outcome: str

    @classmethod
    def parse(cls, value: Any) -> Rollout:
        """Read a rollout of the API."""
        reader = Reader(value, "rollout")
        numbers = (reader.integer("version"), reader.integer("baseline"), reader.integer("percent"))
        return cls(*numbers, outcome=reader.text("outcome"))


@dataclass(frozen=True, slots=True)
class Served:
    """The default version, the rollout that is open, both versions side by side, and earlier rollouts."""

    default: int | None
    rollout: Rollout | None
    sides: tuple[Mapping[str, Any], ...]
    earlier: tuple[Rollout, ...]
    answer: Mapping[str, Any]  # as the API said it

    @classmethod
    def parse(cls, value: Any) -> Served:
        """Read the answer of the API."""
        reader = Reader(value, "rollout")
        return cls(
            default=reader.integer("default_version") if reader.has("default_version") else None,
            rollout=Rollout.parse(value["rollout"]) if reader.has("rollout") else None,
            sides=tuple(reader.items("comparison")),
            earlier=tuple(Rollout.parse(item) for item in reader.items("earlier")),
            answer=value,
        )

    @property
    def before(self) -> int | None:
        """Return the version that the last rollout took the place of, if its version is still the default."""
        last = next((one for one in self.earlier if one.outcome == "finished"), None)
        return last.baseline if last is not None and last.version == self.default else None
