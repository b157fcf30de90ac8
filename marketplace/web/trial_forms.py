"""The form that starts a blind comparison."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar

from django import forms

from marketplace.accounts.errors import InvalidInput
from marketplace.trials.models import Trial
from marketplace.trials.rows import MAX_BYTES, Row, read_lines
from marketplace.web.forms import NANO_PER_USD, PlainForm
from marketplace.web.refusals import sentence

SCORING = {
    Trial.Scoring.JSON: "The whole answer is the expected one",
    Trial.Scoring.FIELDS: "More of these fields are right",
    Trial.Scoring.JUDGE: "I judge pairs myself",
}


class TrialForm(PlainForm):
    """Two models, rows as a file, a way to compare, and one budget."""

    first = forms.CharField(label="One model", max_length=90, help_text="organization/model")
    second = forms.CharField(label="Another model", max_length=90, help_text="organization/model")
    rows = forms.FileField(
        label="Rows",
        help_text='JSON lines: {"message": "…", "expected": …}. Leave out "expected" to judge by yourself. At most '
        "5,000 rows of 32 KiB, 8 MiB in all.",
    )
    scoring = forms.ChoiceField(label="Better is", choices=list(SCORING.items()), initial=Trial.Scoring.JSON)
    fields_compared = forms.CharField(
        label="Fields", required=False, max_length=2_000, help_text="For the comparison by fields: names with commas."
    )
    budget = forms.DecimalField(
        label="Budget, $",
        min_value=Decimal("0.000001"),
        max_value=Decimal(1_000),
        decimal_places=6,
        initial=Decimal(1),
        help_text="For both models together. The run ends there.",
    )
    FIELD_NAMES: ClassVar = {"budget_nano_usd": "budget", "fields": "fields_compared"}

    def clean_rows(self) -> list[Row]:
        """Parse the file; one that is too large is refused unread."""
        found = self.cleaned_data["rows"]
        if found.size > MAX_BYTES:
            raise forms.ValidationError(f"The file has more than {MAX_BYTES // 2**20} MiB.")
        try:
            return read_lines(found.read())
        except InvalidInput as refusal:
            raise forms.ValidationError(sentence(refusal)) from None

    def terms(self) -> dict[str, Any]:
        """Return the arguments of `start_trial`."""
        data = self.cleaned_data
        names = [name.strip() for name in data["fields_compared"].split(",") if name.strip()]
        return {
            "first": data["first"],
            "second": data["second"],
            "rows": data["rows"],
            "scoring": Trial.Scoring(data["scoring"]),
            "fields": names if data["scoring"] == Trial.Scoring.FIELDS else (),
            "budget_nano_usd": int(data["budget"] * NANO_PER_USD),
        }
