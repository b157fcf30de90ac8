"""Evaluations of the platform double: sets are really opened with the key that was sent, and rows really read."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from protocol.encoding import decode_base64url
from protocol.eval_rows import read_rows, read_scorer
from sealed_weights import open_rows, unwrap_dek_from_creator
from tests.creator_cli.adapters import BASE_FINGERPRINT
from tests.creator_cli.platform_bodies import NOW

if TYPE_CHECKING:
    from tests.creator_cli.platform_double import Platform

WORST = 5_000_000
RIGHT, BASE_RIGHT = 2, 1


class Evals:
    """The sets and runs of one double. `failure` is the reason of the next run, if it is to fail."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.sets: dict[str, dict[str, Any]] = {}
        self.runs: list[dict[str, Any]] = []
        self.failure = ""
        self.guards: dict[str, dict[str, Any]] = {}  # by model
        self.read: list[Any] = []  # the rows of each set, as the platform read them

    def dispatch(self, method: str, path: str, body: Callable[[], dict[str, Any]]) -> tuple[int, Any] | None:
        """Answer an operation of evaluations; None for any other, a list for a page."""
        if found := re.fullmatch(r"models/([^/]+/[^/]+)/eval-sets", path):
            return self.start(found[1], body()) if method == "POST" else (200, list(reversed(self.sets.values())))
        if re.fullmatch(r"models/([^/]+/[^/]+)/eval-runs", path):
            return 200, list(reversed(self.runs))
        if re.fullmatch(r"models/([^/]+/[^/]+)/evaluations", path):
            return 200, [self.figure(run) for run in reversed(self.runs) if run["state"] == "done"]
        if found := re.fullmatch(r"eval-sets/([^/]+)/(complete|quote|runs)", path):
            act = {"complete": self.complete, "quote": self.quote, "runs": self.run}[found[2]]
            return act(self.sets[found[1]], body() if method == "POST" else {})
        if found := re.fullmatch(r"models/([^/]+/[^/]+)/guard", path):
            return 200, self.guards[found[1]]
        if found := re.fullmatch(r"eval-runs/([^/]+)", path):
            return 200, next(run for run in self.runs if run["id"] == found[1])
        return None

    def start(self, name: str, body: dict[str, Any]) -> tuple[int, Any]:
        started = {
            "id": str(uuid.uuid4()),
            "model": name,
            "model_id": self.platform.model(name)["id"],
            "creator_id": str(self.platform.organization_id),
            "base_fingerprint": BASE_FINGERPRINT,
            "number": len(self.sets) + 1,
            "scorer": body["scorer"],
            "rows": body["rows"],
            "state": "uploading",
            "refusal": "",
            "package_digest": None,
            "package_size": body["package_size"],
            "created_at": NOW,
        }
        self.sets[started["id"]] = started
        self.platform.parts[started["id"]] = bytearray()
        return 201, started | {"intake_key": self.platform.intake_json()}

    def complete(self, stored: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        names = {"creator_id": self.platform.organization_id, "model_id": uuid.UUID(stored["model_id"])}
        dek = unwrap_dek_from_creator(
            decode_base64url(body["wrapped_data_key"]),
            self.platform.intake,
            version=stored["number"],
            digest=body["digest"],
            **names,
        )
        path = self.platform.folder / stored["id"]
        path.write_bytes(self.platform.parts[stored["id"]])
        public = next(iter(self.platform.signing_keys.values()))
        with open_rows(
            path, dek=dek, creator_public_key=public, expected_digest=body["digest"], max_plaintext=1 << 26
        ) as opened:
            self.read.append(read_rows(bytes(opened.rows), read_scorer(stored["scorer"]), None))
        assert len(self.read[-1]) == stored["rows"]
        stored |= {"state": "ready", "package_digest": body["digest"]}
        return 200, stored

    def quote(self, stored: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"version": self.platform.model(stored["model"])["newest_version"], "worst_case_nano_usd": WORST}

    def run(self, stored: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        run = {
            "id": str(uuid.uuid4()),
            "set_id": stored["id"],
            "set": stored["number"],
            "model": stored["model"],
            "version": body["version"],
            "state": "failed" if self.failure else "done",
            "reason": self.failure,
            "calls": 2 * stored["rows"],
            "calls_done": 2 * stored["rows"],
            "budget_nano_usd": body.get("budget_nano_usd", WORST),
            "spent_nano_usd": 1_234_567,
            "created_at": NOW,
            "ended_at": NOW,
        }
        self.runs.append(run)
        if "guard" in body:
            run["guard"] = body["guard"]
            self.guards[stored["model"]] = {
                "guard": body["guard"],
                "version": 1,
                "run_id": run["id"],
                "threshold_milli": 1_250,
                "rows": stored["rows"],
                "flagged": 0,
                "created_at": NOW,
            }
        return 201, run | {"state": "waiting", "calls_done": 0}

    def figure(self, run: dict[str, Any]) -> dict[str, Any]:
        return {
            "run_id": run["id"],
            "version": run["version"],
            "rows": run["calls"] // 2,
            "correct": RIGHT,
            "low": 0.2,
            "high": 0.94,
            "base_correct": BASE_RIGHT,
            "base_low": 0.06,
            "base_high": 0.8,
            "macro_f1_bps": 6_000,
            "base_macro_f1_bps": 3_000,
            "created_at": NOW,
        }
