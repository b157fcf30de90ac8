"""The public page of an evaluation: its figure, and each call with its receipt. It has no text of a row or answer."""

from __future__ import annotations

from uuid import UUID

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from marketplace.accounts.errors import Refusal
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Evaluation
from marketplace.evals import selectors
from marketplace.evals.models import EvalCall, EvalRun
from marketplace.receipts.selectors import receipt_document
from marketplace.web.acting import viewer_of
from marketplace.web.charts import MAX_SQUARES, build_answer_grid
from marketplace.web.model_cards import accuracy_bar
from protocol.eval_rows import read_scorer

ROWS_ON_PAGE = 100


@require_safe
def evaluation(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show how many answers were right, which, and the receipts that prove that the calls were made."""
    run, figure = _visible(request, run_id)
    calls = selectors.calls_of(run=run)
    page = Paginator(calls, 2 * ROWS_ON_PAGE).get_page(request.GET.get("page"))
    model = run.version.model
    newest = catalog.published_version(org_slug=model.organization.slug, slug=model.slug, number=None)
    context = {
        "run": run,
        "model": run.version.model,
        "figure": figure,
        "bar": accuracy_bar(figure, older=newest is None or newest.pk != run.version_id),
        "label": f"Version {run.version.number}",
        "scorer": read_scorer(figure.scorer).words,
        "grids": [
            (who, build_answer_grid(list(calls.filter(base=base).values_list("right", flat=True)[:MAX_SQUARES])))
            for who, base in ((f"Version {run.version.number}", False), ("Bare base", True))
        ],
        "page": page,
        "pairs": _pairs(list(page)),
    }
    return render(request, "web/evaluation.html", context)


@require_safe
def evaluation_receipt(request: HttpRequest, run_id: UUID, prediction_id: UUID) -> HttpResponse:
    """The signed receipt of one call, as a file."""
    run, _ = _visible(request, run_id)
    if not selectors.calls_of(run=run).filter(prediction_id=prediction_id).exists():
        raise Http404("no such receipt")
    try:
        document = receipt_document(run.eval_set.organization, prediction_id)
    except Refusal:
        raise Http404("no such receipt") from None
    name = f"intarsia-receipt-{prediction_id}.json"
    return HttpResponse(
        document, content_type="application/json", headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )


def _visible(request: HttpRequest, run_id: UUID) -> tuple[EvalRun, Evaluation]:
    found = selectors.public_run(run_id=run_id, viewer=viewer_of(request))
    if found is None:
        raise Http404("no such evaluation")
    return found


def _pairs(calls: list[EvalCall]) -> list[tuple[int, list[EvalCall]]]:
    """Return the calls of each row: that of the version, then that of the base."""
    rows: dict[int, list[EvalCall]] = {}
    for call in calls:
        rows.setdefault(call.row, []).append(call)
    return list(rows.items())
