"""Who may call each operation of the control API, written by hand: the word that the code's own `scopes` must equal.

`public` needs no caller, `any` a caller of any kind, `staff` the platform's; the other lines name the scopes of which
one is needed. The words are names of routes.
"""

from __future__ import annotations

from collections.abc import Iterator

SCOPES: dict[str, dict[str, str]] = {
    "public": {
        "GET": "bases evaluation-calls evaluation-receipt evaluations intake-key model models precisions prices "
        "promises receipt-consistency receipt-days receipt-keys schema status versions",
        "POST": "tokens",
    },
    "any": {
        "GET": "me second-factor sessions",
        "POST": "accept-invite organizations",
        "PUT": "second-factor",
        "DELETE": "key session sessions",
    },
    "predict": {
        "GET": "prompt prompts trial-pair",
        "POST": "access-request cancel-trial licence-acceptance more-calls prompts trial-pair trials",
        "DELETE": "prompt trial-rows",
    },
    "publish": {
        "GET": "access-requests noted-customers protection quote-eval-run",
        "HEAD": "eval-set-package package",
        "POST": "answer-access-request appeal complete complete-eval-set deprecate eval-sets make-default models "
        "noted-customer prices promises publish retire revoke rollout signing-keys start-eval-run versions",
        "PUT": "alarms eval-set-package leave-on-checkpoint model-guards model-logo package",
        "PATCH": "model protection version",
        "DELETE": "deprecate model-guard model-logo",
    },
    "account": {
        "GET": "audit audit-export audit-seals auto-top-up billing-profile cards disputes end-users invites paper-csv "
        "paper-pdf papers refunds statement-lines statements top-up top-ups wallet webhook webhook-deliveries "
        "webhook-delivery webhooks",
        "POST": "budgets cancel-top-up cards close-run invites payout-dashboard payout-setup payouts refunds "
        "replay-delivery resend-invite rotate-secret test-webhook top-ups transfer webhooks",
        "PUT": "auto-top-up billing-profile end-users key-budget logo organization-budget",
        "PATCH": "budget member organization payout-overview webhook",
        "DELETE": "auto-top-up budget card invite logo member webhook",
    },
    "publish account": {
        "GET": "alert-kinds alerts earnings model-rollout models-in-use payout payout-overview payout-statement "
        "payouts version-earnings",
        "PUT": "alert-kind",
    },
    "account read": {
        "GET": "budget budget-alerts budgets members organization promise-refunds run run-calls runs transfer usage "
        "usage-csv usage-summary",
        "POST": "accept-transfer leave",
        "DELETE": "transfer",
    },
    "predict account": {
        "GET": "trial trials",
    },
    "publish read": {
        "GET": "eval-run eval-runs eval-set eval-sets model-guard model-guards reviews",
    },
    "publish account read": {
        "GET": "alarms custody custody-export holders in-use signing-keys version",
    },
    "predict publish account": {
        "GET": "key key-guards keys",
        "POST": "keys reports rotate-key",
        "PUT": "key-guards",
        "PATCH": "key",
    },
    "predict publish account read": {
        "GET": "access-request admission licence-acceptance receipt",
    },
    "staff": {
        "GET": "platform-audit platform-bases platform-billing-profile platform-clearances platform-dispute "
        "platform-disputes platform-evaluations platform-features platform-fleet platform-guards platform-health "
        "platform-incidents platform-organization platform-organizations platform-plan platform-plan-files "
        "platform-plans platform-replicas platform-statements platform-summary platform-usage-file queued-reviews",
        "POST": "approve-review clear-incident drain-replica evidence measure-again platform-plan-files "
        "platform-plans platform-replicas pull-review refund-payment refund-prediction refuse-review "
        "reinstate-organization revoke-replica status-incidents status-updates suspend-organization undrain-replica",
        "PUT": "platform-billing-profile platform-feature",
    },
}
# A person manages the keys that they made and reads who the members are; a program needs `account` for it.
ACCOUNT_FOR_KEYS = {
    "GET": "key key-guards keys members",
    "POST": "keys rotate-key",
    "PUT": "key-guards",
    "PATCH": "key",
}
WITHOUT_SCOPES = {"public", "any", "staff"}
Operation = tuple[str, str]  # method, name of the route


def names(table: dict[str, str]) -> Iterator[Operation]:
    """Each operation of one line."""
    for method, routes in table.items():
        for name in routes.split():
            yield method, name


def needed() -> dict[Operation, frozenset[str]]:
    """What each operation needs: any of these scopes, or one of the words of `WITHOUT_SCOPES`."""
    found: dict[Operation, frozenset[str]] = {}
    for words, table in SCOPES.items():
        for operation in names(table):
            assert operation not in found, f"{operation} stands twice"
            found[operation] = frozenset(words.split())
    return found
