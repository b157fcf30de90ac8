"""The staff's page of features that are switched."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from marketplace.accounts.errors import NotFound, Refusal
from marketplace.operations import features as switches
from marketplace.web.operator_forms import FeatureForm
from marketplace.web.refusals import show_in_form
from marketplace.web.views.staff import operators_only, staff_of


@require_safe
@operators_only
def features(request: HttpRequest) -> HttpResponse:
    """Every feature with its purpose, its owner and how far it is on."""
    return _page(request, None, status=200)


@require_POST
@operators_only
def switch(request: HttpRequest, slug: str) -> HttpResponse:
    """Switch one feature."""
    form = FeatureForm(request.POST, prefix=slug)
    if not form.is_valid():
        return _page(request, form, status=400)
    try:
        state = switches.switch_feature(name=slug, by=staff_of(request), **form.cleaned_data)
    except NotFound:
        raise Http404("no such feature") from None
    except Refusal as refusal:
        show_in_form(form, refusal)
        return _page(request, form, status=refusal.status)
    messages.success(request, f"{state.feature.title}: {state.state}. Every process follows within seconds.")
    return redirect("web:features")


def _page(request: HttpRequest, refused: FeatureForm | None, *, status: int) -> HttpResponse:
    """Show all forms; the one that was refused keeps what was typed."""
    shown = [
        (state, refused if refused is not None and refused.prefix == state.feature.name else FeatureForm.of(state))
        for state in switches.features()
    ]
    return render(request, "web/features.html", {"features": shown}, status=status)
