"""Limits on spending as a tree of nodes: organization, teams, keys, end users; and the alerts about them."""
