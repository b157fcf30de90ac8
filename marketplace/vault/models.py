"""Keys and their holders. Private material is stored only wrapped by the root key; the release log is append-only."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from django.db import models
from django.db.models.functions import Now
from django.utils import timezone

from marketplace.accounts.models import Organization
from marketplace.accounts.seals import SealedModel
from protocol.replicas import LEASE_SECONDS

LEASE_LASTS = timedelta(seconds=LEASE_SECONDS)


class PlatformKey(SealedModel):
    """The platform's own key pairs. The newest unretired row of a purpose is used; older ones still verify."""

    SEALED: ClassVar = (
        "id",
        "purpose",
        "public_key",
        "wrapped_private_key",
        "created_at",
        "retired_at",
        "endorsed_by_id",
        "endorsement",
    )

    class Purpose(models.TextChoices):
        INTAKE = "intake"  # HPKE MLKEM768-X25519: creators wrap data keys to it
        TICKET = "ticket"  # Ed25519: signs tickets to replicas
        VAULT = "vault"  # Ed25519: signs leases and release-log checkpoints
        RECEIPT = "receipt"  # Ed25519: signs receipts and the roots of their trees; its history is public

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    purpose = models.CharField(max_length=8, choices=Purpose)
    public_key = models.BinaryField()
    wrapped_private_key = models.BinaryField()  # by the root key, context = purpose and id
    created_at = models.DateTimeField(default=timezone.now)
    retired_at = models.DateTimeField(null=True, blank=True)
    # A later receipt key is signed by the one before it (protocol/proofs/keys.py).
    endorsed_by = models.ForeignKey("self", on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    endorsement = models.BinaryField(max_length=64, null=True)


class SigningKey(SealedModel):
    """A creator's Ed25519 public key; its private half never leaves the creator's machine."""

    SEALED: ClassVar = ("id", "organization_id", "public_key", "revoked_at")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="signing_keys")
    public_key = models.BinaryField(max_length=32, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    revoked_at = models.DateTimeField(null=True, blank=True)


class CreatorKey(models.Model):
    """One key-encryption key per creator, wrapped by the root key."""

    organization = models.OneToOneField(Organization, on_delete=models.PROTECT, primary_key=True)
    wrapped_key = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)


class DataKey(models.Model):
    """The random 32-byte key of one version's package, wrapped by its creator's key. Deleting it shreds the version."""

    version = models.OneToOneField("catalog.Version", on_delete=models.PROTECT, primary_key=True)
    wrapped_key = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)


class AnswerKey(models.Model):
    """The random 32-byte key of the answers that are kept for one customer's retries, wrapped by the root key.

    Deleting it makes them all unreadable.
    """

    organization = models.OneToOneField(Organization, on_delete=models.PROTECT, primary_key=True)
    wrapped_key = models.BinaryField()
    created_at = models.DateTimeField(db_default=Now())


class FleetCredential(SealedModel):
    """A pool that staff allowed: its replicas enrol themselves under names `pool-node-slot`, so many at once."""

    SEALED: ClassVar = (
        "pool",
        "base_model_id",
        "network",
        "replicas",
        "builds",
        "releases_per_hour",
        "credential_digest",
        "issued_at",
        "revoked_at",
    )

    pool = models.CharField(max_length=40, primary_key=True)
    base_model = models.ForeignKey("catalog.BaseModel", on_delete=models.PROTECT, related_name="+")
    network = models.CharField(max_length=50)  # where its replicas may be, such as 10.0.0.0/8
    replicas = models.PositiveIntegerField()  # that may live at once
    builds = models.JSONField(default=list)  # as of an enrolled replica
    releases_per_hour = models.PositiveIntegerField()  # of each of them
    credential_digest = models.BinaryField(max_length=32)  # SHA-256 of the latest credential
    issued_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)


