"""An organization's own page: created, named, pictured, handed over, left."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from marketplace.accounts import selectors as accounts
from marketplace.accounts import services
from marketplace.accounts.errors import NotFound, Refusal
from marketplace.accounts.models import Membership, User
from marketplace.teams import members, organizations, pictures, roles, selectors
from marketplace.web.acting import Acting, choose_organization, member_page
from marketplace.web.forms import PlainForm
from marketplace.web.logo_form import LogoForm
from marketplace.web.refusals import show_as_message, show_in_form
from marketplace.web.team_forms import NameForm, OrganizationForm, RenameForm, TransferForm

# Pictures come from strangers: nothing in such an answer may run, load or be taken for another type.
_LOGO_HEADERS = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "cross-origin",  # a public picture
    "X-Content-Type-Options": "nosniff",
}


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def new_organization(request: HttpRequest) -> HttpResponse:
    """Create an organization, which is then acted for."""
    assert isinstance(request.user, User)
    form = OrganizationForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            made = services.create_organization(owner=request.user, **form.cleaned_data)
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            choose_organization(request, slug=made.slug)
            messages.success(request, f"{made.name} is there, and you act for it now.")
            return redirect("web:organization")
    status = 422 if request.method == "POST" else 200
    return render(request, "web/new_organization.html", {"form": form}, status=status)


@require_safe
@never_cache
@member_page("read")
def organization(request: HttpRequest, acting: Acting) -> HttpResponse:
    """The names, the logo, the ownership, the ways out."""
    return _page(request, acting)


@require_POST
@never_cache
@member_page("account")
def change_name(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Change the name that people read."""
    form = NameForm(request.POST, prefix="name")
    if form.is_valid():
        try:
            organizations.change_name(organization=acting.organization, by=acting.user, name=form.cleaned_data["name"])
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            return _done(request, "The name is changed.")
    return _page(request, acting, name_form=form)


@require_POST
@never_cache
@member_page("account", fresh=True)
def rename(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Change the name in addresses."""
    form, former = RenameForm(request.POST, prefix="rename"), acting.organization.slug
    if form.is_valid():
        try:
            renamed = organizations.rename(
                organization=acting.organization, by=acting.user, slug=form.cleaned_data["slug"]
            )
        except Refusal as refusal:
            acting.organization.slug = former
            show_in_form(form, refusal)
        else:
            choose_organization(request, slug=renamed.slug)
            return _done(request, f"The organization is now {renamed.slug}; {former} leads to it for two years.")
    return _page(request, acting, rename_form=form)


@require_POST
@never_cache
@member_page("account")
def set_logo(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Show a picture."""
    form = LogoForm(request.POST, request.FILES, prefix="logo")
    if form.is_valid():
        try:
            organizations.set_logo(organization=acting.organization, by=acting.user, content=form.cleaned_data["logo"])
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            return _done(request, "The logo is changed.")
    return _page(request, acting, logo_form=form)


@require_POST
@member_page("account")
def remove_logo(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Show no picture any more."""
    try:
        organizations.remove_logo(organization=acting.organization, by=acting.user)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing was changed.")
        return redirect("web:organization")
    return _done(request, "The logo is removed.")


@require_POST
@never_cache
@member_page("account", fresh=True)
def offer_ownership(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Offer the ownership to another member."""
    form = TransferForm(request.POST, members=_members(acting), prefix="transfer")
    if form.is_valid():
        try:
            found = selectors.membership_by_id(
                organization=acting.organization, user_id=UUID(form.cleaned_data["user_id"])
            )
            if found is None:
                raise NotFound("there is no such member", field="user_id")
            members.offer_ownership(organization=acting.organization, by=acting.user, user=found.user)
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            return _done(request, f"{found.user.email} can now accept the ownership, within seven days.")
    return _page(request, acting, transfer_form=form)


@require_POST
@member_page("read", fresh=True)
def accept_ownership(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Become owner."""
    try:
        members.accept_ownership(organization=acting.organization, user=acting.user)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing was changed.")
        return redirect("web:organization")
    return _done(request, f"You own {acting.organization.name} now.")


@require_POST
@member_page("read")
def end_transfer(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Take an offer of the ownership back, or decline it."""
    try:
        members.end_transfer(organization=acting.organization, user=acting.user)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing was changed.")
        return redirect("web:organization")
    return _done(request, "The offer is ended. Roles stay as they are.")


@require_POST
@member_page("read", fresh=True)
def leave(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Leave the organization."""
    try:
        members.leave(organization=acting.organization, user=acting.user)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="You are still a member.")
        return redirect("web:organization")
    messages.success(request, f"You left {acting.organization.name}.")
    return redirect("web:dashboard")


@require_safe
def logo(request: HttpRequest, digest: str) -> HttpResponse:
    """A logo's bytes, which never change at their address."""
    content = organizations.logo_content(digest)
    if content is None:
        raise Http404("no such logo")
    return HttpResponse(content, content_type=pictures.CONTENT_TYPE, headers=_LOGO_HEADERS)


def _done(request: HttpRequest, text: str) -> HttpResponse:
    messages.success(request, text)
    return redirect("web:organization")


def _members(acting: Acting) -> list[Membership]:
    return list(accounts.members_of(organization=acting.organization))


def _page(request: HttpRequest, acting: Acting, **forms: PlainForm) -> HttpResponse:
    row = acting.organization
    owner = acting.role == Membership.Role.OWNER
    context = {
        "may_manage": roles.may_manage(acting.role),
        "owner": owner,
        "former_names": selectors.former_names_of(organization=row),
        "renames": organizations.MAX_RENAMES,
        "transfer": members.open_transfer(organization=row),
        "name_form": NameForm(initial={"name": row.name}, prefix="name"),
        "rename_form": RenameForm(initial={"slug": row.slug}, prefix="rename"),
        "logo_form": LogoForm(prefix="logo"),
        "transfer_form": TransferForm(members=_members(acting), prefix="transfer") if owner else None,
        **forms,
    }
    return render(request, "web/organization.html", context, status=422 if forms else 200)
