"""Sign-in and security: address, password, second factor, passkeys, recovery codes, sessions; on one page."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from allauth.account.internal.flows.email_verification import send_verification_email_to_address
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from marketplace.accounts import policies, second_factor, sessions
from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import User
from marketplace.accounts.verification import unverified_address
from marketplace.web.acting import Acting, acting_of, member_page
from marketplace.web.refusals import show_as_message


@require_safe
@never_cache
@login_required
def security(request: HttpRequest) -> HttpResponse:
    """Everything by which a person signs in, and where they are signed in now."""
    user = _person(request)
    acting = acting_of(request)
    factors = list(Authenticator.objects.filter(user=user).order_by("created_at"))
    codes = next((one.wrap() for one in factors if one.type == Authenticator.Type.RECOVERY_CODES), None)
    context: dict[str, Any] = {
        "addresses": EmailAddress.objects.filter(user=user).order_by("-primary", "email"),
        "app": next((one for one in factors if one.type == Authenticator.Type.TOTP), None),
        "passkeys": [one for one in factors if one.type == Authenticator.Type.WEBAUTHN],
        "codes_left": None if codes is None else len(codes.get_unused_codes()),
        "enrolled": any(one.type in second_factor.FACTORS for one in factors),
        "staff": policies.is_staff(user=user),
        "sessions": sessions.sessions_of(user=user),
        "current_key": request.session.session_key,
        "minutes": settings.ACCOUNT_REAUTHENTICATION_TIMEOUT // 60,
        "may_have_passkeys": not _is_address(request.get_host()),
        "manages": acting is not None and acting.role in policies.MANAGERS,
    }
    return render(request, "web/security.html", context)


@require_POST
@login_required
def send_again(request: HttpRequest) -> HttpResponse:
    """Mail the link that verifies the person's address once more; a few times an hour at most."""
    address = unverified_address(user=_person(request))
    if address is None:
        messages.info(request, "Your address is verified already.")
    elif not send_verification_email_to_address(request, address):
        messages.warning(request, "A mail was sent a moment ago. Wait three minutes before you ask for another.")
    return redirect("web:dashboard")


@require_POST
@login_required
def end_session(request: HttpRequest, session_id: int) -> HttpResponse:
    """End one session of the person."""
    if not sessions.end_session(user=_person(request), session_id=session_id):
        raise Http404("no such session")
    messages.success(request, "That session is ended: it has to sign in again.")
    return redirect("web:security")


@require_POST
@login_required
def end_other_sessions(request: HttpRequest) -> HttpResponse:
    """End every session of the person but this one."""
    ended = sessions.end_other_sessions(user=_person(request), current_key=request.session.session_key or "")
    messages.success(request, f"Other sessions ended: {ended}.")
    return redirect("web:security")


@require_POST
@member_page(fresh=True)
def require_of_members(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Require a second factor of every member of the organization, or no longer."""
    if acting.role not in policies.MANAGERS:
        return render(request, "web/role_lacks.html", {"acting": acting, "scope": "manage"}, status=403)
    required = request.POST.get("required") == "yes"
    try:
        second_factor.set_requirement(organization=acting.organization, required=required, actor=acting.actor)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing changed.")
    else:
        slug = acting.organization.slug
        messages.success(
            request,
            f"Members of {slug} need a second factor from now on."
            if required
            else f"Members of {slug} need no second factor any more.",
        )
    return redirect("web:security")


def _person(request: HttpRequest) -> User:
    assert isinstance(request.user, User), "the pages are for people who are signed in"
    return request.user


def _is_address(host: str) -> bool:
    """Return whether a host is a number: browsers keep passkeys for names alone."""
    try:
        ip_address(host.rpartition(":")[0].strip("[]") or host)
    except ValueError:
        return False
    return True
