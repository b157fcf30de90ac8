"""Forms of guard policies: for each kind of personal data, whether it passes, is masked or refuses a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.text import capfirst

from marketplace.guards.policies import KINDS
from marketplace.web.forms import PlainForm

_CHOICES = [("pass", "Passes"), ("mask", "Is masked"), ("refuse", "Is refused")]
EXAMPLES = {
    "card": "4111 1111 1111 1111",
    "iban": "GB82 WEST 1234 5698 7654 32",
    "wallet": "1BoatSLR…LETtpyT",
    "email": "ada@example.com",
    "ip": "192.0.2.7, 2001:db8::1",
    "id": "NHS, PESEL, Aadhaar, NIF and others",
    "phone": "+44 20 7946 0958",
}


class GuardsForm(PlainForm):
    """One choice for each kind; `policy` is the one that holds now."""

    def __init__(self, *args: Any, policy: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for kind, name in KINDS.items():
            self.fields[kind] = forms.ChoiceField(
                label=capfirst(name), choices=_CHOICES, initial=policy.get(kind, "pass"), help_text=EXAMPLES[kind]
            )

    @property
    def wanted(self) -> dict[str, str]:
        """Return the policy that was chosen."""
        return {kind: self.cleaned_data[kind] for kind in KINDS}
