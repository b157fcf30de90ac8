"""Your data: a copy of it, and its erasure."""

from __future__ import annotations

import io

from allauth.core import ratelimit
from django.contrib import messages
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import Membership
from marketplace.privacy import export, services
from marketplace.privacy.errors import ExportTooLarge
from marketplace.web.acting import Acting, member_page
from marketplace.web.forms import DeleteOrganizationForm, PasswordForm
from marketplace.web.refusals import show_as_message, show_in_form

MAX_ROWS = 50_000  # of a copy made in memory while somebody waits; `manage.py export_organization` has no limit
_MANAGERS = {Membership.Role.OWNER, Membership.Role.ADMIN}


@require_safe
@never_cache
@member_page()
def data(request: HttpRequest, acting: Acting) -> HttpResponse:
    """The data that is kept, the copies to download, and the two deletions."""
    return _page(request, acting)


@require_POST
@never_cache
@member_page()
def copy_user(request: HttpRequest, acting: Acting) -> HttpResponse:
    """The copy of the person's data."""
    text = export.to_json(export.user_copy(acting.user))
    return HttpResponse(
        text,
        content_type="application/json",
        headers={"Content-Disposition": 'attachment; filename="intarsia-account.json"'},
    )


@require_POST
@never_cache
@member_page()
def copy_organization(request: HttpRequest, acting: Acting) -> HttpResponse:
    """The copy of the organization's data, for those who manage it."""
    if acting.role not in _MANAGERS:
        return render(request, "web/role_lacks.html", {"acting": acting, "scope": "manage"}, status=403)
    target = io.BytesIO()
    try:
        export.write_organization_copy(acting.organization, target, max_rows=MAX_ROWS)
    except ExportTooLarge as refusal:
        show_as_message(request, refusal, prefix="No file was made.")
        return redirect("web:data")
    name = f"{acting.organization.slug}.zip"
    return HttpResponse(
        target.getvalue(),
        content_type="application/zip",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@require_POST
@never_cache
@member_page()
def delete_user(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Erase the person, and sign them out."""
    if not ratelimit.consume(request, action="reauthenticate", user=acting.user):
        return ratelimit.respond_429(request)
    form = PasswordForm(request.POST, user=acting.user, prefix="user")
    if form.is_valid():
        try:
            services.erase_user(user=acting.user, by=acting.user.pk)
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            logout(request)
            messages.success(request, "Your account is deleted.")
            return redirect("web:landing")
    return _page(request, acting, user_form=form)


@require_POST
@never_cache
@member_page()
def delete_organization(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Erase the organization; its owner alone may."""
    if acting.role != Membership.Role.OWNER:
        return render(request, "web/role_lacks.html", {"acting": acting, "scope": "own"}, status=403)
    if not ratelimit.consume(request, action="reauthenticate", user=acting.user):
        return ratelimit.respond_429(request)
    slug = acting.organization.slug
    form = DeleteOrganizationForm(request.POST, user=acting.user, slug=slug, prefix="organization")
    if form.is_valid():
        try:
            services.erase_organization(
                organization=acting.organization, by=acting.user.pk, give_up=form.cleaned_data["give_up"]
            )
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            messages.success(request, f"The organization {slug} is deleted.")
            return redirect("web:dashboard")
    return _page(request, acting, organization_form=form)


def _page(
    request: HttpRequest,
    acting: Acting,
    *,
    user_form: PasswordForm | None = None,
    organization_form: DeleteOrganizationForm | None = None,
) -> HttpResponse:
    slug = acting.organization.slug
    context = {
        "may_copy": acting.role in _MANAGERS,
        "owner": acting.role == Membership.Role.OWNER,
        "user_form": user_form or PasswordForm(user=acting.user, prefix="user"),
        "organization_form": organization_form
        or DeleteOrganizationForm(user=acting.user, slug=slug, prefix="organization"),
    }
    faulty = user_form is not None or organization_form is not None
    return render(request, "web/data.html", context, status=422 if faulty else 200)
