"""The listing file (`model.json`): the name, texts and price of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from creator_cli.errors import Refused
from creator_cli.names import ModelName, parse_model_name
from creator_cli.records import ListedModel, Price

MAX_LISTING = 1 << 20  # bytes
MAX_CARD = 400_000  # bytes; the platform takes 100,000 characters
_TEXT = ("title", "summary", "industry", "visibility", "licence", "licence_text")
_FLAGS = ("licence_required", "gated")
_LISTS = ("tags", "example_messages", "derived_from")
_KNOWN = frozenset(
    {"org_slug", "org_name", "slug", "base", "card", "price", "derivative_royalty_bps", *_TEXT, *_FLAGS, *_LISTS}
)
_SOURCE_FIELDS = {"model", "royalty_bps"}
_PRICE_FIELDS = ("input_micro_usd_per_mtok", "output_micro_usd_per_mtok")
# The platform's own value for an amount that a listing leaves out; cached input then costs as much as input.
_OTHERWISE: Mapping[str, int | None] = MappingProxyType(
    {
        "embedding_micro_usd_per_mtok": None,
        "per_prediction_nano_usd": 0,
        "interactive_bps": 10_000,
        "batch_bps": 10_000,
        "monthly_free_nano_usd": 0,
        "intro_free_nano_usd": 0,
    }
)


@dataclass(frozen=True, slots=True)
class Listing:
    """A parsed listing file. `text` are the fields of the API that describe the model; absent ones stay as they are."""

    name: ModelName
    base: str | None
    text: Mapping[str, Any]
    price: Mapping[str, int] | None

    def creation(self) -> dict[str, Any]:
        """Return the request body that creates the listing."""
        return {"slug": self.name.slug, **({"base": self.base} if self.base else {}), **self.text}

    def changes(self, model: ListedModel) -> dict[str, Any]:
        """Return the fields in which the platform's listing differs from this file."""
        changed = {field: value for field, value in self.text.items() if model.text.get(field) != value}
        if "derived_from" in changed and _repeats(changed["derived_from"], model.text.get("derived_from")):
            del changed["derived_from"]
        return changed

    def new_price(self, price: Price | None) -> Mapping[str, int | None] | None:
        """Return the price to set, or None if the file names none or it is already in force."""
        if self.price is None:
            return None
        current = price.amounts() if price else {}
        wanted = {"cached_input_micro_usd_per_mtok": self.price["input_micro_usd_per_mtok"], **_OTHERWISE, **self.price}
        return None if wanted == current else wanted


def read_listing(path: Path) -> Listing:
    """Read a listing file and the card it names; raises Refused naming the field and the rule."""
    value = _object(path)
    for field in value:
        if field not in _KNOWN:
            raise Refused(f"{path.name} {field}: is unknown; known are {', '.join(sorted(_KNOWN))}", field=field)
    for field in ("org_slug", "slug", "title"):
        _require(path, field, isinstance(value.get(field), str), "is required and must be text")
    for field in ("base", "card", *_TEXT):
        _require(path, field, isinstance(value.get(field, ""), str), "must be text")
    for field in _FLAGS:
        _require(path, field, isinstance(value.get(field, False), bool), "must be true or false")
    for field in _LISTS:
        _require(path, field, isinstance(value.get(field, []), list), "must be a list")
    text = {field: value[field] for field in (*_TEXT, *_FLAGS, *_LISTS) if field in value}
    # As the platform stores them: otherwise every push would change the listing.
    text |= {field: text[field].strip() for field in ("title", "summary", "industry", "licence_text") if field in text}
    if "derivative_royalty_bps" in value:
        owed = text["derivative_royalty_bps"] = value["derivative_royalty_bps"]
        fits = owed is None or (type(owed) is int and 0 <= owed <= 10_000)
        _require(path, "derivative_royalty_bps", fits, "must be from 0 to 10000 basis points, or null")
    for number, source in enumerate(value.get("derived_from", [])):
        field = f"derived_from {number}"
        fits = isinstance(source, dict) and isinstance(source.get("model"), str) and source.keys() <= _SOURCE_FIELDS
        _require(path, field, fits, "must be an object of model (org/slug) and, if you like, royalty_bps")
    if "card" in value:
        text["card_markdown"] = _card(path, value["card"])
    return Listing(
        name=parse_model_name(f"{value['org_slug']}/{value['slug']}"),
        base=value.get("base"),
        text=text,
        price=_price(path, value["price"]) if value.get("price") is not None else None,
    )


def _repeats(wanted: list[dict[str, Any]], declared: object) -> bool:
    """Return whether the platform has these sources already, at these royalties where the file names any."""
    if not isinstance(declared, list):
        return False
    found = {source.get("model"): source.get("royalty_bps") for source in declared}
    return found.keys() == {source["model"] for source in wanted} and all(
        source.get("royalty_bps") in (None, found[source["model"]]) for source in wanted
    )


def _object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LISTING + 1)
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror})", field="listing") from None
    if len(data) > MAX_LISTING:
        raise Refused(f"{path}: must be at most {MAX_LISTING} bytes", field="listing")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path}: is not JSON ({error})", field="listing") from None
    if not isinstance(value, dict):
        raise Refused(f"{path}: must be a JSON object", field="listing")
    return value


def _card(listing: Path, name: str) -> str:
    # A listing from a stranger must not be able to publish other files of this machine.
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise Refused(f"{listing.name} card: must be a file beside the listing or in ../cards/", field="card")
    for path in (listing.parent / name, listing.parent.parent / "cards" / name):
        if path.is_file():
            break
    else:
        raise Refused(f"{listing.name} card: {name} is neither beside the listing nor in ../cards/", field="card")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CARD + 1)
        if len(data) > MAX_CARD:
            raise Refused(f"{path}: must be at most 100000 characters", field="card")
        return data.decode("utf-8")
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror})", field="card") from None
    except UnicodeDecodeError:
        raise Refused(f"{path}: must be UTF-8", field="card") from None


def _price(listing: Path, value: Any) -> Mapping[str, int]:
    known = (*_PRICE_FIELDS, "cached_input_micro_usd_per_mtok", *_OTHERWISE)
    _require(listing, "price", isinstance(value, dict), f"must be an object of {', '.join(known)}")
    for field in value:
        _require(listing, f"price {field}", field in known, f"is unknown; known are {', '.join(known)}")
    for field in (*_PRICE_FIELDS, *value):
        _require(listing, f"price {field}", type(value.get(field)) is int and value[field] >= 0, "must be 0 or more")
    return dict(value)


def _require(path: Path, field: str, holds: bool, rule: str) -> None:
    if not holds:
        raise Refused(f"{path.name} {field}: {rule}", field=field)
