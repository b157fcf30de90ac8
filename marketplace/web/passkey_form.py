"""allauth's form of a new passkey, in plain words."""

from __future__ import annotations

from typing import Any

from allauth.mfa.webauthn.forms import AddWebAuthnForm


class PasskeyForm(AddWebAuthnForm):
    """Offers to sign in with the passkey alone, which is what people expect of one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, label_suffix="", **kwargs)
        self.fields["name"].label = "Name"
        self.fields["name"].max_length = 100
        self.fields["name"].widget.attrs["maxlength"] = 100
        alone = self.fields["passwordless"]
        alone.label = "Sign in with this passkey alone, without the password"
        alone.help_text = "Without this it is a second factor, asked for after the password."
        alone.initial = True
