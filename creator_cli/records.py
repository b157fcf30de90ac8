"""The control API's answers, parsed at the edge into typed values. Unknown fields are ignored: the API may grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from creator_cli.errors import CliError
from protocol.encoding import decode_base64url
from protocol.errors import ProtocolError
from protocol.names import is_digest

T = TypeVar("T")


class Reader:
    """Typed access to one JSON object of an answer; raises CliError naming the field."""

    def __init__(self, value: Any, what: str) -> None:
        if not isinstance(value, Mapping):
            raise _misunderstood(what)
        self._value = value
        self._what = what

    def _get(self, name: str, kind: type[T]) -> T:
        value = self._value.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise _misunderstood(f"{self._what} {name}")
        return value

    def text(self, name: str) -> str:
        """Return a string."""
        return self._get(name, str)

    def integer(self, name: str) -> int:
        """Return an integer."""
        return self._get(name, int)

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        return self._get(name, bool)

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object."""
        return self._get(name, dict)

    def items(self, name: str) -> list[Any]:
        """Return a list."""
        return self._get(name, list)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the strings of a list."""
        return tuple(item for item in self.items(name) if isinstance(item, str))

    def part(self, name: str) -> Reader:
        """Return a reader of an object."""
        return Reader(self._value.get(name), f"{self._what} {name}")

    def has(self, name: str) -> bool:
        """Return whether the field is present and not null."""
        return self._value.get(name) is not None

    def uuid(self, name: str) -> UUID:
        """Return a UUID."""
        try:
            return UUID(self.text(name))
        except ValueError:
            raise _misunderstood(f"{self._what} {name}") from None

    def time(self, name: str) -> datetime:
        """Return a time with its zone."""
        try:
            found = datetime.fromisoformat(self.text(name))
        except ValueError:
            raise _misunderstood(f"{self._what} {name}") from None
        if found.tzinfo is None:
            raise _misunderstood(f"{self._what} {name}")
        return found

    def data(self, name: str) -> bytes:
        """Bytes in base64 of either alphabet."""
        return decode_base64(self.text(name), f"{self._what} {name}")


def decode_base64(text: str, what: str) -> bytes:
    """Decode base64, URL-safe or not, padded or not; raises CliError naming `what`."""
    try:
        return decode_base64url(text.replace("+", "-").replace("/", "_").rstrip("="))
    except ProtocolError:
        raise _misunderstood(what) from None


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
    """A base model; `fingerprint` is 64 hex digits, `config` a Hugging Face config.json."""

    name: str
    fingerprint: str
    config: Mapping[str, Any]

    @classmethod
    def parse(cls, value: Any) -> Base:
        """Read one of `GET bases`."""
        reader = Reader(value, "base")
        fingerprint = reader.text("fingerprint")
        if not is_digest(fingerprint):
            raise _misunderstood("base fingerprint")
        return cls(reader.text("name"), fingerprint, reader.mapping("config"))


@dataclass(frozen=True, slots=True)
class CopyCost:
    """What so many calls, enough for a copy, cost. `predictions`: how many were measured; None: it is the most."""

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
            text=value,
        )


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
        }


def time_of(microseconds: int) -> datetime:
    """Convert unix microseconds to a time in UTC; raises CliError if the calendar does not reach that far."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    except OverflowError:
        raise _misunderstood("time") from None


def _misunderstood(what: str) -> CliError:
    return CliError(f"the platform's answer is not understood ({what}); you may need a newer intarsia")
