"""Versions on checkpoints of the platform double: each on one, where it lost too much."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.creator_cli.platform_double import Platform


class Precisions:
    """The creator's word, by version."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.leaves: dict[str, str] = {}

    def dispatch(
        self, method: str, path: str, body: Callable[[], dict[str, Any]]
    ) -> tuple[int, Any] | list[dict[str, Any]] | None:
        """Answer an operation about checkpoints; None for any other."""
        if found := re.fullmatch(r"models/([^/]+/[^/]+)/precisions", path):
            mine = [one for one in self.platform.versions.values() if one["model"] == found[1]]
            return [self.shown(one) for one in reversed(mine)]
        found = re.fullmatch(r"versions/([^/]+)/leave", path)
        if found is None or method != "PUT":
            return None
        version, asked = self.platform.version(found[1]), body()
        self.leaves[version["id"]] = asked["leave"]
        return 200, self.shown(version)

    def shown(self, version: dict[str, Any]) -> dict[str, Any]:
        leave = self.leaves.get(version["id"], "none")
        return {
            "version": version["number"],
            "checkpoint": {"name": "tiny-int4", "precision": "INT4", "fingerprint": "ef" * 32},
            "cleared": leave == "given",
            "state": "failed",
            "reason": "it loses too much",
            "leave": leave,
            "rows": 50,
            "correct": 40,
            "reference_correct": 45,
            "same_answers": None,
        }
