"""Forms about reviews: a decision, an appeal, a report."""

from __future__ import annotations

from django import forms

from marketplace.publishing.models import MAX_TEXT, Report
from marketplace.web.forms import PlainForm


class RefusalForm(PlainForm):
    """The reason for keeping something from the public, which its creator reads."""

    reason = forms.CharField(
        label="Reason, which the creator reads",
        max_length=MAX_TEXT,
        widget=forms.Textarea(attrs={"rows": 4}),
    )
    strike = forms.BooleanField(
        label="A strike against the organization",
        required=False,
        help_text="Whatever it publishes in public is reviewed until the strike is lifted by an appeal.",
    )


class PullForm(PlainForm):
    """The reason for taking a model off sale before the decision."""

    reason = forms.CharField(label="Reason, which the creator reads", max_length=MAX_TEXT)


class AppealForm(PlainForm):
    """The appeal against a refusal."""

    text = forms.CharField(
        label="Why the refusal is wrong", max_length=MAX_TEXT, widget=forms.Textarea(attrs={"rows": 4})
    )


class ReportForm(PlainForm):
    """A report about a model."""

    reason = forms.ChoiceField(label="What is wrong?", choices=Report.Reason.choices)
    text = forms.CharField(
        label="Tell us more",
        max_length=MAX_TEXT,
        required=False,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=f"At most {MAX_TEXT:,} characters. The platform's staff read it; the creator does not.",
    )
