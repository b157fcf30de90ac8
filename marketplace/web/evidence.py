"""The answer to a bank about a dispute: the staff's form, and what the platform knows that belongs into it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile

from billing.disputes.evidence import FILES, MAX_FILES_BYTES, MAX_TEXT, TEXTS, EvidenceFile
from billing.models import BillingProfile, Dispute, PaymentDetail
from billing.rollups.usage import usage_summary
from marketplace.web.forms import PlainForm
from marketplace.web.templatetags.intarsia import usd

SHORT = ("customer_name", "customer_email_address", "service_date")
MOST_LINES = 150  # of the log of use
PRODUCT = "Prepaid credit for predictions of AI models, used through an API. It is spent prediction by prediction."
REFUNDS = "Credit that is not spent can be refunded to the card at any time, on the page of its payment."


class EvidenceForm(PlainForm):
    """Texts and files for the bank, and a code of the authenticator app of the person who sends them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, label in TEXTS.items():
            widget = forms.TextInput() if name in SHORT else forms.Textarea(attrs={"rows": 4})
            self.fields[name] = forms.CharField(label=label, required=False, max_length=MAX_TEXT, widget=widget)
        for name, label in FILES.items():
            self.fields[name] = forms.FileField(
                label=label, required=False, widget=forms.FileInput(attrs={"accept": ".pdf,.png,.jpg,.jpeg"})
            )
        self.fields["code"] = forms.RegexField(
            r"^[0-9]{6}$",
            label="Code of your authenticator app",
            help_text="Evidence is sent once. Files have to be chosen again after a refusal.",
            error_messages={"invalid": "The app shows six digits."},
            widget=forms.TextInput(attrs={"autocomplete": "one-time-code", "inputmode": "numeric"}),
        )

    def clean(self) -> dict[str, Any]:
        """Refuse files that no bank takes before a code is used up."""
        cleaned = super().clean() or {}
        self.files_of_bank: dict[str, EvidenceFile] = {}
        uploads: dict[str, UploadedFile] = {name: cleaned[name] for name in FILES if cleaned.get(name)}
        if sum(upload.size or 0 for upload in uploads.values()) > MAX_FILES_BYTES:
            raise forms.ValidationError("All files together have at most 4.5 MB: banks take no more.")
        for name, upload in uploads.items():
            file = EvidenceFile(upload.read())
            if not file.extension:
                self.add_error(name, "A file of evidence is a PDF, PNG or JPEG.")
            self.files_of_bank[name] = file
        if not uploads and not any(cleaned.get(name) for name in TEXTS):
            raise forms.ValidationError("Evidence has at least one text or file.")
        return cleaned

    @property
    def texts(self) -> dict[str, str]:
        return {name: self.cleaned_data[name] for name in TEXTS if self.cleaned_data[name]}


def suggested_texts(dispute: Dispute) -> dict[str, str]:
    """Return what the platform knows for the bank: who paid, what was sold, and its use since, day by day."""
    top_up = dispute.top_up
    detail = PaymentDetail.objects.filter(top_up=top_up).first()
    profile = BillingProfile.objects.filter(organization=top_up.organization_id).first()
    payer = (detail.payer if detail else None) or {}
    used = usage_summary(top_up.organization, group_by=["day", "model"], since=top_up.credited_at)
    lines = [f"{one.day}  {one.model_name}  {one.predictions}  {usd(one.cost_nano_usd)}" for one in used]
    days = sorted(str(one.day) for one in used)
    log = ["Day (UTC), model, predictions, cost:", *lines[:MOST_LINES]] if lines else []
    return {
        "product_description": PRODUCT,
        "customer_name": payer.get("name") or (profile.legal_name if profile else "") or top_up.organization.name,
        "customer_email_address": payer.get("email") or (profile.email if profile else ""),
        "service_date": " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "",
        "access_activity_log": "\n".join(log),
        "refund_policy_disclosure": REFUNDS,
    }
