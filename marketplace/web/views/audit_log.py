"""The audit log of an organization, and what staff decided about all of them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from marketplace.accounts import audit, audit_seals
from marketplace.accounts import selectors as accounts
from marketplace.accounts.audit_files import file_of
from marketplace.accounts.audit_names import FORMER, names_of
from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import AuditEntry, User
from marketplace.web.acting import Acting, member_page
from marketplace.web.refusals import show_as_message
from marketplace.web.team_forms import AuditForm
from marketplace.web.views.staff import operators_only

PAGE_SIZE = 50


@require_safe
@never_cache
@member_page("account")
def audit_log(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Acts of members, keys and staff, newest first."""
    form, filters = _filters(request, _people(acting))
    entries = audit.entries_of(organization=acting.organization, filters=filters)
    seal = audit_seals.seals_of(organization=acting.organization).first()
    context = {"form": form, "seal": seal, **_rows(request, entries, for_staff=False)}
    return render(request, "web/audit.html", context)


@require_safe
@never_cache
@member_page("account")
def audit_file(request: HttpRequest, acting: Acting, kind: str) -> HttpResponse:
    """The part of the log that is shown, as a file."""
    _, filters = _filters(request, _people(acting))
    try:
        return file_of(acting.organization, filters, kind)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="No file was made.")
        return redirect("web:audit")


@require_safe
@operators_only
def platform_audit(request: HttpRequest) -> HttpResponse:
    """Decisions of staff about any organization, newest first."""
    people = [(str(pk), email) for pk, email in User.objects.filter(is_staff=True).values_list("pk", "email")]
    form, filters = _filters(request, people)
    context = {"form": form, **_rows(request, audit.staff_entries(filters=filters), for_staff=True)}
    return render(request, "web/platform_audit.html", context)


def _people(acting: Acting) -> list[tuple[str, str]]:
    """Return everybody by whom the log has entries or could have: the members, and those who were some."""
    members = {one.user_id: one.user.email for one in accounts.members_of(organization=acting.organization)[:500]}
    actors = audit.people_in(organization=acting.organization) - members.keys()
    former = dict(User.objects.filter(pk__in=actors, is_active=True).values_list("pk", "email"))
    gone = {actor: former.get(actor, FORMER) for actor in actors}
    return [(str(user_id), email) for user_id, email in (members | gone).items()]


def _filters(request: HttpRequest, people: Sequence[tuple[str, str]]) -> tuple[AuditForm, audit.Filters]:
    """Return the form and what it asks for; a field that makes no sense asks for nothing."""
    form = AuditForm(request.GET or None, people=people)
    form.is_valid()
    asked = form.cleaned_data if form.is_bound else {}
    return form, audit.Filters(
        act=asked.get("act", "").replace("\x00", ""),
        user_id=UUID(asked["person"]) if asked.get("person") else None,
        since=asked.get("since"),
        until=asked.get("until"),
    )


def _rows(request: HttpRequest, entries: QuerySet[AuditEntry], *, for_staff: bool) -> dict[str, object]:
    page = Paginator(entries, PAGE_SIZE).get_page(request.GET.get("page"))
    names = names_of(page, for_staff=for_staff)
    parameters = request.GET.copy()
    parameters.pop("page", None)
    return {
        "rows": [(entry, names[entry.pk]) for entry in page],
        "page": page,
        "parameters": parameters.urlencode(),
    }
