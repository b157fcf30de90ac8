"""The form of a logo, of an organization or of a model."""

from __future__ import annotations

from django import forms

from marketplace.teams import pictures
from marketplace.web.forms import PlainForm


class LogoForm(PlainForm):
    """A picture that the platform draws anew."""

    logo = forms.FileField(
        label="Picture",
        help_text=pictures.LIMITS,
        widget=forms.FileInput(attrs={"accept": "image/png,image/jpeg,image/webp"}),
    )

    def clean_logo(self) -> bytes:
        """Return the file's bytes; a file that is too large is refused unread."""
        found = self.cleaned_data["logo"]
        if found.size > pictures.MAX_FILE_BYTES:
            raise forms.ValidationError(f"A logo has at most {pictures.MAX_FILE_BYTES // 2**20} MiB.")
        content: bytes = found.read()
        return content
