"""`intarsia login`: where the command asks for a code and for its token, and the page where a person confirms."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import Any

from allauth.core.internal import ratelimit
from allauth.idp.oidc import views as oauth
from allauth.idp.oidc.forms import ConfirmCodeForm
from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from marketplace.accounts import device_login, selectors
from marketplace.accounts.device_login import CLIENT_ID, MAX_DAYS, MAX_NAME, Asked
from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import ApiKey
from marketplace.web.acting import Acting, member_page, require_fresh
from marketplace.web.device_form import DeviceForm
from marketplace.web.refusals import show_in_form

GRANT = "urn:ietf:params:oauth:grant-type:device_code"
MAX_DEVICE_CODE = 200
DONE = ("confirmed", "denied")


@csrf_exempt
@require_POST
@never_cache
def device_code(request: HttpRequest) -> HttpResponse:
    """Give a machine a code to show and one to keep: RFC 8628, section 3.1.

    Beside `client_id` and `scope` it may say its `name`, for how many `days` it wants the key, and for which
    `organization`.
    """
    if not ratelimit.consume(request, app="allauth.idp.oidc", action="device_code"):
        return _refused("slow_down", HTTPStatus.TOO_MANY_REQUESTS)
    if request.POST.get("client_id") != CLIENT_ID:
        return _refused("invalid_client")
    asked = _read_asked(request)
    if asked is None:
        return _refused("invalid_request")
    device_login.ensure_client()
    answer = oauth.device_code(request)
    if answer.status_code != HTTPStatus.OK:
        return answer
    told: dict[str, Any] = json.loads(answer.content)
    device_login.note_asked(told["device_code"], asked)
    page = settings.PUBLIC_URL + reverse("idp:oidc:device_authorization")
    told |= {"verification_uri": page, "verification_uri_complete": f"{page}?code={told['user_code']}"}
    return JsonResponse(told)


@csrf_exempt
@require_POST
@never_cache
@sensitive_post_parameters("device_code")
def token(request: HttpRequest) -> HttpResponse:
    """Say whether the person has confirmed, and give the token once: RFC 8628, section 3.4. No other grant is open."""
    code = request.POST.get("device_code", "")
    if request.POST.get("client_id") != CLIENT_ID or not 0 < len(code) <= MAX_DEVICE_CODE:
        return _refused("invalid_request")
    if request.POST.get("grant_type") != GRANT:
        return _refused("unsupported_grant_type")
    with device_login.polling(code) as grant:
        if grant is None:
            return _refused("slow_down")
        with transaction.atomic():
            answer: HttpResponse = oauth.token(request)
            if answer.status_code == HTTPStatus.OK:
                answer = JsonResponse(device_login.keep_grant(json.loads(answer.content), grant))
    return answer


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page(without_factor=True)
def device(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Ask for the code, show which machine asks, and let the person decide."""
    if request.method != "POST" and request.GET.get("done") in DONE:
        return render(request, "web/device_done.html", {"confirmed": request.GET["done"] == DONE[0]})
    code_form = ConfirmCodeForm(request.POST or request.GET) if "code" in (request.POST or request.GET) else None
    if code_form is None or not code_form.is_valid():
        status = 200 if code_form is None else 400
        return render(request, "web/device_code.html", {"form": code_form or ConfirmCodeForm()}, status=status)
    kept, user_code = code_form.device_code, code_form.cleaned_data["code"].upper()
    asked = device_login.asked_for(kept)
    if asked is None:
        return render(request, "web/device_code.html", {"form": ConfirmCodeForm()}, status=400)
    if request.method == "POST" and request.POST.get("action") == "deny":
        device_login.deny(kept, user=acting.user)
        return _done(DONE[1])
    form = DeviceForm(
        request.POST if request.method == "POST" else None,
        memberships=list(selectors.memberships_of(user=acting.user)),
        asked=asked,
        acting=acting.organization.slug,
    )
    if form.is_valid():
        again = require_fresh(request)
        if again is not None:
            return again
        try:
            device_login.confirm(kept, user=acting.user, **form.cleaned_data)
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            return _done(DONE[0])
    status = 400 if form.is_bound else 200
    return render(request, "web/device.html", {"form": form, "asked": asked, "user_code": user_code}, status=status)


def _done(outcome: str) -> HttpResponse:
    # Redirected: after a proof that it is the person, the form goes on below another address.
    return redirect(f"{reverse('idp:oidc:device_authorization')}?done={outcome}")


def _read_asked(request: HttpRequest) -> Asked | None:
    """Return what the machine says of itself, None if it breaks a rule."""
    said = request.POST
    days = said.get("days", "90")
    name = "".join(one for one in said.get("name", "") if one.isprintable()).strip() or "intarsia command line"
    scopes = tuple(dict.fromkeys(said.get("scope", "").split()))
    organization = said.get("organization", "")
    if not days.isascii() or not days.isdigit() or not 1 <= int(days[:6]) <= MAX_DAYS:
        return None
    if len(name) > MAX_NAME or not set(scopes) <= set(ApiKey.Scope.values):
        return None
    if not re.fullmatch(r"[-a-z0-9]{0,40}", organization):
        return None
    return Asked(name, str(request.META.get("REMOTE_ADDR", "")), scopes, organization, int(days[:6]))


def _refused(error: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> JsonResponse:
    return JsonResponse({"error": error}, status=status)
