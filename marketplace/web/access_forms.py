"""Forms of admission to a gated model: a request, and its answer."""

from __future__ import annotations

from django import forms

from marketplace.access.models import MAX_REASON
from marketplace.web.forms import PlainForm


class AskForm(PlainForm):
    """A request to be let in."""

    reason = forms.CharField(
        label="What will you use it for?",
        max_length=MAX_REASON,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="The creator reads it, with the name of your organization.",
    )


class AnswerForm(PlainForm):
    """The words that go with an answer."""

    text = forms.CharField(max_length=MAX_REASON, required=False)
