"""Members and invites, and the page of an invite's link."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from marketplace.accounts import selectors as accounts
from marketplace.accounts.audit_names import FORMER
from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import Membership, User
from marketplace.teams import invites, members, roles, selectors
from marketplace.teams.adapter import remember
from marketplace.teams.errors import InviteGone
from marketplace.web.acting import Acting, choose_organization, member_page
from marketplace.web.refusals import show_as_message, show_in_form
from marketplace.web.team_forms import InviteForm, grantable

MOST_MEMBERS = 1_000


@require_safe
@never_cache
@member_page("read")
def members_page(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Everybody in the organization, and the invites without an answer."""
    return _page(request, acting)


@require_POST
@never_cache
@member_page("account", fresh=True)
def invite(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Mail an invite."""
    form = InviteForm(request.POST, by=acting.role)
    if form.is_valid():
        try:
            made = invites.invite(organization=acting.organization, by=acting.user, **form.cleaned_data)
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            messages.success(request, f"The invite is on its way to {made.email}.")
            return redirect("web:members")
    return _page(request, acting, form)


@require_POST
@member_page("account", fresh=True)
def change_role(request: HttpRequest, acting: Acting, user_id: UUID) -> HttpResponse:
    """Give a member another role."""
    member = _member(acting, user_id)
    role = request.POST.get("role", "")

    def change() -> str:
        members.change_role(organization=acting.organization, by=acting.user, user=member.user, role=role)
        return f"{member.user.email} is {role} now."

    return _try(request, change)


@require_POST
@member_page("account", fresh=True)
def remove(request: HttpRequest, acting: Acting, user_id: UUID) -> HttpResponse:
    """Take a member out, and show the keys that they made."""
    member = _member(acting, user_id)
    try:
        members.remove(organization=acting.organization, by=acting.user, user=member.user)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing was changed.")
        return redirect("web:members")
    if user_id == acting.user.pk:
        messages.success(request, f"You left {acting.organization.name}.")
        return redirect("web:dashboard")
    messages.success(request, f"{member.user.email} is no member any more.")
    return redirect(f"{reverse('web:members')}?keys_of={user_id}")


@require_POST
@member_page("account", fresh=True)
def resend_invite(request: HttpRequest, acting: Acting, invite_id: UUID) -> HttpResponse:
    """Mail a new link."""

    def change() -> str:
        row = invites.resend(organization=acting.organization, by=acting.user, invite_id=invite_id)
        return f"A new link is on its way to {row.email}; the old one ended."

    return _try(request, change)


@require_POST
@member_page("account")
def revoke_invite(request: HttpRequest, acting: Acting, invite_id: UUID) -> HttpResponse:
    """Take an invite back."""

    def change() -> str:
        invites.revoke(organization=acting.organization, by=acting.user, invite_id=invite_id)
        return "The invite is taken back: its link leads nowhere."

    return _try(request, change)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def accept_invite(request: HttpRequest, token: str) -> HttpResponse:
    """The page that the link of an invite leads to: sign in or sign up first, then join."""
    try:
        row = invites.find(token=token)
        if request.method == "POST" and isinstance(request.user, User):
            membership = invites.accept(token=token, user=request.user)
            choose_organization(request, slug=membership.organization.slug)
            messages.success(request, f"You are in {membership.organization.name}, as {membership.role}.")
            return redirect("web:dashboard")
    except InviteGone as gone:
        return render(request, "web/invite.html", {"gone": gone.message}, status=gone.status)
    except Refusal as refusal:  # the page says which address it is for
        return render(request, "web/invite.html", {"invite": row, "other_account": True}, status=refusal.status)
    other = isinstance(request.user, User) and request.user.email.lower() != row.email
    if isinstance(request.user, User):
        return render(request, "web/invite.html", {"invite": row, "other_account": other})
    remember(request, token=token)
    return render(request, "web/invite.html", {"invite": row})


def _member(acting: Acting, user_id: UUID) -> Membership:
    found = selectors.membership_by_id(organization=acting.organization, user_id=user_id)
    if found is None:
        raise Http404("no such member")
    return found


def _try(request: HttpRequest, change: Callable[[], str]) -> HttpResponse:
    """Do it and say so, or say why not."""
    try:
        messages.success(request, change())
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing was changed.")
    return redirect("web:members")


def _page(request: HttpRequest, acting: Acting, form: InviteForm | None = None) -> HttpResponse:
    row, may_manage = acting.organization, roles.may_manage(acting.role)
    secured = selectors.with_second_factor(organization=row)
    rows = [
        {
            "member": one,
            "second_factor": one.user_id in secured,
            "is_self": one.user_id == acting.user.pk,
            "may_change": roles.may_change(actor=acting.role, current=one.role, wanted=None),
        }
        for one in accounts.members_of(organization=row)[:MOST_MEMBERS]
    ]
    context = {
        "rows": rows,
        "roles": grantable(acting.role),
        "meanings": roles.MEANINGS,
        "may_manage": may_manage,
        "invites": invites.unanswered(organization=row) if may_manage else [],
        "form": form or (InviteForm(by=acting.role) if may_manage else None),
        **_keys_left(request, acting),
    }
    return render(request, "web/members.html", context, status=422 if form else 200)


def _keys_left(request: HttpRequest, acting: Acting) -> dict[str, object]:
    """Return the working keys of the person whom the address names, for those who may revoke them."""
    try:
        user_id = UUID(request.GET.get("keys_of", ""))
    except ValueError:
        return {}
    keys = selectors.keys_made_by(organization=acting.organization, user_id=user_id) if acting.may_account else []
    maker = keys[0].created_by if keys else None
    return {"keys_left": keys, "maker": maker.email if maker and maker.is_active else FORMER}
