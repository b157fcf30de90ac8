"""Refusals of this app."""

from __future__ import annotations

from marketplace.accounts.errors import Conflict, NotAllowed, NotFound


class LastOwner(Conflict):
    """The organization would have no owner left."""

    code = "last_owner"


class InviteGone(NotFound):
    """The link of an invite leads to nothing: made up, used, revoked or too old. These cannot be told apart."""

    code = "invite_gone"


class WrongAddress(NotAllowed):
    """The invite is for another address than the account's."""

    code = "wrong_address"
