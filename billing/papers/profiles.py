"""Billing profiles: the legal person, address and tax id that an organization's papers name."""

from __future__ import annotations

from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.db.models.functions import Now

from billing.models import BillingProfile
from billing.papers import tax_ids
from billing.papers.document import Party
from billing.papers.letters import unprintable
from marketplace.accounts import audit
from marketplace.accounts.errors import InvalidInput
from marketplace.accounts.models import Organization, User
from marketplace.accounts.names import PLATFORM_SLUG

REQUIRED = ("legal_name", "line1", "city", "country")
LIMITS = {"legal_name": 120, "email": 254, "line1": 120, "line2": 120, "postal_code": 20, "city": 80, "region": 80}


@dataclass(frozen=True, slots=True)
class ProfileText:
    """A billing profile as a person writes it. Papers issued from now on carry it; older ones stay as they are."""

    legal_name: str
    line1: str
    city: str
    country: str
    line2: str = ""
    postal_code: str = ""
    region: str = ""
    tax_id: str = ""
    email: str = ""

    def checked(self) -> ProfileText:
        """Return the text trimmed and in its normal form. Raises InvalidInput, which names the field at fault."""
        values = {name: " ".join(str(getattr(self, name)).split()) for name in self.__slots__}
        for name in REQUIRED:
            if not values[name]:
                raise InvalidInput("must not be empty: papers need it", field=name)
        for name, limit in LIMITS.items():
            if len(values[name]) > limit:
                raise InvalidInput(f"must be at most {limit} characters long", field=name)
            if strange := unprintable(values[name]):
                raise InvalidInput(
                    f"papers cannot print “{strange}”: use Latin, Greek, Cyrillic, Chinese, Japanese or Korean letters",
                    field=name,
                )
        values["country"] = values["country"].upper()
        if values["country"] not in tax_ids.countries():
            raise InvalidInput("must be a country's code of two letters (ISO 3166-1), such as DE", field="country")
        values["tax_id"] = _tax_id(values["tax_id"], values["country"])
        if values["email"]:
            try:
                validate_email(values["email"])
            except ValidationError:
                raise InvalidInput("must be an e-mail address", field="email") from None
        return ProfileText(**values)


@transaction.atomic
def save_profile(*, organization: Organization, text: ProfileText, by: User | None) -> BillingProfile:
    """Write the profile of `organization`. Raises InvalidInput."""
    checked = text.checked()
    fields = {name: getattr(checked, name) for name in checked.__slots__}
    profile, _created = BillingProfile.objects.update_or_create(
        organization=organization, defaults=fields | {"updated_by": by, "updated_at": Now()}
    )
    profile.refresh_from_db()
    audit.record(organization=organization, act="billing_profile.changed")
    return profile


def profile_of(organization: Organization) -> BillingProfile | None:
    """Return the profile of `organization`, or None before there is one."""
    return BillingProfile.objects.filter(organization=organization).first()


def platform_party() -> Party | None:
    """Return the platform as the seller on papers, or None while it has no billing profile."""
    found = BillingProfile.objects.filter(organization__slug=PLATFORM_SLUG).first()
    return party_of(found, role="From") if found else None


def party_of(profile: BillingProfile, *, role: str) -> Party:
    """Return a profile as a side of a paper."""
    return Party(
        role=role,
        name=profile.legal_name,
        address=address(
            line1=profile.line1,
            line2=profile.line2,
            postal_code=profile.postal_code,
            city=profile.city,
            region=profile.region,
            country=profile.country,
        ),
        tax_id=tax_ids.labelled(profile.tax_id, country=profile.country),
        email=profile.email,
    )


def organization_party(organization: Organization, *, role: str) -> Party:
    """Return an organization as a side of a paper: by its profile, or by its name while it has none."""
    profile = profile_of(organization)
    if profile is not None:
        return party_of(profile, role=role)
    name = "".join("?" if unprintable(letter) else letter for letter in organization.name)
    return Party(role=role, name=name, address=(f"Organization {organization.slug}",))


def address(*, line1: str, line2: str, postal_code: str, city: str, region: str, country: str) -> tuple[str, ...]:
    """Return the lines of an address, the country in words last."""
    place = " ".join(part for part in (postal_code, city) if part)
    place = f"{place}, {region}" if region else place
    return tuple(line for line in (line1, line2, place, tax_ids.countries().get(country, country)) if line)


def _tax_id(text: str, country: str) -> str:
    tax_id = tax_ids.normalized(text)
    form = tax_ids.form_of(country)
    if tax_id and not form.pattern.fullmatch(tax_id):
        hint = f", such as {form.example}" if form.example else ": 4 to 24 letters and digits"
        raise InvalidInput(f"must have the form of a tax id of {tax_ids.countries()[country]}{hint}", field="tax_id")
    return tax_id
