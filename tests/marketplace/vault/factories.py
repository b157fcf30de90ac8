"""Rows and packages for the vault's tests: one creator with a published adapter, replicas with real keys."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.utils import timezone

from marketplace.accounts.models import Organization
from marketplace.catalog.models import BaseModel, Model, Version
from marketplace.catalog.services import register_base
from marketplace.vault import demand, keys, services
from marketplace.vault.models import EnrolledReplica, Lease, ReleaseOrder, Replica, SigningKey
from marketplace.vault.services import append_release
from sealed_weights import CreatorIdentity, ReplicaKeypair, generate_key, wrap_dek_for_platform

FINGERPRINT = "ab" * 32


def make_base(fingerprint: str = FINGERPRINT) -> BaseModel:
    """Find or make a base model."""
    return register_base(name="tiny", fingerprint=fingerprint, config={"model_type": "llama"}, context_length=64)


@dataclass
class Sold:
    """A version whose data key the vault holds."""

    version: Version
    dek: bytearray
    identity: CreatorIdentity

    @property
    def organization(self) -> Organization:
        return self.version.model.organization

    @property
    def digest(self) -> str:
        assert self.version.package_digest is not None
        return self.version.package_digest


def make_model(organization: Organization | None = None, base: BaseModel | None = None) -> Model:
    """Make a listing, of a new organization unless one is given."""
    slug = f"o-{secrets.token_hex(4)}"
    organization = organization or Organization.objects.create(slug=slug, name=slug)
    return Model.objects.create(
        organization=organization, slug=f"m-{secrets.token_hex(4)}", base_model=base or make_base(), title="A model"
    )


def make_sold(
    state: str = Version.State.PUBLISHED,
    *,
    model: Model | None = None,
    organization: Organization | None = None,
    digest: str | None = None,
    dek: bytearray | None = None,
    identity: CreatorIdentity | None = None,
) -> Sold:
    """Make a version in `state` and let the vault accept its data key."""
    services.bootstrap_platform_keys()
    model = model or make_model(organization)
    identity = identity or CreatorIdentity.generate()
    signing_key, _ = SigningKey.objects.get_or_create(
        public_key=identity.public_bytes(), defaults={"organization": model.organization}
    )
    version = Version.objects.create(
        model=model,
        number=model.versions.count() + 1,
        state=state,
        signing_key=signing_key,
        package_digest=digest or hashlib.sha256(uuid.uuid4().bytes).hexdigest(),
        package_size=1234,
    )
    sold = Sold(version, dek or generate_key(), identity)
    services.accept_data_key(version=version, wrapped=wrap_for(sold), digest=sold.digest)
    return sold


def wrap_for(sold: Sold, *, digest: str | None = None) -> bytes:
    """Wrap the version's data key as the creator's CLI does."""
    return wrap_dek_for_platform(
        sold.dek,
        keys.intake_public_key(),
        creator_id=sold.organization.pk,
        model_id=sold.version.model_id,
        version=sold.version.number,
        digest=digest or sold.digest,
    )


@dataclass
class Booted:
    """A registered replica and its private keys."""

    replica: Replica
    keypair: ReplicaKeypair
    receipt_key: Ed25519PrivateKey
    session_token: str


def make_replica(name: str = "r1", *, fingerprint: str = FINGERPRINT, url: str = "http://127.0.0.1:9") -> Booted:
    """Make the rows of an enrolled replica and of a boot, as enrolment and registration would."""
    EnrolledReplica.objects.get_or_create(
        name=name,
        defaults={
            "base_model": make_base(fingerprint),
            "host": "127.0.0.1",
            "releases_per_hour": 1000,
            "credential_digest": secrets.token_bytes(32),
            "credential_expires_at": timezone.now(),
            "identity_public_key": secrets.token_bytes(32),
        },
    )
    keypair, receipt_key, token = ReplicaKeypair.generate(), Ed25519PrivateKey.generate(), secrets.token_urlsafe(32)
    replica = Replica.objects.create(
        name=name,
        url=url,
        base_fingerprint=fingerprint,
        hpke_public_key=keypair.public_bytes(),
        receipt_public_key=receipt_key.public_key().public_bytes_raw(),
        evidence={"kind": "none"},
        session_digest=hashlib.sha256(token.encode()).digest(),
    )
    return Booted(replica, keypair, receipt_key, token)


def want(replica: Replica, digest: str) -> None:
    """Order the package on the replica, so that it may ask for the key to serve or to verify."""
    for kind in ReleaseOrder.Kind:
        demand.order(replica_id=replica.pk, digest=digest, kind=kind, seconds=600)


def write_package(folder: Path, digest: str, content: bytes) -> Path:
    """Put bytes where the platform keeps the package `digest`."""
    path = folder / "packages" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def make_lease(version: Version, replica: Replica) -> Lease:
    """A live lease of a version's key, as a replica that has its adapter in memory holds it."""
    digest = str(version.package_digest)
    release = append_release(
        version, digest=digest, purpose="serve", holder_id=replica.pk, key_fingerprint="ab" * 32, replica=replica
    )
    return Lease.objects.create(release=release)
