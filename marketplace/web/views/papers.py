"""Invoices and the like: the list, their files, and the billing profile that they name."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from billing.models import BillingProfile
from billing.papers import issue
from billing.papers.download import download
from billing.papers.profiles import ProfileText, profile_of, save_profile
from billing.papers.tax_ids import countries
from marketplace.accounts.errors import Refusal
from marketplace.operations.platform_profile import platform_profile, write_platform_profile
from marketplace.web.acting import Acting, member_page
from marketplace.web.forms import BillingProfileForm
from marketplace.web.refusals import show_in_form
from marketplace.web.views.staff import operators_only, staff_of


@require_safe
@never_cache
@member_page("account")
def papers(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Every receipt, credit note, invoice and statement of earnings of the organization, newest first."""
    profile = profile_of(acting.organization)
    context = {
        "papers": issue.papers_of(acting.organization),
        "profile": profile,
        "country": countries().get(profile.country) if profile else None,
        "seller_is_known": platform_profile() is not None,
    }
    return render(request, "web/papers.html", context)


@require_safe
@never_cache
@member_page("account")
def paper_file(request: HttpRequest, acting: Acting, paper_id: UUID, extension: str) -> HttpResponse:
    """One paper, as PDF or CSV: the same bytes each time."""
    paper = issue.paper_of(acting.organization, paper_id)
    if paper is None:
        raise Http404("no such paper")
    if extension == "pdf":
        return download(issue.pdf_of(paper), f"{paper.name}.pdf")
    return download(issue.csv_of(paper), f"{paper.name}.csv")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("account")
def billing_profile(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Show the billing profile; POST writes it."""
    profile = profile_of(acting.organization)

    def save(text: ProfileText) -> None:
        save_profile(organization=acting.organization, text=text, by=acting.user)

    return _profile_page(request, profile, save, done="web:papers", template="web/billing_profile.html")


@require_http_methods(["GET", "HEAD", "POST"])
@operators_only
def platform_billing_profile(request: HttpRequest) -> HttpResponse:
    """Show the legal person that papers name as the seller; POST writes it."""

    def save(text: ProfileText) -> None:
        write_platform_profile(by=staff_of(request), text=text)

    return _profile_page(
        request, platform_profile(), save, done="web:platform", template="web/platform_billing_profile.html"
    )


def _profile_page(
    request: HttpRequest,
    profile: BillingProfile | None,
    save: Callable[[ProfileText], None],
    *,
    done: str,
    template: str,
) -> HttpResponse:
    initial = {name: getattr(profile, name) for name in ProfileText.__slots__} if profile else {"country": ""}
    form = BillingProfileForm(request.POST or None, initial=initial)
    status = 200
    if request.method == "POST":
        status = 400
        if form.is_valid():
            try:
                save(ProfileText(**{name: form.cleaned_data[name] for name in ProfileText.__slots__}))
                messages.success(request, "Saved. Papers issued from now on carry it; earlier ones stay as they are.")
                return redirect(done)
            except Refusal as refusal:
                show_in_form(form, refusal)
                status = refusal.status
    return render(request, template, {"form": form, "profile": profile}, status=status)
