"""The creator's promise of valid answers."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from marketplace.accounts.errors import Refusal
from marketplace.promises import services
from marketplace.promises.models import PromiseKind
from marketplace.web.acting import Acting, member_page, own_model
from marketplace.web.forms import PromiseForm
from marketplace.web.refusals import show_as_message


@require_POST
@member_page("publish", fresh=True)
def promise(request: HttpRequest, acting: Acting, slug: str) -> HttpResponse:
    """Promise a share of valid answers from the next month on, or none."""
    model = own_model(acting, slug)
    form = PromiseForm(request.POST)
    if not form.is_valid():
        messages.error(request, "Nothing changed: the share is a number from 50 to 99.9.")
        return redirect("web:my_model", slug=slug)
    try:
        row = services.set_promise(model=model, kind=PromiseKind.VALID, bound=form.bound)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing changed.")
    else:
        said = "no promise holds" if row.bound is None else f"{row.bound / 100:g} % of valid answers are promised"
        messages.success(request, f"From {row.starts_on:%-d %B %Y} on, {said}.")
    return redirect("web:my_model", slug=slug)
