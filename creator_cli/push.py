"""`intarsia push`: check, seal, upload, wait for verification, price, publish. Every step can be repeated."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from creator_cli.adapters import CheckedAdapter, check_against
from creator_cli.bases import choose_base
from creator_cli.control_api import ControlApi
from creator_cli.errors import ApiError, CliError, Interrupted, Refused
from creator_cli.identity import load_identity, register_identity
from creator_cli.known_platforms import KnownPlatforms
from creator_cli.listing import Listing
from creator_cli.names import ModelName
from creator_cli.output import Output, size_text
from creator_cli.pending import PendingPush, PendingStore, seal_for_upload, source_hash, version_to_continue
from creator_cli.records import Base, ListedModel, Price, Version
from creator_cli.reviews import REFUSED, hint_appeal
from creator_cli.settings import Settings
from creator_cli.upload import upload_package
from sealed_weights.signing import CreatorIdentity
from sealed_weights.wrap import fingerprint

_POLL_SECONDS = (0.2, 0.3, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class PushRequest:
    """The options of the command line. `wait` is the time to wait for verification, in seconds."""

    folder: Path
    model: ModelName
    listing: Listing | None
    changelog: str
    publish: bool
    wait: float


@dataclass(frozen=True, slots=True)
class Pushed:
    """The outcome of a push."""

    version: Version
    report: Mapping[str, Any]
    price: Price | None

    def to_json(self) -> dict[str, Any]:
        """Return the document of `push --json`."""
        version = self.version
        result: dict[str, Any] = {
            "model": version.model,
            "version": version.number,
            "version_id": str(version.id),
            "digest": version.digest,
            "size": version.size,
            "state": version.state,
            "report": dict(self.report),
        }
        if version.review:
            result["review"] = version.review.to_json()
        if self.price:
            result["price"] = self.price.to_json()
        return result


def push(api: ControlApi, settings: Settings, request: PushRequest, out: Output) -> Pushed:
    """Push an adapter as the next version of a model, continuing an interrupted push of the same adapter.

    Raises Refused (by the intake here or on the platform), CliError, ApiError, NetworkError, Interrupted.
    """
    # This comes first: a platform whose key changed is sent nothing, not even a title.
    intake_key = api.intake_key()
    if KnownPlatforms.load(settings).check_intake_key(api.url, intake_key):
        out.note(f"trusting {api.url} from now on: intake key {fingerprint(intake_key)[:16]}…")
    me = api.me()
    if request.model.organization != me.organization:
        raise Refused(
            f"{request.model} is not a model of {me.organization}, for which you are logged in", field="model"
        )
    store = PendingStore(settings, api.url, request.model)
    with store.locked():
        try:
            return _Push(api, settings, request, out, store, intake_key).run()
        except KeyboardInterrupt:
            kept = "the upload is kept and continues" if store.load() else "nothing was uploaded; it starts"
            raise Interrupted(f"stopped; {kept} when you run the same command again") from None


class _Push:
    """One run. The platform's intake key has been checked."""

    def __init__(
        self,
        api: ControlApi,
        settings: Settings,
        request: PushRequest,
        out: Output,
        store: PendingStore,
        intake_key: bytes,
    ) -> None:
        self.api = api
        self.request = request
        self.out = out
        self.store = store
        self.intake_key = intake_key
        self.identity: CreatorIdentity = load_identity(settings)

    def run(self) -> Pushed:
        model = self.api.model(self.request.model)
        adapter = self.check(model)
        model = self.write_listing(model)
        version = self.send(adapter)
        version = self.wait_until_verified(version)
        price = self.set_price(model)
        if self.request.publish and version.state == "verified":
            version = self.publish(version)
        self.store.clear()
        return Pushed(version, {**adapter.report(), "verification": dict(version.report)}, price)

    def check(self, model: ListedModel | None) -> CheckedAdapter:
        """Check the adapter before anything is created on the platform; raises Refused, CliError."""
        if model is None and self.request.listing is None:
            raise CliError(
                f"{self.request.model} does not exist yet",
                hint=f"intarsia push {self.request.folder} --listing model.json",
            )
        base = self._base(model)
        with self.out.waiting(f"checking against {base.name}"):
            adapter = check_against(self.request.folder, base)
        return adapter

    def write_listing(self, model: ListedModel | None) -> ListedModel:
        """Create the listing, or bring it up to date with the listing file."""
        listing = self.request.listing
        if model is None:
            assert listing is not None, "check() refused this"
            model = self.api.create_model(listing.creation())
            self.out.note(f"created the listing {model.name}")
        elif listing is not None and (changes := listing.changes(model)):
            model = self.api.update_model(self.request.model, changes)
            self.out.note(f"updated the listing: {', '.join(sorted(changes))}")
            if model.review:
                why = " ".join(model.review.reasons)
                self.out.note(f"a person looks at title, summary, card and visibility before they change: {why}")
        return model

    def send(self, adapter: CheckedAdapter) -> Version:
        """Seal and upload, or continue where an earlier run stopped. Returns the version, its upload complete."""
        with self.out.progress("reading", adapter.summary.bytes) as show:
            source = source_hash(adapter.folder, show)
        pending, version = self._unfinished(adapter, source)
        if version is None or pending is None:
            version = self._start(adapter)
            pending = PendingPush(
                version.id, version.number, version.size, source, self.identity.public_bytes().hex(), sealed=None
            )
            self.store.save(pending)
        if version.state != "uploading":
            return version
        if pending.sealed is None:
            with self.out.progress("sealing", version.size) as show:
                sealed = seal_for_upload(
                    adapter.folder,
                    self.store.package,
                    version=version,
                    identity=self.identity,
                    intake_key=self.intake_key,
                    progress=lambda done, total: show(done),
                )
            pending = replace(pending, sealed=sealed)
            self.store.save(pending)
        assert pending.sealed is not None, "sealed above"
        with self.out.progress("uploading", version.size) as show:
            upload_package(self.api, f"versions/{version.id}/package", self.store.package, version.size, show)
        try:
            version = self.api.complete_version(
                version.id, digest=pending.sealed.digest, wrapped_data_key=pending.sealed.wrapped_data_key
            )
        except ApiError as error:
            if error.status == 422:
                # The platform received other bytes than were sealed, or rejects the data key: this cannot succeed.
                self.store.clear()
                error.hint = "run the same command again: it seals and uploads anew"
            raise
        self.store.drop_package()
        return version

    def wait_until_verified(self, version: Version) -> Version:
        """Poll until a replica has verified it; raises Refused with field and rule, CliError when it takes too long."""
        deadline = time.monotonic() + self.request.wait
        name = f"{version.model}@{version.number}"
        with self.out.waiting(f"{name}: waiting for a replica to verify it"):
            for attempt in range(1 << 30):
                if version.state not in ("uploading", "verifying"):
                    break
                if time.monotonic() > deadline:
                    raise CliError(
                        f"{name} is still being verified",
                        hint="run the same command again, or: intarsia status " + version.model,
                    )
                time.sleep(_POLL_SECONDS[min(attempt, len(_POLL_SECONDS) - 1)])
                version = self.api.version(version.id)
        if version.state == "refused":
            self.store.clear()
            refusal = version.report.get("refusal")
            parts = refusal if isinstance(refusal, dict) else {}
            field, rule, message = (str(parts.get(key) or "") for key in ("field", "rule", "message"))
            raise Refused(
                f"{name} was refused: {field or 'adapter'}: {rule}{_and(message, field, rule)}", field=field or None
            )
        return version

    def set_price(self, model: ListedModel) -> Price | None:
        """Set the listing's price if it names one that is not in force yet, and return the price in force."""
        listing = self.request.listing
        wanted = listing.new_price(model.price) if listing else None
        return self.api.set_price(self.request.model, wanted) if wanted else model.price

    def publish(self, version: Version) -> Version:
        """Offer the version for sale; raises ApiError."""
        try:
            return self.api.publish_version(version.id)
        except ApiError as error:
            if error.code == REFUSED:
                self.store.clear()
                hint_appeal(error, f"{version.model}@{version.number}")
            if error.code == "no_price":
                self.store.clear()
                error.hint = (
                    f"intarsia price {version.model} --input DOLLARS --output DOLLARS, "
                    f"then: intarsia publish {version.model}@{version.number}"
                )
            raise

    def _base(self, model: ListedModel | None) -> Base:
        bases = self.api.bases()
        listing = self.request.listing
        wanted = listing.base if listing is not None and listing.base else None
        if model is None:
            how = "name the base model that the adapter was trained for in the listing's field base"
            return choose_base(bases, wanted, how=how)
        base = choose_base(bases, model.base_fingerprint, how=f"{model.name} cannot be pushed to now")
        if wanted is not None and not base.is_called(wanted):
            # An adapter of another base may have the same shapes, and would answer nonsense.
            raise Refused(
                f"{model.name} is a model for {base.name}, the listing names {wanted}",
                field="base",
                hint="a model keeps its base: push this adapter under another name",
            )
        return base

    def _unfinished(self, adapter: CheckedAdapter, source: str) -> tuple[PendingPush | None, Version | None]:
        """Return the interrupted push of this adapter and its version, or (None, None) if it cannot be continued."""
        pending = self.store.load()
        if pending is None:
            return None, None
        version = version_to_continue(
            self.api,
            self.store,
            pending,
            source=source,
            signer=self.identity.public_bytes().hex(),
            package_size=adapter.package_size,
            intake_fingerprint=fingerprint(self.intake_key),
        )
        if version is None:
            self.store.clear()
            return None, None
        there = (
            f", {size_text(version.uploaded)} of {size_text(version.size)} already uploaded" if version.uploaded else ""
        )
        self.out.note(f"continuing version {version.number}{there}")
        if self.request.changelog not in ("", version.changelog):
            self.out.note("the changelog stays as it was given when this push began")
        return pending, version

    def _start(self, adapter: CheckedAdapter) -> Version:
        signing_key_id = register_identity(self.api, self.request.model.organization, self.identity)
        version = self.api.start_version(
            self.request.model,
            signing_key_id=signing_key_id,
            size=adapter.package_size,
            changelog=self.request.changelog,
        )
        if version.base_fingerprint != adapter.base.fingerprint:
            raise CliError("the platform changed the base model during this push", hint="run the same command again")
        return version


def _and(message: str, field: str, rule: str) -> str:
    """Return the refusal's message in parentheses if it says more than field and rule."""
    return "" if not message or message in (rule, f"{field}: {rule}") else f" ({message})"
