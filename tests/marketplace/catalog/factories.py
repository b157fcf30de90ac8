"""People, organizations and really sealed packages for the tests of accounts, catalogue and API."""

from __future__ import annotations

import json
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path

from allauth.mfa.totp.internal import auth as totp
from django.conf import settings

from marketplace.accounts import services as accounts
from marketplace.accounts.models import ApiKey, Membership, Organization, User
from marketplace.catalog import services
from marketplace.catalog.models import BaseModel, Model, Version
from marketplace.catalog.package_folder import FolderStore
from marketplace.catalog.services.listings import ListingText
from marketplace.vault import services as vault_services
from marketplace.vault.models import SigningKey
from marketplace.vault.selectors import public_keys
from sealed_weights import CreatorIdentity, SealedPackage, generate_key, seal_package, wrap_dek_for_platform
from tests.marketplace.publishing.factories import give_record, give_sketch

PASSWORD = "correct horse battery staple"
FINGERPRINT = "ab" * 32
ALL_SCOPES = ("predict", "publish", "account")


def stored_path(digest: str) -> Path:
    """Where the folder store keeps a package."""
    return FolderStore(settings.ENV.blob_dir).path(digest)


def make_user(email: str | None = None, *, is_staff: bool = False) -> User:
    """A user without an organization; staff with the authenticator app that they need."""
    user = User.objects.create_user(email or f"{secrets.token_hex(4)}@example.com", PASSWORD, is_staff=is_staff)
    if is_staff:
        totp.TOTP.activate(user, totp.generate_totp_secret())
    return user


def make_organization(slug: str | None = None, owner: User | None = None) -> Organization:
    """An organization, of a new user unless one is given."""
    slug = slug or f"org-{secrets.token_hex(4)}"
    return accounts.create_organization(owner=owner or make_user(), slug=slug, name=slug.title(), allow_reserved=True)


def add_member(organization: Organization, role: str) -> User:
    """A new user with this role."""
    user = make_user()
    Membership.objects.create(organization=organization, user=user, role=role)
    return user


def make_key(organization: Organization, *scopes: str) -> tuple[ApiKey, str]:
    """A key made by the owner, with every scope unless some are named."""
    owner = organization.memberships.get(role=Membership.Role.OWNER).user
    return accounts.create_api_key(
        organization=organization, name="test", scopes=scopes or ALL_SCOPES, created_by=owner
    )


def make_base(fingerprint: str = FINGERPRINT, name: str = "tiny") -> BaseModel:
    """Find or make a base model."""
    return services.register_base(name=name, fingerprint=fingerprint, config={"model_type": "llama"}, context_length=64)


def make_model(
    organization: Organization | None = None, slug: str = "triage", title: str = "Triage", *, reviewed: bool = True
) -> Model:
    """A listing without versions, of an organization with a record unless not `reviewed`."""
    model = services.create_model(
        organization=organization or make_organization(),
        slug=slug,
        base_model=make_base(),
        text=ListingText(title=title),
    )
    if reviewed:
        give_record(model)
    return model


def set_price(model: Model) -> None:
    """Some price."""
    services.set_price(model=model, input_micro_usd_per_mtok=100, output_micro_usd_per_mtok=400)


def make_version(model: Model | None = None, state: str = Version.State.PUBLISHED) -> Version:
    """A version in `state`, without a package."""
    model = model or make_model()
    set_price(model)
    number = model.versions.count() + 1
    version = Version.objects.create(model=model, number=number, state=state, package_digest=secrets.token_hex(32))
    if state not in (Version.State.UPLOADING, Version.State.VERIFYING):
        give_sketch(version)
    return version


def write_adapter(folder: Path, size: int = 5000) -> Path:
    """A folder with the two files that a package holds; before verification their content does not matter."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8}))
    header = json.dumps({"w": {"dtype": "F32", "shape": [size], "data_offsets": [0, size * 4]}}).encode()
    tensors = struct.pack("<Q", len(header)) + header + secrets.token_bytes(size * 4)
    (folder / "adapter_model.safetensors").write_bytes(tensors)
    return folder


@dataclass
class Creator:
    """A creator's machine: identity, data key and adapter."""

    organization: Organization
    identity: CreatorIdentity
    signing_key: SigningKey
    folder: Path

    @classmethod
    def make(cls, folder: Path, organization: Organization | None = None) -> Creator:
        """Register a new signing key for the organization."""
        vault_services.bootstrap_platform_keys()
        organization = organization or make_organization()
        identity = CreatorIdentity.generate()
        key = vault_services.register_signing_key(organization=organization, public_key=identity.public_bytes())
        return cls(organization, identity, key, write_adapter(folder / "adapter"))

    def seal(
        self, *, model: Model, number: int, dek: bytearray, identity: CreatorIdentity | None = None, **changed: object
    ) -> SealedPackage:
        """Seal the adapter as version `number` of `model`; `changed` fields of the header are lies."""
        fields = {
            "creator_id": self.organization.id,
            "model_id": model.id,
            "version": number,
            "base_fingerprint": bytes.fromhex(model.base_model.fingerprint),
            **changed,
        }
        destination = self.folder.parent / f"package-{secrets.token_hex(4)}"
        return seal_package(self.folder, destination, dek=dek, identity=identity or self.identity, **fields)

    def package_size(self, model: Model) -> int:
        """The size that the package will have; it does not depend on the number."""
        return self.seal(model=model, number=1, dek=generate_key()).size

    def wrap(self, *, model: Model, number: int, dek: bytearray, digest: str) -> bytes:
        """The data key wrapped to the platform."""
        return wrap_dek_for_platform(
            dek, public_keys().intake, creator_id=self.organization.id, model_id=model.id, version=number, digest=digest
        )
