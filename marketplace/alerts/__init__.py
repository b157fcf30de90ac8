"""Alerts of an organization: stored once, shown in a feed, mailed to members and posted to signed webhooks.

Imports `accounts` and `billing`; the parts that have something to tell call `services.tell`.
"""
