"""Budgets: the tree with its limits and spending, and alerts."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from billing.budgets import alerts, selectors, tree
from billing.budgets.limits import limits_of
from billing.models import BudgetNode
from marketplace.accounts.errors import Refusal
from marketplace.web.acting import Acting, member_page
from marketplace.web.budget_forms import LimitsForm, TeamForm
from marketplace.web.refusals import show_in_form


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("read", changes="account")
def budgets(request: HttpRequest, acting: Acting) -> HttpResponse:
    """The tree, and a form for a new team."""
    form = TeamForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            tree.create_team(
                organization=acting.organization, name=form.cleaned_data["name"], parent_id=None, limits=form.limits()
            )
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            return redirect("web:budgets")
    return _page(request, acting, form, status=400 if request.method == "POST" else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("account")
def budget(request: HttpRequest, acting: Acting, node_id: UUID) -> HttpResponse:
    """The limits of one node, and where it hangs."""
    node = selectors.node_of(acting.organization, node_id)
    if node is None:
        raise Http404("no such budget")
    parents = _parents(acting, node)
    form = LimitsForm(request.POST or None, parents=parents, initial=_initial(node))
    if request.method == "POST" and form.is_valid():
        try:
            with transaction.atomic():
                if parents:
                    tree.move(node, parent_id=form.parent_id)
                tree.set_limits(node, form.limits())
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            messages.success(request, "The limits are set. They hold from the next request on.")
            return redirect("web:budgets")
    return render(request, "web/budget.html", {"form": form, "node": node}, status=400 if form.errors else 200)


@require_POST
@member_page("account")
def limit_organization(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Make the root, so that it can be limited."""
    return redirect("web:budget", node_id=tree.organization_node(acting.organization).pk)


def _initial(node: BudgetNode) -> dict[str, object]:
    limits = limits_of(node)
    return {
        "per_request": limits.per_request_nano_usd,
        "daily": limits.daily_nano_usd,
        "monthly": limits.monthly_nano_usd,
        "total": limits.total_nano_usd,
        "parent": "" if node.parent_id is None else str(node.parent_id),
    }


def _parents(acting: Acting, node: BudgetNode) -> list[tuple[str, str]]:
    """Return the teams that a team or a key may hang under; nothing for other nodes."""
    if node.kind not in (BudgetNode.Kind.TEAM, BudgetNode.Kind.KEY):
        return []
    teams = [one for one in selectors.nodes_of(acting.organization).filter(kind="team") if node.pk not in one.path]
    return [("", "The organization"), *((str(one.pk), one.name) for one in teams)]


def _page(request: HttpRequest, acting: Acting, form: TeamForm, *, status: int) -> HttpResponse:
    context = {
        "form": form,
        "lines": selectors.tree_of(acting.organization),
        "alerts": alerts.alerts_of(acting.organization.pk)[:10],
    }
    return render(request, "web/budgets.html", context, status=status)
