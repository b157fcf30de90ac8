"""News about money for the members of an organization who look after it.

`marketplace.alerts`, which tells members, listens to `money_notice`. It is sent in the transaction of the change that
it reports, so that a notice is stored with it, or neither is; what is stored is sent again until it has arrived.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.dispatch import Signal

from marketplace.accounts.models import Organization

# Of each: organization, kind, once, subject, text, data.
money_notice = Signal()


@transaction.atomic
def tell_members(
    organization: Organization, *, kind: str, once: str, subject: str, text: str, data: dict[str, Any]
) -> None:
    """Tell the members who look after money, once per kind and `once`.

    kind: `wallet.event`; data: ids and sums, as JSON. In the caller's transaction, if there is one
    """
    money_notice.send(
        sender=Organization, organization=organization, kind=kind, once=once, subject=subject, text=text, data=data
    )
