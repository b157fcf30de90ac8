"""A platform in memory: the control API's contract as far as creators use it, with real keys and real checks.

It opens every package it is sent with the data key it was sent, so a push that it verifies really arrived. Faults are
switched on by fields: a connection dropped in the middle of a chunk, a 503, a wrong offset, a refusal.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.encoding import decode_base64url, encode_base64url
from protocol.messages import to_fields
from protocol.proofs.keys import KeyFile
from protocol.reference import REFERENCE_KEY, ReferenceCounts
from sealed_weights import (
    GENESIS_HASH,
    BaseSpec,
    PlatformKeypair,
    ReleaseEntry,
    check_adapter,
    fingerprint,
    open_package,
    sign_checkpoint,
    unwrap_dek_from_creator,
)
from sealed_weights.reference import parse_reference
from sealed_weights.strict_json import to_base64
from tests.creator_cli.adapters import BASE_CONFIG, BASE_FINGERPRINT
from tests.creator_cli.consumer_double import Consumption
from tests.creator_cli.eval_double import Evals
from tests.creator_cli.login_double import Logins
from tests.creator_cli.platform_bodies import (
    NOW,
    earnings_body,
    model_body,
    payout_body,
    review_body,
    shown,
    version_body,
)
from tests.creator_cli.precision_double import Precisions
from tests.creator_cli.rollout_double import Rollouts
from tests.protocol.proofs import made

EMAIL = "ada@acme.example"


class Refuse(Exception):
    """An answer in the error envelope."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.field = field
        self.headers = headers