class EnrolledReplica(SealedModel):
    """A replica that staff allowed: the name, base model, host and builds it may register with.

    Staff issue a credential, which the replica trades once for its identity; every boot signs with that.
    """

    SEALED: ClassVar = (
        "name",
        "fleet_id",
        "base_model_id",
        "host",
        "builds",
        "releases_per_hour",
        "credential_digest",
        "credential_expires_at",
        "identity_public_key",
        "revoked_at",
    )

    name = models.CharField(max_length=100, primary_key=True)
    # The pool whose credential enrolled it, from which its terms come; None: it has a credential of its own.
    fleet = models.ForeignKey(FleetCredential, on_delete=models.PROTECT, null=True, related_name="names")
    base_model = models.ForeignKey("catalog.BaseModel", on_delete=models.PROTECT, related_name="+")
    host = models.CharField(max_length=200)  # the host of its URL; of a fleet's replica, its network
    builds = models.JSONField(default=list)  # build digests it may run; an empty list allows any
    releases_per_hour = models.PositiveIntegerField()  # keys that may be lent to it within an hour
    credential_digest = models.BinaryField(max_length=32)  # SHA-256 of the latest credential
    credential_expires_at = models.DateTimeField()
    identity_public_key = models.BinaryField(max_length=32, null=True)  # Ed25519; None: not enrolled yet
    issued_at = models.DateTimeField(auto_now_add=True)
    enrolled_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    drained_at = models.DateTimeField(null=True, blank=True)  # staff send it no new work since then


class Replica(SealedModel):
    """One boot of one serving process. A restart registers a new row, with new keys."""

    SEALED: ClassVar = (
        "id",
        "name",
        "url",
        "base_fingerprint",
        "hpke_public_key",
        "receipt_public_key",
        "evidence",
        "session_digest",
        "role",
        "transfer_url",
    )

    class Role(models.TextChoices):
        BOTH = "both"
        PREFILL = "prefill"
        DECODE = "decode"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=100)  # stable across boots; names the usage journal
    url = models.CharField(max_length=200)  # where the gateway reaches it
    base_fingerprint = models.CharField(max_length=64)
    hpke_public_key = models.BinaryField(max_length=32)  # X25519, leases are sealed to it
    receipt_public_key = models.BinaryField(max_length=32)  # Ed25519, signs receipts
    evidence = models.JSONField(default=dict)
    session_digest = models.BinaryField(max_length=32, db_index=True)  # SHA-256 of the session token
    registered_at = models.DateTimeField(auto_now_add=True)
    last_seen_at = models.DateTimeField(auto_now_add=True)
    gone_at = models.DateTimeField(null=True, blank=True)  # replaced by a newer boot, or silent for too long
    # Of the newest boot of a name (`absences.py`): it said good-bye, or stayed away.
    retired_at = models.DateTimeField(null=True, blank=True)
    lost_at = models.DateTimeField(null=True, blank=True)
    left_at = models.DateTimeField(null=True, blank=True)  # it closed its fleet link, and was not heard of since
    stats = models.JSONField(default=dict)  # the last heartbeat's figures
    # What it takes: whole predictions, prompts for others, or predictions whose prompts others computed.
    role = models.CharField(max_length=7, choices=Role, default=Role.BOTH, db_default=Role.BOTH)
    transfer_url = models.CharField(max_length=200, blank=True, default="", db_default="")  # where KV is pulled

    class Meta:
        indexes: ClassVar = [models.Index(fields=["name", "-registered_at"], name="vault_replica_newest_boot")]


class ReplicaChallenge(models.Model):
    """A nonce handed out to an enrolled replica for registration; used once, within a minute."""

    nonce = models.BinaryField(max_length=32, primary_key=True)
    name = models.CharField(max_length=100)
    created_at = models.DateTimeField(auto_now_add=True)


