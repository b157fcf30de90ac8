"""The control API's answers as typed values (`reading.Reader` reads them)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from creator_cli.reading import Reader, misunderstood
from creator_cli.reviews import Review
from protocol.names import is_digest


@dataclass(frozen=True, slots=True)
class Me:
    """The caller. `email` and `key_id` may be unknown."""

    email: str | None
    organization: str
    organization_id: UUID
    role: str | None
    scopes: tuple[str, ...]
    key_id: UUID | None
    expires_at: str | None

    @classmethod
    def parse(cls, value: Any) -> Me:
        """Read `GET me`."""
        reader = Reader(value, "me")
        organization = reader.part("organization")
        key = reader.part("key") if reader.has("key") else None
        return cls(
            email=reader.text("email") if reader.has("email") else None,
            organization=organization.text("slug"),
            organization_id=organization.uuid("id"),
            role=organization.text("role") if organization.has("role") else None,
            scopes=reader.texts("scopes"),
            key_id=key.uuid("id") if key else None,
            expires_at=key.text("expires_at") if key and key.has("expires_at") else None,
        )


@dataclass(frozen=True, slots=True)
class Base:
    """The reference of a base line; `fingerprint` is 64 hex digits, `config` a Hugging Face config.json."""

    name: str
    fingerprint: str
    config: Mapping[str, Any]
    line: str = ""

    @classmethod
    def parse(cls, value: Any) -> Base:
        """Read one of `GET bases`."""
        reader = Reader(value, "base")
        fingerprint = reader.text("fingerprint")
        if not is_digest(fingerprint):
            raise misunderstood("base fingerprint")
        line = reader.text("line") if reader.has("line") else ""
        return cls(reader.text("name"), fingerprint, reader.mapping("config"), line)

    def is_called(self, text: str) -> bool:
        """Return whether `text` names it, or its line."""
        return text in {self.name, self.fingerprint, self.line} - {""}


@dataclass(frozen=True, slots=True)
class CopyCost:
    """The cost of enough calls for a copy. `predictions`: how many were measured; None: it is the most."""

    calls: int
    nano_usd: int
    predictions: int | None

    @classmethod
    def parse(cls, value: Any) -> CopyCost:
        """Read `copy` of a price of the API."""
        reader = Reader(value, "copy")
        predictions = reader.integer("predictions") if reader.has("predictions") else None
        return cls(reader.integer("calls"), reader.integer("nano_usd"), predictions)


@dataclass(frozen=True, slots=True)
class Price:
    """Micro-dollars per million tokens, nano-dollars, and multipliers in basis points (10,000 is 1 ×)."""

    input_micro_usd_per_mtok: int
    cached_input_micro_usd_per_mtok: int
    output_micro_usd_per_mtok: int
    embedding_micro_usd_per_mtok: int | None  # None: no embeddings are sold
    per_prediction_nano_usd: int
    interactive_bps: int
    batch_bps: int
    monthly_free_nano_usd: int
    intro_free_nano_usd: int
    version: int | None  # None: every version without a price of its own
    effective_at: datetime
    copy: CopyCost | None = None  # None: not told, or no call can be priced yet

    @classmethod
    def parse(cls, value: Any) -> Price:
        """Read a price of the API."""
        reader = Reader(value, "price")
        return cls(
            reader.integer("input_micro_usd_per_mtok"),
            reader.integer("cached_input_micro_usd_per_mtok"),
            reader.integer("output_micro_usd_per_mtok"),
            reader.integer("embedding_micro_usd_per_mtok") if reader.has("embedding_micro_usd_per_mtok") else None,
            reader.integer("per_prediction_nano_usd"),
            reader.integer("interactive_bps"),
            reader.integer("batch_bps"),
            reader.integer("monthly_free_nano_usd"),
            reader.integer("intro_free_nano_usd"),
            reader.integer("version") if reader.has("version") else None,
            reader.time("effective_at"),
            CopyCost.parse(value["copy"]) if reader.has("copy") else None,
        )

    def amounts(self) -> dict[str, int | None]:
        """Return the amounts as the API takes them."""
        found = asdict(self)
        return {name: found[name] for name in found if name not in ("version", "effective_at", "copy")}

    def to_json(self) -> dict[str, Any]:
        """Return the price as `--json` shows it."""
        shown = {**self.amounts(), "version": self.version, "effective_at": self.effective_at.isoformat()}
        return shown if self.copy is None else {**shown, "copy": asdict(self.copy)}


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A listing of the creator. `text` holds the fields that a listing file can change."""

    name: str
    base_fingerprint: str
    base_name: str
    visibility: str
    newest_version: int | None
    price: Price | None
    accuracy: float | None
    text: Mapping[str, Any]
    review: Review | None = None  # in which a change just made waits for a person

    @classmethod
    def parse(cls, value: Any) -> ListedModel:
        """Read a model of the API."""
        reader = Reader(value, "model")
        base = reader.part("base")
        accuracy = None
        if reader.has("evaluation"):
            evaluation = reader.part("evaluation")
            accuracy = evaluation.integer("correct") / max(1, evaluation.integer("rows"))
        return cls(
            name=reader.text("name"),
            base_fingerprint=base.text("fingerprint"),
            base_name=base.text("name"),
            visibility=reader.text("visibility"),
            newest_version=reader.integer("newest_version") if reader.has("newest_version") else None,
            price=Price.parse(value["price"]) if reader.has("price") else None,
            accuracy=accuracy,
            text=_listing_text(value),
            review=Review.parse(value["review"]) if reader.has("review") else None,
        )


