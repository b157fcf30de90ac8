"""Paid calls that the platform makes to its own `/v1` in an organization's name, under one budget.

    purse = open_purse(organization=…, name="eval of acme/triage@3", budget_nano_usd=…)   # store purse.pk
    with Caller(purse) as caller:
        for outcome in caller.run(calls):      # as they come, not in the order of `calls`
            ...                                # ChatAnswer or CallRefused; raises CallsEnded after the last
    close_purse(purse)

A purse is an API key of the organization that nobody knows the text of, with a limit in all; the organization sees it
among its keys and budgets, and ends the run by revoking it. A call is known by its name in its purse: the same call
made again within 24 hours, by a worker that goes on where another was killed, gets the first answer and pays nothing.
"""

from marketplace.calls.caller import Caller, CallRefused, CallsEnded, ChatAnswer, ChatCall
from marketplace.calls.purses import close_purse, open_purse, spent_nano_usd

__all__ = [
    "CallRefused",
    "Caller",
    "CallsEnded",
    "ChatAnswer",
    "ChatCall",
    "close_purse",
    "open_purse",
    "spent_nano_usd",
]
