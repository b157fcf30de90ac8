"""Rollouts of the platform double: one open at a time per model, and announced ends."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.creator_cli.platform_bodies import NOW, shown

if TYPE_CHECKING:
    from tests.creator_cli.platform_double import Platform


class Rollouts:
    """The rollouts of one double, by the name of their model, oldest first."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.all: dict[str, list[dict[str, Any]]] = {}

    def dispatch(self, method: str, path: str, body: Callable[[], dict[str, Any]]) -> tuple[int, Any] | None:
        """Answer an operation about rollouts; None for any other."""
        if found := re.fullmatch(r"models/([^/]+/[^/]+)/rollout", path):
            return 200, self.served(found[1])
        found = re.fullmatch(r"versions/([^/]+)/(rollout|make-default|deprecate)", path)
        if found is None:
            return None
        version = self.platform.version(found[1])
        if found[2] == "deprecate":
            asked = body() if method == "POST" else {}
            version.update(ends_at=asked.get("ends_at"), replacement=asked.get("replacement"))
            return 200, shown(version)
        percent = body()["percent"] if found[2] == "rollout" else 100
        self.roll_out(version, percent)
        return 200, self.served(version["model"])

    def roll_out(self, version: dict[str, Any], percent: int) -> None:
        model = self.platform.model(version["model"])
        rollouts = self.all.setdefault(version["model"], [])
        is_open = bool(rollouts) and rollouts[-1]["ended_at"] is None
        version["state"] = "published"
        if not is_open:
            rollouts.append({"version": version["number"], "baseline": model["newest_version"], "started_at": NOW})
        ended = percent in (0, 100)
        outcome = {0: "rolled_back", 100: "finished"}.get(percent, "")
        rollouts[-1].update(percent=percent, ended_at=NOW if ended else None, outcome=outcome)
        if percent == 100:
            model["newest_version"] = version["number"]

    def served(self, name: str) -> dict[str, Any]:
        rollouts = self.all.get(name, [])
        found = rollouts[-1] if rollouts and rollouts[-1]["ended_at"] is None else None
        side = {"calls": 40, "failures": 2, "error_percent": 5.0, "valid_percent": 100.0, "p95_ms": 812.5}
        side |= {"spent_nano_usd": 80, "nano_usd_per_call": 2, "thumbs_up": None, "thumbs_down": None}
        numbers = [] if found is None else [found["baseline"], found["version"]]
        return {
            "default_version": self.platform.model(name)["newest_version"],
            "rollout": found,
            "comparison": [{**side, "version": number} for number in numbers],
            "earlier": [one for one in reversed(rollouts) if one["ended_at"]],
        }
