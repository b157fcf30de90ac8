"""Forms of batches: a file of requests, and the budget of a batch."""

from __future__ import annotations

from decimal import ROUND_UP, Decimal
from typing import Any, ClassVar

from django import forms

from marketplace.jobs.quotes import Quote
from marketplace.web.forms import NANO_PER_USD, PlainForm

MAX_PAGE_BYTES = 2 * 2**20  # a larger form would be written to disk, in the clear, before a view sees it


class BatchFileForm(PlainForm):
    """A file of requests. Its lines are checked where it is stored."""

    file = forms.FileField(
        label="File of requests",
        help_text='JSON lines, as OpenAI has them: {"custom_id": "…", "method": "POST", "url": "/v1/chat/completions", '
        '"body": {…}}. At most 2 MiB here; up to 50 MiB through the API.',
        widget=forms.ClearableFileInput(attrs={"accept": ".jsonl,.json,.txt"}),
    )

    def clean_file(self) -> Any:
        """Refuse a file that is too large unread."""
        found = self.cleaned_data["file"]
        if found.size > MAX_PAGE_BYTES:
            raise forms.ValidationError("The file has more than 2 MiB: upload it through the API.")
        return found


class StartBatchForm(PlainForm):
    """The budget of a batch."""

    budget = forms.DecimalField(
        label="Budget, $",
        min_value=Decimal("0.000001"),
        max_value=Decimal(10_000),
        decimal_places=6,
        help_text="The batch spends no more than this. Lines beyond it end as errors and cost nothing.",
    )
    FIELD_NAMES: ClassVar = {"budget_nano_usd": "budget"}

    @classmethod
    def for_quote(cls, quote: Quote, data: Any = None) -> StartBatchForm:
        """Return the form with the worst case as its first budget."""
        worst = Decimal(max(1_000, quote.worst_nano_usd)) / NANO_PER_USD
        return cls(data, initial={"budget": min(worst.quantize(Decimal("0.000001"), ROUND_UP), Decimal(10_000))})

    def budget_nano_usd(self) -> int:
        """Return the budget."""
        return int(self.cleaned_data["budget"] * NANO_PER_USD)