class Release(models.Model):
    """One release of one key: written and committed before the key leaves.

    A version's key goes to a replica; that of a set of rows, whose `digest` it then is, to a worker for one run.
    Hash-chained per creator; a database trigger refuses UPDATE and DELETE.
    """

    class Purpose(models.TextChoices):
        VERIFY = "verify"
        SERVE = "serve"
        EVAL = "eval"  # of a set of rows, to the platform's own worker

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    creator = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="releases")
    sequence = models.PositiveBigIntegerField()  # 1, 2, 3 … per creator
    version = models.ForeignKey("catalog.Version", on_delete=models.PROTECT, related_name="releases")
    digest = models.CharField(max_length=64)
    replica = models.ForeignKey(Replica, on_delete=models.PROTECT, related_name="releases", null=True)
    run_id = models.UUIDField(null=True)  # of the evaluation, in the place of a replica's id
    replica_key_fingerprint = models.CharField(max_length=64)
    purpose = models.CharField(max_length=8, choices=Purpose)
    released_at_us = models.BigIntegerField()  # unix microseconds, as hashed
    previous_hash = models.BinaryField(max_length=32)
    entry_hash = models.BinaryField(max_length=32)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["creator", "sequence"], name="release_sequence_unique"),
            models.CheckConstraint(
                condition=models.Q(purpose="eval", replica__isnull=True, run_id__isnull=False)
                | (~models.Q(purpose="eval") & models.Q(replica__isnull=False, run_id__isnull=True)),
                name="release_has_one_holder",
            ),
        ]

    @property
    def holder_id(self) -> uuid.UUID:
        """Return the id of the replica or the run that the key went to, as it is hashed."""
        holder: uuid.UUID | None = self.replica_id or self.run_id
        assert holder is not None, "one of the two is there"
        return holder

    @property
    def holder(self) -> str:
        """Return who that is."""
        return self.replica.name if self.replica else "the platform's worker"

    @property
    def lease_ends_at(self) -> datetime:
        """Return when the loan ends by itself; a worker keeps a key only while it opens the rows."""
        lease: Lease | None = getattr(self, "lease", None)
        return lease.ends_at if lease else datetime.fromtimestamp(self.released_at_us / 1e6, UTC)


class LeaseQuerySet(models.QuerySet["Lease"]):
    """Leases, and which of them live."""

    def live(self, now: datetime) -> LeaseQuerySet:
        """Return those that nobody ended, and whose session was heard of within 30 s."""
        heard = models.Q(expires_at=None, release__replica__last_seen_at__gt=now - LEASE_LASTS)
        return self.filter(heard | models.Q(expires_at__gt=now), revoked_at=None)


class Lease(models.Model):
    """The life of a released key: it lives while its replica's session does, until one of both ends it.

    `expires_at` is when the replica gave it back, None before; `revoked_at` when the platform ended it, `confirmed_at`
    when the replica said that it is gone.
    """

    release = models.OneToOneField(Release, on_delete=models.PROTECT, primary_key=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    confirmed_at = models.DateTimeField(null=True, blank=True)

    objects = LeaseQuerySet.as_manager()

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["revoked_at"], condition=models.Q(revoked_at__isnull=False), name="lease_revoked")
        ]

    @property
    def ends_at(self) -> datetime:
        """Return when the lease is over if its replica is not heard of again."""
        replica = self.release.replica
        assert replica is not None, "keys of rows have no lease"
        ends: datetime = replica.last_seen_at + LEASE_LASTS
        return ends if self.expires_at is None else self.expires_at


class ReleaseOrder(SealedModel):
    """The platform asked this replica to verify or prefetch a package, so that it may ask for the key until then."""

    SEALED: ClassVar = ("replica_id", "digest", "kind", "expires_at")

    class Kind(models.TextChoices):
        VERIFY = "verify"
        PREFETCH = "prefetch"

    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="+")
    digest = models.CharField(max_length=64)
    kind = models.CharField(max_length=8, choices=Kind)
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["replica", "digest", "kind"], name="release_order_unique")
        ]
