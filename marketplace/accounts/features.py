"""Features that staff switch: for everybody, for some organizations, or for a share of them.

Each is declared here with its purpose and who answers for it; the database has a row only for what staff changed. Who
begins something new asks `require_on`, which reads the row itself; the gateway, which is asked for each prediction,
remembers the rows for two seconds (`gateway/features.py`). What has begun goes on, whatever is switched off meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import FeatureSwitch


@dataclass(frozen=True, slots=True)
class Feature:
    """A part of the product that can be switched off.

    refusal: the sentence of whoever asks for it then. per_organization: False: it is on or off for everybody.
    """

    name: str
    title: str
    purpose: str
    owner: str  # the people who decide about it
    refusal: str
    per_organization: bool = True


_DECLARED = (
    Feature(
        "predictions",
        "Predictions",
        "Stops new predictions while books or replicas are being repaired.",
        "operations",
        "New predictions are switched off just now. Nothing was charged.",
    ),
    Feature(
        "batches",
        "Batches",
        "Stops new batches, so that replicas are left to those who wait for their answers.",
        "operations",
        "New batches are switched off just now; those that run end as they would. Nothing was charged.",
    ),
    Feature(
        "background-predictions",
        "Predictions in the background",
        "Stops new predictions in the background, which workers make.",
        "operations",
        "New predictions in the background are switched off just now. Nothing was charged.",
    ),
    Feature(
        "top-ups",
        "Top-ups",
        "Stops new payments by card, automatic ones as well, while the payment provider or the books are in doubt.",
        "finance",
        "Top-ups are switched off just now. No card was charged; credit stays and is spent as ever.",
    ),
    Feature(
        "public-listings",
        "New public listings",
        "Stops the publishing of versions of public models, for instance while a wave of spam is cleaned up.",
        "trust and safety",
        "New versions of public models are not published just now. Private and unlisted ones are.",
    ),
    Feature(
        "sign-ups",
        "Sign-ups",
        "Stops new accounts; invited people cannot make one either.",
        "trust and safety",
        "New accounts are not made just now. Existing ones work as ever.",
        per_organization=False,
    ),
)
FEATURES: Mapping[str, Feature] = MappingProxyType({feature.name: feature for feature in _DECLARED})


@dataclass(frozen=True, slots=True)
class Switch:
    """The reach of a feature: on for `percent` of the organizations, and for those named, which count first."""

    percent: int = 100
    on_for: Collection[UUID] = frozenset()
    off_for: Collection[UUID] = frozenset()

    def is_on(self, name: str, organization_id: UUID | None) -> bool:
        """Return whether `name` is on for the organization; None: for everybody."""
        if organization_id is None:
            return self.percent == 100
        if organization_id in self.off_for:
            return False
        return organization_id in self.on_for or _place(name, organization_id) < self.percent


ALL_ON = Switch()
RETRY_SECONDS = 60


def switch_of(name: str) -> Switch:
    """Return the switch of a declared feature as it is now."""
    row = FeatureSwitch.objects.filter(pk=FEATURES[name].name).first()
    return ALL_ON if row is None else Switch(row.percent, row.on_for, row.off_for)


def is_on(name: str, organization_id: UUID | None = None) -> bool:
    """Return whether a declared feature is on for an organization, or for everybody."""
    return switch_of(name).is_on(name, organization_id)


def require_on(name: str, organization_id: UUID | None = None) -> None:
    """Raise Refusal 503 (`feature_off`) unless the feature is on."""
    if not is_on(name, organization_id):
        raise off(name)


def off(name: str) -> Refusal:
    """Return the refusal of a feature that is off: a 503, so that workers and clients try again later."""
    headers = {"Retry-After": str(RETRY_SECONDS)}
    return Refusal(FEATURES[name].refusal, code="feature_off", status=503, headers=headers)


def _place(name: str, organization_id: UUID) -> int:
    """Return the organization's place from 0 to 99: a larger share contains each smaller one."""
    digest = hashlib.sha256(name.encode() + organization_id.bytes).digest()
    return int.from_bytes(digest[:8]) % 100