@dataclass
class Platform:
    """The state, the switches, and a record of every request."""

    folder: Path
    intake: PlatformKeypair = field(default_factory=PlatformKeypair.generate)
    vault: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    organization_id: uuid.UUID = field(default_factory=uuid.uuid4)
    tokens: set[str] = field(default_factory=set)
    scopes: list[str] = field(default_factory=lambda: ["publish"])
    key_id: uuid.UUID = field(default_factory=uuid.uuid4)
    signing_keys: dict[str, bytes] = field(default_factory=dict)
    bases: list[dict[str, Any]] = field(
        default_factory=lambda: [
            {"name": "tiny", "fingerprint": BASE_FINGERPRINT, "context_length": 64, "config": BASE_CONFIG}
        ]
    )
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, bytearray] = field(default_factory=dict)
    chain: list[ReleaseEntry] = field(default_factory=list)
    receipt_keys: KeyFile = field(default_factory=made.key_file)
    receipt: bytes = field(default_factory=made.document)
    prices_set: int = 0
    prices: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    payouts: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    # switches
    drop_after: int | None = None  # bytes of the whole upload after which the connection is cut, once
    interrupt_after: Callable[[], None] | None = None  # called once with the first chunk
    wrong_offset_once: bool = False
    reviewing: bool = False  # what is published waits for a person
    failures: dict[str, int] = field(default_factory=dict)  # method + path suffix → how many 503s to give
    refusal: dict[str, str] | None = None
    polls_until_verified: int = 1
    signed_earlier: float = 0.0  # seconds by which the time of checkpoints is behind
    silent_lease: str | None = None  # the end of the lease of a replica that does not confirm a revocation

    def __post_init__(self) -> None:
        self.evals = Evals(self)
        self.rollouts = Rollouts(self)
        self.precisions = Precisions(self)
        self.logins = Logins()
        self.consumption = Consumption()

    def count(self, method: str, pattern: str) -> int:
        """How many requests matched."""
        return sum(method == one and re.search(pattern, path) is not None for one, path in self.requests)

    def release(self, version: dict[str, Any], purpose: str) -> None:
        """A row of the release log."""
        previous = self.chain[-1].hash() if self.chain else GENESIS_HASH
        self.chain.append(
            ReleaseEntry(
                sequence=len(self.chain) + 1,
                creator_id=self.organization_id,
                model_id=uuid.UUID(version["model_id"]),
                version=version["number"],
                digest=version["package_digest"],
                replica_id=uuid.uuid4(),
                replica_key_fingerprint="ef" * 32,
                purpose=purpose,
                released_at=int(time.time() * 1e6),
                previous_hash=previous,
            )
        )

    def checkpoint(self) -> dict[str, Any] | None:
        if not self.chain:
            return None
        head, now = self.chain[-1].hash(), int((time.time() - self.signed_earlier) * 1e6)
        return sign_checkpoint(len(self.chain), head, self.organization_id, self.vault, signed_at=now).to_json()

    # --- operations -------------------------------------------------------------------------------------------------

    def create_token(self, body: dict[str, Any]) -> tuple[int, Any]:
        token = self.logins.trade(body["device_token"])
        if token is None:
            raise Refuse(401, "invalid_device_token", "the device token is not valid any more")
        self.tokens.add(token)
        self.scopes = self.logins.asked["scope"].split()
        return 201, {"id": str(self.key_id), "key": token, "organization": "acme", "scopes": self.scopes}

    def me(self) -> tuple[int, Any]:
        organization = {"id": str(self.organization_id), "slug": "acme", "name": "Acme", "role": "owner"}
        key = {"id": str(self.key_id), "name": "test", "scopes": self.scopes, "expires_at": None}
        return 200, {
            "email": EMAIL,
            "is_staff": False,
            "organization": organization,
            "organizations": [organization],
            "scopes": self.scopes,
            "key": key,
        }

    def delete_key(self, token: str) -> tuple[int, Any]:
        """Any key may revoke itself."""
        self.tokens.discard(token)
        return 204, None

    def register_signing_key(self, body: dict[str, Any]) -> tuple[int, Any]:
        public = decode_base64url(body["public_key"])
        for key_id, known in self.signing_keys.items():
            if known == public:
                return 201, {"id": key_id, "public_key": body["public_key"], "created_at": NOW, "revoked_at": None}
        key_id = str(uuid.uuid4())
        self.signing_keys[key_id] = public
        return 201, {"id": key_id, "public_key": body["public_key"], "created_at": NOW, "revoked_at": None}

    def create_model(self, body: dict[str, Any]) -> tuple[int, Any]:
        name = f"acme/{body['slug']}"
        if name in self.models:
            raise Refuse(409, "slug_taken", f"{name} exists already", "slug")
        self.models[name] = model_body(name, body)
        return 201, self.models[name]

    def model(self, name: str) -> dict[str, Any]:
        if name not in self.models:
            raise Refuse(404, "not_found", "there is no such model")
        return self.models[name]

    def set_price(self, name: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.prices_set += 1
        price = {
            "cached_input_micro_usd_per_mtok": body["input_micro_usd_per_mtok"],
            "embedding_micro_usd_per_mtok": None,
            "per_prediction_nano_usd": 0,
            "interactive_bps": 10_000,
            "batch_bps": 10_000,
            "monthly_free_nano_usd": 0,
            "intro_free_nano_usd": 0,
            "version": None,
            "effective_at": NOW,
            **body,
            "created_at": NOW,
        }
        told = {**price, "copy": {"calls": 1_600, "nano_usd": 52_000_000, "predictions": None}}
        self.prices.setdefault(name, []).insert(0, told)
        if price["effective_at"] == NOW and price["version"] is None:
            self.model(name)["price"] = price
        return 201, told

    def start_version(self, name: str, body: dict[str, Any]) -> tuple[int, Any]:
        model = self.model(name)
        if body["signing_key_id"] not in self.signing_keys:
            raise Refuse(400, "unknown_signing_key", "register it", "signing_key_id")
        number = 1 + sum(version["model"] == name for version in self.versions.values())
        version = version_body(model, self.organization_id, number, body)
        self.versions[version["id"]] = version
        self.parts[version["id"]] = bytearray()
        return 201, {
            **version,
            "base_config": BASE_CONFIG,
            "upload_url": "http://elsewhere.example/upload",
            "intake_key": self.intake_json(),
        }

    def intake_json(self) -> dict[str, str]:
        public = self.intake.public_bytes()
        return {"public_key": encode_base64url(public), "fingerprint": fingerprint(public)}

    def version(self, version_id: str) -> dict[str, Any]:
        if version_id not in self.versions:
            raise Refuse(404, "not_found", "there is no such version")
        version = self.versions[version_id]
        if version["state"] == "uploading":
            version["uploaded_bytes"] = len(self.parts[version_id])
        return version

    def poll_version(self, version_id: str) -> tuple[int, Any]:
        version = self.version(version_id)
        if version["state"] == "verifying":
            version["polls"] = version.get("polls", 0) + 1
            if version["polls"] >= self.polls_until_verified:
                if self.refusal:
                    version.update(state="refused", report={"refusal": self.refusal})
                else:
                    self.verify(version)
        return 200, shown(version)

    def verify(self, version: dict[str, Any]) -> None:
        """As a replica does: open with the data key, parse strictly."""
        path = self.folder / version["id"]
        path.write_bytes(self.parts[version["id"]])
        self.release(version, "verify")
        public = next(iter(self.signing_keys.values()))
        with open_package(
            path,
            dek=version["dek"],
            creator_public_key=public,
            expected_digest=version["package_digest"],
            max_plaintext=1 << 30,
        ) as opened:
            config, tensors = bytes(opened.config), bytes(opened.tensors)
            spec = BaseSpec.from_hf_config(BASE_CONFIG, bytes.fromhex(BASE_FINGERPRINT), "tiny")
            summary = check_adapter((config, tensors), spec)
            report: dict[str, Any] = {"rank": summary.rank, "smoke_prompts": 3}
            if opened.reference is not None:
                tokens = sum(len(one.tokens) for one in parse_reference(opened.reference).answers)
                counts = ReferenceCounts(1, 1, tokens, tokens, 1, "float32", "bfloat16")
                report[REFERENCE_KEY] = to_fields(counts)
        version.update(state="verified", report=report)

    def complete(self, version_id: str, body: dict[str, Any]) -> tuple[int, Any]:
        version = self.version(version_id)
        if version["package_digest"] == body["digest"]:
            return 200, shown(version)
        if len(self.parts[version_id]) != version["package_size"]:
            raise Refuse(409, "upload_incomplete", "continue the upload")
        try:
            version["dek"] = unwrap_dek_from_creator(
                decode_base64url(body["wrapped_data_key"]),
                self.intake,
                creator_id=self.organization_id,
                model_id=uuid.UUID(version["model_id"]),
                version=version["number"],
                digest=body["digest"],
            )
        except Exception:
            raise Refuse(422, "wrong_data_key", "the data key is not for this package", "wrapped_data_key") from None
        version.update(package_digest=body["digest"], state="verifying")
        return 200, shown(version)

    def act(self, version_id: str, verb: str) -> tuple[int, Any]:
        version = self.version(version_id)
        if verb == "publish" and self.model(version["model"])["price"] is None:
            raise Refuse(409, "no_price", "set a price first")
        if verb == "publish" and self.reviewing:
            version.update(state="in_review", review=review_body())
            return 200, shown(version)
        version["state"] = {"publish": "published", "retire": "retired", "revoke": "revoked"}[verb]
        if verb == "publish":
            version["published_at"] = NOW
            self.model(version["model"])["newest_version"] = version["number"]
        return 200, shown(version)

    def refuse_reviewed(self, name: str, number: int) -> None:
        """As staff do: refuse a version that a person was asked about."""
        for version in self.versions.values():
            if (version["model"], version["number"]) == (name, number):
                version["review"] = review_body("refused")

    def appeal(self, review_id: str) -> tuple[int, Any]:
        """Put a refused review into the queue again."""
        for version in self.versions.values():
            if (version["review"] or {}).get("id") == review_id:
                version["review"] |= {"state": "open", "appealed_at": NOW}
                return 200, version["review"]
        raise Refuse(404, "not_found", "there is no such review")

    def custody(self, name: str) -> tuple[int, Any]:
        model_id = self.model(name)["id"]
        ended = {v["number"] for v in self.versions.values() if v["state"] == "revoked"}
        releases = [
            {
                **entry.to_json(),
                "entry_hash": encode_base64url(entry.hash()),
                "replica": "cpu-1",
                "lease_expires_at": "2099-01-01T00:00:00Z",
                "lease_revoked_at": NOW if entry.version in ended else None,
                "lease_confirmed_at": NOW if entry.version in ended and self.silent_lease is None else None,
            }
            for entry in reversed(self.chain)
            if str(entry.model_id) == model_id
        ]
        vault = encode_base64url(self.vault.public_key().public_bytes_raw())
        return 200, {
            "model": name,
            "creator_id": str(self.organization_id),
            "vault_public_key": vault,
            "checkpoint": self.checkpoint(),
            "releases": releases,
        }

    def holders(self, version_id: str) -> tuple[int, Any]:
        revoked = self.version(version_id)["state"] == "revoked"
        end = self.silent_lease
        holder = {
            "replica": "cpu-1",
            "replica_id": str(uuid.UUID(int=7)),
            "lease_ends_at": end or NOW,
            "lease_over": True,
            "confirmed": revoked and end is None,
        }
        return 200, {"holders": [holder] if self.chain else []}

    def export(self) -> tuple[int, Any]:
        return 200, {
            "format": "intarsia/custody/v2",
            "creator_id": str(self.organization_id),
            "vault_public_key": to_base64(self.vault.public_key().public_bytes_raw()),
            "checkpoint": self.checkpoint(),
            "releases": [entry.to_json() for entry in self.chain],
        }

    def start_payout(self, body: dict[str, Any]) -> tuple[int, Any]:
        if "account" not in self.scopes:
            raise Refuse(403, "scope_missing", "this needs the scope account")
        self.payouts.insert(0, payout_body(body.get("amount_cents", 4_000)))
        return 201, self.payouts[0]

    def open_payout_setup(self) -> tuple[int, Any]:
        return 201, {"url": "https://connect.stripe.example/setup/x"}

    def earnings(self, path: str) -> tuple[int, Any]:
        return 200, earnings_body(second_page="cursor=behind-triage" in path)
