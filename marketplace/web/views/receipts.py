"""Receipts: the page of one prediction, its signed file, and the check of any such file."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from billing import selectors as billing
from billing.retention import is_dropped
from marketplace.accounts.errors import Refusal
from marketplace.catalog.models import Version
from marketplace.catalog.selectors import checkpoint_with
from marketplace.receipts import selectors
from marketplace.receipts.charges import charges_of
from marketplace.receipts.errors import NoReceipt
from marketplace.receipts.keys import published_keys
from marketplace.vault.errors import NotBootstrapped
from marketplace.web import queries
from marketplace.web.acting import Acting, member_page
from marketplace.web.cost_lines import cost_lines
from marketplace.web.forms import ReceiptForm
from marketplace.web.refusals import show_as_message
from protocol.proofs.documents import VerifiedReceipt, verify_document
from protocol.proofs.errors import ProofRejected

SHOWN_DAYS = 14


@require_safe
@never_cache
@member_page()
def receipt(request: HttpRequest, acting: Acting, prediction_id: UUID) -> HttpResponse:
    """One prediction: what it cost, why, and the replica's signature over it."""
    row = billing.usage_row(acting.organization, prediction_id)
    if row is None and is_dropped(acting.organization, prediction_id):
        messages.info(request, selectors.dropped_text())
        return redirect("web:usage")
    if row is None:
        raise Http404("no such receipt")
    context = {
        "row": row,
        "version": row.version_id
        and Version.objects.filter(pk=row.version_id).values_list("number", flat=True).first(),
        "provable": bool(charges_of([row])),
        "checked": (checked := queries.checked_receipt(row)),
        "base": checked.claims and checkpoint_with(checked.claims.base),
        "lines": cost_lines(row),
    }
    return render(request, "web/receipt.html", context)


@require_safe
@never_cache
@member_page()
def receipt_state(request: HttpRequest, acting: Acting, prediction_id: UUID) -> JsonResponse:
    """Whether a prediction of the organization is charged yet: the playground asks after a stream that was left."""
    row = billing.usage_row(acting.organization, prediction_id)
    return JsonResponse({"cost_nano_usd": getattr(row, "charged_nano_usd", None)})


@require_safe
@never_cache
@member_page()
def receipt_file(request: HttpRequest, acting: Acting, prediction_id: UUID) -> HttpResponse:
    """The signed receipt as a file, which verifies without the platform."""
    try:
        document = selectors.receipt_document(acting.organization, prediction_id)
    except NoReceipt:
        raise Http404("no such receipt") from None
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="No file was made.")
        return redirect(reverse("web:receipt", args=[prediction_id]))
    name = f"intarsia-receipt-{prediction_id}.json"
    return HttpResponse(
        document, content_type="application/json", headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of a check: what the file proves, or the rule that it breaks."""

    proven: VerifiedReceipt | None = None
    rejection: ProofRejected | None = None

    @property
    def charged_at(self) -> datetime | None:
        """Return when the charge was made."""
        if self.proven is None:
            return None
        return datetime.fromtimestamp(0, tz=UTC) + timedelta(microseconds=self.proven.charge.charged_at)


@require_http_methods(["GET", "HEAD", "POST"])
def verify(request: HttpRequest) -> HttpResponse:
    """Check a receipt file with the published keys; show these keys and the roots of the last days."""
    form = ReceiptForm(request.POST or None, request.FILES or None)
    checked = None
    status = 200
    try:
        keys = published_keys()
        if request.method == "POST" and form.is_valid():
            try:
                checked = Checked(verify_document(form.cleaned_data["file"], keys))
            except ProofRejected as rejection:
                checked = Checked(rejection=rejection)
                status = 422
    except NotBootstrapped:
        keys = None
    base = checked and checked.proven and checkpoint_with(checked.proven.charge.base)
    heads = selectors.latest_heads(SHOWN_DAYS)
    context = {"form": form, "checked": checked, "keys": keys, "heads": heads, "base": base}
    return render(request, "web/verify_receipt.html", context, status=status)
