"""The staff's pages about disputes: what waits for an answer, one dispute with its evidence, refunds that failed."""

from __future__ import annotations

import logging

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from billing.disputes.evidence import submit_evidence
from billing.disputes.selectors import dispute_by_id, open_disputes, takes_evidence
from billing.errors import DisputeNotFound, PaymentProviderUnavailable
from billing.incidents import require_operator
from billing.models import Dispute
from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import User
from marketplace.web import queries
from marketplace.web.evidence import EvidenceForm, suggested_texts
from marketplace.web.refusals import show_in_form
from marketplace.web.views.staff import fresh_operators_only, operators_only

logger = logging.getLogger(__name__)


@require_safe
@operators_only
def disputes(request: HttpRequest) -> HttpResponse:
    """Disputes that no bank has decided, the next deadline first, those decided last, and refunds that failed."""
    context = {
        "open": [(row, takes_evidence(row)) for row in open_disputes()],
        "closed": queries.closed_disputes(),
        "refunds": queries.failed_refunds(),
    }
    return render(request, "web/disputes.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@fresh_operators_only
def dispute(request: HttpRequest, dispute_id: str) -> HttpResponse:
    """One dispute; POST sends evidence to the bank, once."""
    try:
        found = dispute_by_id(dispute_id)
    except DisputeNotFound:
        raise Http404("no such dispute") from None
    if request.method != "POST":
        form = EvidenceForm(initial=suggested_texts(found)) if takes_evidence(found) else None
        return _page(request, found, form, status=200)
    form = EvidenceForm(request.POST, request.FILES)
    status = 400
    if form.is_valid():
        assert isinstance(request.user, User)  # operators_only
        try:
            require_operator(user=request.user, code=form.cleaned_data["code"])
            submit_evidence(dispute_id=found.pk, texts=form.texts, files=form.files_of_bank)
        except PaymentProviderUnavailable as refusal:
            form.add_error(None, "Stripe did not answer. Choose the files again and send the same: it counts once.")
            status = refusal.status
        except Refusal as refusal:
            show_in_form(form, refusal, field_names={"texts": "uncategorized_text"})
            status = refusal.status
        else:
            logger.warning("evidence for dispute %s was sent by %s", found.pk, request.user.pk)
            messages.success(request, "The evidence is sent. The bank decides within some weeks.")
            return redirect("web:dispute", dispute_id=found.pk)
    return _page(request, found, form, status=status)


def _page(request: HttpRequest, found: Dispute, form: EvidenceForm | None, *, status: int) -> HttpResponse:
    context = {"dispute": found, "form": form, "entries": queries.entries_of_dispute(found)}
    return render(request, "web/dispute.html", context, status=status)
