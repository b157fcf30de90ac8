"""Rules about roles: pure functions of who changes whom."""

from __future__ import annotations

from marketplace.accounts.models import Membership

Role = Membership.Role
MANAGERS = frozenset({Role.OWNER.value, Role.ADMIN.value})
# In the order in which a page lists them, with the sentence that it prints.
MEANINGS = {
    Role.OWNER.value: "everything, owners and deletion included",
    Role.ADMIN.value: "everything but owners and deletion",
    Role.DEVELOPER.value: "models and predictions, not money and keys of others",
    Role.BILLING.value: "money, keys and budgets, not models",
    Role.VIEWER.value: "reads usage, models and members; changes nothing",
}


def may_manage(role: str | None) -> bool:
    """Return whether a member with `role` invites, removes and changes members, and the organization's names."""
    return role in MANAGERS


def may_change(*, actor: str | None, current: str, wanted: str | None) -> bool:
    """Return whether `actor` may give a member of role `current` the role `wanted`, or with None remove them.

    Only owners make and unmake owners.
    """
    if Role.OWNER in (current, wanted):
        return actor == Role.OWNER
    return may_manage(actor)