def _listing_text(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a model of the API with its licence as a listing file has it."""
    licence = value.get("licence")
    if not isinstance(licence, Mapping):
        return value
    return {**value, "licence": licence.get("id"), "licence_required": licence.get("required")}


@dataclass(frozen=True, slots=True)
class Version:
    """A version of one of the creator's models."""

    id: UUID
    model: str
    model_id: UUID
    creator_id: UUID
    number: int
    state: str
    changelog: str
    digest: str | None
    size: int
    uploaded: int
    base_fingerprint: str
    created_at: datetime
    published_at: datetime | None
    report: Mapping[str, Any] = field(repr=False)
    review: Review | None
    output_schema: Mapping[str, Any] | None = field(default=None, repr=False)  # of its contract

    @classmethod
    def parse(cls, value: Any) -> Version:
        """Read a version of the API, as its own organization sees it."""
        reader = Reader(value, "version")
        return cls(
            id=reader.uuid("id"),
            model=reader.text("model"),
            model_id=reader.uuid("model_id"),
            creator_id=reader.uuid("creator_id"),
            number=reader.integer("number"),
            state=reader.text("state"),
            changelog=reader.text("changelog"),
            digest=reader.text("package_digest") if reader.has("package_digest") else None,
            size=reader.integer("package_size"),
            uploaded=reader.integer("uploaded_bytes"),
            base_fingerprint=reader.text("base_fingerprint"),
            created_at=reader.time("created_at"),
            published_at=reader.time("published_at") if reader.has("published_at") else None,
            report=reader.mapping("report"),
            review=Review.parse(value["review"]) if reader.has("review") else None,
            output_schema=(value.get("contract") or {}).get("output_schema"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the version as `--json` shows it."""
        return {
            "model": self.model,
            "version": self.number,
            "version_id": str(self.id),
            "state": self.state,
            "digest": self.digest,
            "size": self.size,
            "uploaded": self.uploaded,
            "changelog": self.changelog,
            "created_at": self.created_at.isoformat(),
            "published_at": self.published_at.isoformat() if self.published_at else None,
            "report": dict(self.report),
            "review": self.review.to_json() if self.review else None,
        }


def time_of(microseconds: int) -> datetime:
    """Convert unix microseconds to a time in UTC; raises CliError if the calendar does not reach that far."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    except OverflowError:
        raise misunderstood("time") from None
