"""Kinds of alerts: a name in sentences, and the scope of the members who are told."""

from __future__ import annotations

from dataclasses import dataclass

from marketplace.accounts.policies import SCOPES_OF_ROLE


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. Members whose role has `scope` see it and are mailed."""

    name: str
    label: str
    scope: str


BUDGET = "budget.alert"
WEBHOOK_DISABLED = "webhook.disabled"
SUSPENSION = "organization.suspension"
_OF_MODELS = "publish"
_KNOWN = {
    kind.name: kind
    for kind in (
        Kind(BUDGET, "Budgets", "account"),
        Kind(WEBHOOK_DISABLED, "Webhooks that fail", "account"),
        Kind(SUSPENSION, "Suspension of the organization", "read"),
        Kind("model.review", "Reviews of a model", _OF_MODELS),
        Kind("model.errors", "Errors of a model", _OF_MODELS),
        Kind("model.latency", "Latency of a model", _OF_MODELS),
        Kind("model.valid", "Valid answers of a model", _OF_MODELS),
        Kind("model.drift", "Drift of a model", _OF_MODELS),
        Kind("model.copying", "A customer who may be copying a model", _OF_MODELS),
        Kind("model.more_calls", "A customer who asks for more calls", _OF_MODELS),
        Kind("model.access_asked", "A customer who asks for access to a model", _OF_MODELS),
        Kind("model.spend", "Spending on a model", _OF_MODELS),
        Kind("access.answered", "Answers to your requests for access", "predict"),
        Kind("model.rollout", "Rollouts of a model", _OF_MODELS),
        Kind("model.ending", "The end of a version that you call", "predict"),
    )
}
_MONEY = ("budget.", "wallet.", "payout.")


def kind_of(name: str) -> Kind:
    """Return the kind of this name; one that is not listed here is about models, unless its first part is money's."""
    found = _KNOWN.get(name)
    if found is not None:
        return found
    label = name.replace(".", ": ").replace("_", " ").capitalize()
    return Kind(name, label, "account" if name.startswith(_MONEY) else _OF_MODELS)


def known_kinds() -> tuple[Kind, ...]:
    """Return the kinds that have a name of their own, in the order of the page."""
    return tuple(_KNOWN.values())


def roles_told(name: str) -> list[str]:
    """Return the roles whose members see alerts of this kind."""
    scope = kind_of(name).scope
    return [role for role, scopes in SCOPES_OF_ROLE.items() if scope in scopes]
