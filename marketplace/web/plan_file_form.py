"""The form of a file that plans of the fleet are made from."""

from __future__ import annotations

from django import forms

from marketplace.planning.models import PlanFile
from marketplace.planning.services import MAX_BYTES
from marketplace.web.forms import PlainForm


class PlanFileForm(PlainForm):
    """A profile, prices, accelerators or promises."""

    kind = forms.ChoiceField(label="Kind", choices=PlanFile.Kind.choices)
    subject = forms.CharField(
        label="Accelerator",
        max_length=100,
        required=False,
        help_text="Of a profile alone: its name in the prices, such as l4.",
    )
    file = forms.FileField(label="File", widget=forms.FileInput(attrs={"accept": ".json,.toml"}))

    def clean_file(self) -> bytes:
        """Return the file's bytes; a file that is too large is refused unread."""
        found = self.cleaned_data["file"]
        if found.size > MAX_BYTES:
            raise forms.ValidationError(f"A file has at most {MAX_BYTES >> 20} MiB.")
        content: bytes = found.read()
        return content
