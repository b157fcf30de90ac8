"""Forms about an organization and its people."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django import forms

from marketplace.accounts.models import Membership
from marketplace.teams import roles
from marketplace.web.forms import PlainForm

_SLUG_HELP = "Lower-case letters, digits and inner hyphens, at most 40. It is in addresses and in the names of models."


class OrganizationForm(PlainForm):
    """A new organization."""

    slug = forms.CharField(label="Name in addresses", max_length=40, help_text=_SLUG_HELP)
    name = forms.CharField(label="Name that people read", max_length=100)


class NameForm(PlainForm):
    """The name that people read."""

    name = forms.CharField(label="Name that people read", max_length=100)


class RenameForm(PlainForm):
    """The name in addresses."""

    slug = forms.CharField(label="Name in addresses", max_length=40, help_text=_SLUG_HELP)


class InviteForm(PlainForm):
    """Somebody to invite, with their role."""

    email = forms.EmailField(label="E-mail address", max_length=254)
    role = forms.ChoiceField(label="Role", initial=Membership.Role.DEVELOPER)

    def __init__(self, *args: Any, by: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["role"].choices = [  # type: ignore[attr-defined]
            (role, f"{role}: {meaning}") for role, meaning in roles.MEANINGS.items() if role in grantable(by)
        ]


class TransferForm(PlainForm):
    """The member to whom the ownership is offered."""

    user_id = forms.TypedChoiceField(label="New owner")

    def __init__(self, *args: Any, members: Collection[Membership], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["user_id"].choices = [  # type: ignore[attr-defined]
            (str(one.user_id), one.user.email) for one in members if one.role != Membership.Role.OWNER
        ]


class AuditForm(PlainForm):
    """The part of the log that is shown."""

    act = forms.CharField(label="Act", max_length=60, required=False)
    person = forms.ChoiceField(label="Person", required=False)
    since = forms.DateField(label="From (UTC)", required=False, widget=forms.DateInput(attrs={"type": "date"}))
    until = forms.DateField(label="To, inclusive", required=False, widget=forms.DateInput(attrs={"type": "date"}))

    def __init__(self, *args: Any, people: Collection[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["person"].choices = [("", "everybody"), *people]  # type: ignore[attr-defined]


def grantable(by: str) -> list[str]:
    """Return the roles that a member with the role `by` may give, the strongest first."""
    return [role for role in roles.MEANINGS if roles.may_change(actor=by, current="", wanted=role)]
