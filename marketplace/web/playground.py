"""The playground's lanes: one for each model that a message is sent to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from marketplace.accounts.models import Organization
from marketplace.catalog import selectors
from marketplace.catalog.models import Model, Version
from protocol.errors import ProtocolError
from protocol.names import parse_model_name

MAX_TOKENS = 256  # as playground.js sends for a model without a contract


@dataclass(frozen=True, slots=True)
class Lane:
    """A model that is asked. `title` is empty where the page is the model's own."""

    model_name: str  # with its version where that is pinned
    has_contract: bool
    takes_system: bool
    max_tokens: int = MAX_TOKENS  # of an answer, unless the form's settings say otherwise
    title: str = ""
    address: str = ""


def lane_of(model: Model, version: Version | None, *, name: str, own_page: bool = False) -> Lane:
    """Return the lane of a model under the name that it is called by."""
    contract = version.contract if version else None
    takes_system = contract is None or contract["system"] == "append"
    address = reverse("web:model", args=[model.organization.slug, model.slug])
    most = MAX_TOKENS if contract is None else int(contract["max_tokens"])
    shown = ("", "") if own_page else (model.title, address)
    return Lane(name, contract is not None, takes_system, most, *shown)


def lanes_named(names: Sequence[str], *, viewer: Organization) -> tuple[list[Lane], list[str]]:
    """Return the lanes of these names, and the names that mean no model that the viewer may call."""
    lanes, missing = [], []
    for text in names:
        lane = _lane_named(text, viewer)
        if lane is None:
            missing.append(text)
        else:
            lanes.append(lane)
    return lanes, missing


def settings_of(lanes: Sequence[Lane]) -> dict[str, Any]:
    """Return what the form shows for these lanes."""
    return {
        "lanes": lanes,
        "takes_system": any(lane.takes_system for lane in lanes),
        "takes_settings": any(not lane.has_contract for lane in lanes),
    }


def _lane_named(text: str, viewer: Organization) -> Lane | None:
    try:
        name = parse_model_name(text)
    except ProtocolError:
        return None
    model = selectors.visible_model(org_slug=name.organization, slug=name.slug, viewer=viewer)
    if model is None:
        return None
    version = model.facts.newest
    if name.version is not None:
        version = selectors.published_version(org_slug=name.organization, slug=name.slug, number=name.version)
    return None if version is None else lane_of(model, version, name=text)
