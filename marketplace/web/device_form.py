"""The form by which a person lets a machine have a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms

from marketplace.accounts import policies
from marketplace.accounts.device_login import Asked
from marketplace.accounts.models import ApiKey, Membership
from marketplace.web.forms import PlainForm
from marketplace.web.key_forms import SCOPE_LABELS


class DeviceForm(PlainForm):
    """The organization that the key acts for, and its scopes; one that no role of the person carries is not offered.

    Scopes that the machine asked for are marked at first, as far as the role in the organization goes.
    """

    organization = forms.ChoiceField(label="The key acts for")
    scopes = forms.MultipleChoiceField(label="It may be used to", widget=forms.CheckboxSelectMultiple)

    def __init__(self, *args: Any, memberships: Sequence[Membership], asked: Asked, acting: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        roles = {one.organization.slug: one.role for one in memberships}
        first = next(name for name in (asked.organization, acting, *roles) if name in roles)
        offered = {scope for role in roles.values() for scope in policies.scopes_of_role(role)}
        organizations = [(slug, f"{slug} ({role})") for slug, role in roles.items()]
        scopes = [(scope.value, SCOPE_LABELS[scope]) for scope in ApiKey.Scope if scope.value in offered]
        self.fields["organization"].choices = organizations  # type: ignore[attr-defined]
        self.fields["scopes"].choices = scopes  # type: ignore[attr-defined]
        carried = policies.scopes_of_role(roles[first])
        self.fields["organization"].initial = first
        self.fields["scopes"].initial = [one for one in asked.scopes if one in carried]
